"""Every make target is run: by CI, before what it does not need is there, or by tests of what it calls. So is
every step of a workflow.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

ELSEWHERE = {
    "llm": "tests/simulations/language_models/test_studies.py",
    "benchmarks": "tests/benchmarks",
    "test-fast": ".ci/run",  # a part of `make test`
    "test-tool": ".ci/run",  # another
    "elsewhere": "tests/benchmarks/test_elsewhere.py",
    "wheel": "tests/architecture/test_wheel.py",
    "clean": ".ci/run",  # a fresh clone has nothing to remove
}
"""Where what a target runs is run, if CI does not make it."""

HELP = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
TARGETS = re.findall(r"^  ([a-z-]+) ", HELP, re.MULTILINE)


def test_ci_makes_every_target_or_it_is_run_elsewhere():
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    made = set(re.findall(r"make ([a-z-]+)", script))
    assert not made & set(ELSEWHERE)
    assert set(TARGETS) == {*(made & set(TARGETS)), *ELSEWHERE, "help"}
    assert all((ROOT / place).exists() for place in ELSEWHERE.values())
    # The site is built with its extra alone, before torch is there to be imported.
    assert script.index("make theory") < script.index("make networks")


def read(name):
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def test_workflows_run_targets_and_what_ci_runs():
    jobs = {
        name: job
        for file in ("tests.yml", "pages.yml", "nightly.yml")
        for name, job in read(f".github/workflows/{file}")["jobs"].items()
    }
    steps = {step["run"] for job in jobs.values() for step in job["steps"] if "run" in step}
    assert steps <= {".ci/run", *(f"make {target}" for target in TARGETS)}
    assert {".ci/run", "make test-tool", "make wheel"} <= steps
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    versions = [line.rpartition(" ")[2] for line in project["classifiers"] if " 3." in line]
    assert jobs["tool"]["strategy"]["matrix"]["python-version"] == versions
    assert project["requires-python"] == f">={versions[0]}"


@pytest.mark.parametrize(
    ("subject", "taken"),
    [
        ("theory: a picture of the floors\n\nAnd why.", True),
        ("tests, llm: what the suite found", True),
        ("Merge branch 'main'", True),
        ("a picture of the floors", False),
        ("theory: " + "x" * 64, True),
        ("theory: " + "x" * 65, False),
        ("Theorem 2\ntheory: the room stands in the second line", False),
    ],
)
def test_a_subject_begins_with_its_room_and_is_short(subject, taken):
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    hook = next(hook for hook in repository["hooks"] if hook["id"] == "subject")
    # As pygrep reads it with --multiline; --negate refuses what does not match.
    assert hook["args"] == ["--multiline", "--negate"]
    assert bool(re.search(hook["entry"], subject, re.MULTILINE | re.DOTALL)) == taken
