"""One Hypothesis profile for all: the same examples at every run, and no clock."""

from __future__ import annotations

import os
import sys

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


def pytest_terminal_summary(terminalreporter):
    """Say how many of the planted mutants the decider refuted."""
    killed = planted = 0
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            if any(name == "mutant" for name, _ in getattr(report, "user_properties", ())):
                planted += 1
                killed += outcome == "passed"
    if planted:
        terminalreporter.write_line(f"mutants of the code: killed {killed} of {planted}")
