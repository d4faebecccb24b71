"""Every make target is run: by CI, before what it does not need is there, or by tests of what it calls."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

ELSEWHERE = {
    "llm": "tests/simulations/language_models/test_studies.py",
    "benchmarks": "tests/benchmarks",
    "test-fast": ".ci/run",  # a part of `make test`
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
