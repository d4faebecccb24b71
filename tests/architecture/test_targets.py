"""What CI and a commit's hook ask: workflows call targets that exist, on the oldest and the newest Python."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

HELP = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
TARGETS = re.findall(r"^  ([a-z-]+) ", HELP, re.MULTILINE)


def read(name):
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def test_workflows_run_targets_and_what_ci_runs():
    jobs = {
        name: job
        for file in ("tests.yml", "pages.yml", "nightly.yml")
        for name, job in read(f".github/workflows/{file}")["jobs"].items()
    }
    steps = {step["run"] for job in jobs.values() for step in job["steps"] if "run" in step}
    nightly = "make ${{ matrix.target }}"
    assert steps <= {".ci/run", nightly, *(f"make {target}" for target in TARGETS)}
    assert set(jobs["nightly"]["strategy"]["matrix"]["target"]) <= set(TARGETS)
    assert {".ci/run", "make test", "make wheel"} <= steps
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    versions = [line.rpartition(" ")[2] for line in project["classifiers"] if " 3." in line]
    assert jobs["core"]["strategy"]["matrix"]["python-version"] == [versions[0], versions[-1]]
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
