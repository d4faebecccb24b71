"""The commands of the repository behind the package's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.support.commands import ROOT


def ustat_pg(*words, folder, path=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "ustat_pg.cli", *map(str, words)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_verify_is_that_of_the_repository(tmp_path):
    """From another folder; its exit code and its messages are those of python -m simulations."""
    words = (
        "Theorem",
        "2",
        "--size",
        "smoke",
        "--engine",
        "exact",
        "--workers",
        "1",
        "--out",
        "run",
    )
    done = ustat_pg("verify", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Theorem 2" in done.stdout
    assert (tmp_path / "run/verdicts.json").exists()
    refused = ustat_pg("verify", "theorm 2", folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("simulations: claim 'theorm 2' is unknown, did you mean")


def test_without_the_repository_it_says_where_the_experiments_are(tmp_path):
    package = tmp_path / "installed"
    ignored = shutil.ignore_patterns("__pycache__", "weights")
    shutil.copytree(ROOT / "ustat_pg", package / "ustat_pg", ignore=ignored)
    done = ustat_pg("verify", folder=tmp_path, path=package)
    assert done.returncode == 2
    assert "verify needs the repository" in done.stderr
    assert "python -m simulations verify in its folder" in done.stderr
    assert (
        "python -m figures in its folder"
        in ustat_pg("figures", folder=tmp_path, path=package).stderr
    )
