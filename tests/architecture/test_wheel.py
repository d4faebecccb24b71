"""The wheel, built and used in a clean environment."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": os.environ.get("HOME", "/"),
    **{key: value for key, value in os.environ.items() if key.startswith(("PIP_", "SSL_"))},
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The one that ``make wheel`` built, or that of a copy of the sources."""
    if built := os.environ.get("USTAT_WHEEL"):
        return Path(built)
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(
        ROOT / "ustat_pg", copy / "ustat_pg", ignore=shutil.ignore_patterns("__pycache__")
    )
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(copy)],
        check=True,
        capture_output=True,
    )
    return next(folder.glob("*.whl"))


def test_it_holds_the_library_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ustat_pg"}
    data = {"ustat_pg/catalogue/catalogue.toml", "ustat_pg/catalogue/frameworks/verl.toml"}
    assert {"ustat_pg/py.typed"} | data <= set(names)
    assert {"ustat_pg/__init__.pyi", "ustat_pg/predictions/__init__.pyi"} <= set(names)
    assert {f"ustat_pg/llm/trl/presets/{name}.yaml" for name in ("figure5", "table2")} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_it_works_in_a_clean_environment(wheel, tmp_path):
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True
    )
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-compile"]
    subprocess.run(
        [*pip, "--quiet", "--disable-pip-version-check",
         "--constraint", str(ROOT / "constraints.txt"), str(wheel)],
        check=True,
        env=ENVIRONMENT,
    )  # fmt: skip

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    command = str(tmp_path / "venv" / "bin" / "ustat-pg")
    assert run(command, "--version").startswith("ustat-pg ")
    (tmp_path / "problem.json").write_text(run(command, "example"))
    out = run(command, "predict", "problem.json", "--group-size", "4", "--json")
    assert json.loads(out)["mse"] > 0
    named = run(command, "predict", "ustat:skewed@1", "--group-size", "2", "--json")
    assert json.loads(named)["mse"] == pytest.approx(0.1248)
    assert run(command, "explain", "std", "--group-size", "8").startswith("std: ")
    words = {"cwd": tmp_path, "env": ENVIRONMENT, "capture_output": True, "text": True}
    refused = subprocess.run([command, "verify"], **words)
    assert refused.returncode == 2
    assert "verify needs the repository" in refused.stderr
    assert run(command, "verify", "--help") == refused.stderr.removeprefix("ustat-pg: ")
    code = (
        "from ustat_pg.engines import *; from ustat_pg.problems import random_problem;"
        "c = GradientCell(random_problem(0), 2);"
        "q = [SquaredError(Estimator('grpo'))];"
        "print(c.measure('cpu', q, replications=100).n,"
        " c.measure('exact', q).mean[0] > 0)"
    )
    assert run(str(python), "-c", code).strip() == "100 True"
