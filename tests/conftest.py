"""One Hypothesis profile for all: the same examples at every run, and no clock. Slow is what was measured."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("search", deadline=None, print_blob=True)
# Random examples are asked for by name; CI never draws any.
asked = "ci" if os.environ.get("CI") else os.environ.get("HYPOTHESIS_PROFILE", "ci")
settings.load_profile(asked)


# Several workers share the cores: threads of linear algebra would wait for one another, here and in all
# processes that tests start. Read when NumPy and torch are loaded, which is later. Who asks for more has them.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")


SLOW = Path(__file__).with_name("slow.txt")
"""The test functions that take more than SECONDS, with all their cases and their part of shared fixtures."""

SECONDS = 1.0

SHARED = {}
"""Seconds that a fixture took which several tests share, by name."""


def pytest_addoption(parser):
    text = f"measure which tests are slow and write them to tests/{SLOW.name}"
    parser.addoption("--measure", action="store_true", help=text)


def pytest_collection_modifyitems(items):
    slow = set(SLOW.read_text(encoding="utf-8").split())
    for item in items:
        if item.nodeid.partition("[")[0] in slow:
            item.add_marker("slow")


def spent():
    """Processor seconds of this process and of those it waited for: nearly the same on a busy machine."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    # By the clock: what works in the background is waited for and not counted.
    start = time.perf_counter()
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            SHARED[fixturedef.argname] = time.perf_counter() - start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    """Whichever test comes first pays for a fixture; what each needs is told here."""
    before, start = dict(SHARED), spent()
    try:
        return (yield)
    finally:
        paid = [took for name, took in SHARED.items() if before.get(name) != took]
        item.user_properties.append(("setup", max(spent() - start - sum(paid), 0.0)))
        needed = {name: SHARED[name] for name in item.fixturenames if name in SHARED}
        item.user_properties.append(("needed", needed))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    start = spent()
    try:
        return (yield)
    finally:
        item.user_properties.append(("call", spent() - start))


def measured(reports):
    """Seconds of each test function, with its part of the fixtures that it shares with others."""
    alone, needed = Counter(), {}
    for report in reports:
        name, text = report.nodeid.partition("[")[0], dict(report.user_properties)
        if "call" not in text:
            # The report of a part of a test.
            continue
        alone[name] += text["setup"] + text["call"]
        needed.setdefault(name, {}).update(text["needed"])
    users = Counter(fixture for each in needed.values() for fixture in each)
    return {
        name: took + sum(cost / users[fixture] for fixture, cost in needed[name].items())
        for name, took in alone.items()
    }


def pytest_terminal_summary(terminalreporter, config):
    """Keep which tests are slow."""
    if config.getoption("measure"):
        reports = (each for result in terminalreporter.stats.values() for each in result)
        seconds = measured(each for each in reports if getattr(each, "when", "") == "call")
        unseen = set(SLOW.read_text(encoding="utf-8").split()) - set(seconds)
        slow = {name for name, took in seconds.items() if took > SECONDS}
        SLOW.write_text("".join(f"{name}\n" for name in sorted(unseen | slow)), encoding="utf-8")
