"""One Hypothesis profile for all: the same examples at every run, and no clock. Slow is what was measured."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("search", deadline=None, print_blob=True)
# Random examples are asked for by name; CI never draws any.
asked = "ci" if os.environ.get("CI") else os.environ.get("HYPOTHESIS_PROFILE", "ci")
settings.load_profile(asked)


@pytest.fixture(autouse=True)
def _one_torch_thread():
    """Several workers share the cores; torch is asked only where a test has loaded it."""
    if (torch := sys.modules.get("torch")) is not None and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


SLOW = Path(__file__).with_name("slow.txt")
"""The test functions that take more than SECONDS, all their cases together."""

SECONDS = 2.0


def pytest_addoption(parser):
    text = f"measure which tests are slow and write them to tests/{SLOW.name}"
    parser.addoption("--measure", action="store_true", help=text)


def pytest_collection_modifyitems(items):
    slow = set(SLOW.read_text(encoding="utf-8").split())
    for item in items:
        if item.nodeid.partition("[")[0] in slow:
            item.add_marker("slow")


def pytest_terminal_summary(terminalreporter, config):
    """Say how many of the planted mutants the decider refuted; keep which tests are slow."""
    if config.getoption("measure"):
        seconds = Counter()
        for report in (each for found in terminalreporter.stats.values() for each in found):
            if hasattr(report, "duration"):
                seconds[report.nodeid.partition("[")[0]] += report.duration
        unseen = set(SLOW.read_text(encoding="utf-8").split()) - set(seconds)
        slow = {name for name, took in seconds.items() if took > SECONDS}
        SLOW.write_text("".join(f"{name}\n" for name in sorted(unseen | slow)), encoding="utf-8")
    killed = planted = 0
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            if any(name == "mutant" for name, _ in getattr(report, "user_properties", ())):
                planted += 1
                killed += outcome == "passed"
    if planted:
        terminalreporter.write_line(f"mutants of the code: killed {killed} of {planted}")
