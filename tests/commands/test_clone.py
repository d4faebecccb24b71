"""The commands of the repository behind the package's own."""

import os
import subprocess
import sys

from tests.support.commands import ROOT


def ustat_pg(*words, folder):
    return subprocess.run(
        [sys.executable, "-m", "ustat_pg.cli", *map(str, words)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_verify_is_that_of_the_repository(tmp_path):
    """From another folder; its exit code and its messages are those of python -m simulations."""
    words = ("Theorem", "2", "--size", "smoke", "--engine", "exact", "--workers", "1")
    done = ustat_pg("verify", *words, "--out", "run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Theorem 2" in done.stdout
    assert (tmp_path / "run/verdicts.json").exists()
    refused = ustat_pg("verify", "theorm 2", folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("simulations: claim 'theorm 2' is unknown, did you mean")
