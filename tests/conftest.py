"""One Hypothesis profile for all: the same examples at every run, and no clock. Slow is what was measured."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("search", deadline=None, print_blob=True)
# Random examples are asked for by name; CI never draws any.
asked = "ci" if os.environ.get("CI") else os.environ.get("HYPOTHESIS_PROFILE", "ci")
settings.load_profile(asked)


# Several workers share the cores: threads of linear algebra would wait for one another, here and in all
# processes that tests start. Read when NumPy and torch are loaded, which is later.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"


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
