"""One Hypothesis profile for all: the same examples at every run, and no clock. Slow is what was measured."""

import doctest
import fcntl
import gc
import os
import runpy
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

# Several workers share the cores: threads of linear algebra would wait for one another, here and in all
# processes that tests start. Read when NumPy and torch are loaded, which is later. Who asks for more gets it.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

from numba.core import event  # noqa: E402

from tests.support.hidden import hidden  # noqa: E402

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("search", deadline=None, print_blob=True)
# Random examples are asked for by name; CI never draws any.
asked = "ci" if os.environ.get("CI") else os.environ.get("HYPOTHESIS_PROFILE", "ci")
settings.load_profile(asked)

ROOT = Path(__file__).resolve().parents[1]

SLOW = Path(__file__).with_name("slow.txt")
"""The test functions that take more than SECONDS, with all their cases and their part of shared fixtures."""

SECONDS, UNIT = 1.0, 0.1
"""Processor seconds on one machine, UNIT those of the work of :func:`pace`."""

TIMES, DEAR = 10.0, 4.0
"""A function that is not in SLOW fails a run where it takes more than so many times SECONDS: compiling, which
no pace tells, and other processors spread what is measured. A fixture of more seconds than DEAR is no one's
part.
"""

POWER = (
    *("tests/agreement/test_gradients.py", "tests/agreement/test_whole_runs.py"),
    *("tests/distributions/test_weighted_chi2.py", "tests/engines/gradients/"),
    *("tests/power/test_false_alarms.py", "tests/predictions/test_large_groups.py"),
    *("tests/predictions/test_lengths.py", "tests/test_independent"),
    "tests/simulations/evidence/test_laws.py::test_an_interval_holds_the_truth",
    "tests/simulations/evidence/test_planted.py::test_a_sound_program_passes_its_controls",
    "tests/simulations/proof/test_prove.py::test_so_it_is_beyond_the_paper",
    "tests/simulations/test_main.py::test_every_claim_is_confirmed_and_every_rival_refuted",
)
"""Slow functions, by how their names begin, that ``make test`` asks all the same: they refuse planted errors
(``simulations/mutants``) that nothing fast refuses.
"""

OTHERS = (
    *("torch", "transformers", "trl", "datasets", "peft", "accelerate", "tokenizers"),
    *("safetensors", "math_verify", "gguf", "distributed", "sphinx", "myst_nb", "selenium"),
    *("py_mini_racer", "IPython", "ruff"),
)
"""What neither the core nor the extra ``tests`` installs."""

PASSED = "ustat_pg/core"
"""Where pytest keeps the names of the tests that --core has passed."""

SHARED = {}
"""Seconds that a fixture took which several tests share, by name."""

COMPILING = event.TimingListener()
"""Numba's seconds: what a cold cache costs is no test's own."""

REPORTS, LEFT, STALE = pytest.StashKey[list](), pytest.StashKey[int](), pytest.StashKey[list]()
"""The reports of the run, how many tests are left to others, and what SLOW lacks."""


def pytest_addoption(parser):
    text = f"measure which tests are slow and write them to tests/{SLOW.name}"
    parser.addoption("--measure", action="store_true", help=text)
    text = "what is not slow or is marked power, as where the core and the extra tests alone are installed"
    parser.addoption("--core", action="store_true", help=text)
    text = "leave out what the last run of --core has passed"
    parser.addoption("--rest", action="store_true", help=text)


def pytest_configure(config):
    event.register("numba:compile", COMPILING)
    config.stash[REPORTS], config.stash[LEFT], config.stash[STALE] = [], 0, []
    config.pluginmanager.register(Everywhere(config.stash[REPORTS]))
    if config.getoption("core"):
        config.option.markexpr = "not slow or power"
        folder = TemporaryDirectory(prefix="core-")
        config.add_cleanup(folder.cleanup)
        # For the processes that tests start, and for this one.
        os.environ["PYTHONPATH"] = hidden(Path(folder.name), *OTHERS)
        runpy.run_path(f"{folder.name}/hidden/sitecustomize.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    if config.getoption("rest"):
        passed = set(config.cache.get(PASSED, []))
        config.hook.pytest_deselected(items=[each for each in items if each.nodeid in passed])
        items[:] = [each for each in items if each.nodeid not in passed]
    known = set(SLOW.read_text(encoding="utf-8").split())
    for item in items:
        if item.nodeid.partition("[")[0] in known:
            item.add_marker("slow")
            if item.nodeid.startswith(POWER):
                item.add_marker("power")
    # One worker makes the run that these read, while the others go on with the rest; a browser's hundreds of
    # pages are not left to the end, when one worker waits for the other.
    first = {"whole_run", "browser"}
    items.sort(key=lambda item: first.isdisjoint(getattr(item, "fixturenames", ())))


def pytest_collection_finish():
    # Trainers collect garbage at each end: of what was made since, not of all that was imported.
    gc.collect()
    gc.freeze()


def pytest_deselected(items):
    for item in items:
        item.config.stash[LEFT] += 1


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    left = getattr(node, "workeroutput", {}).get("left", 0)
    node.config.stash[LEFT] = max(node.config.stash[LEFT], left)


@pytest.fixture(scope="session")
def run_of(tmp_path_factory, pytestconfig):
    """A function of a kind of problem to the folder of a run of every claim on it at size smoke: that which
    USTAT_RUN names, with the kind at its end, where there is one; else one that all workers share, by
    enumeration on networks and under ``make test``.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(on="bandit"):
        folder = "whole_run" if on == "bandit" else f"whole_run-{on}"
        ready = os.environ.get("USTAT_RUN", "")
        there = Path(ready + folder.removeprefix("whole_run")).resolve()
        if ready and (there / "verdicts.json").exists():
            return there
        engine = "exact" if on != "bandit" or pytestconfig.getoption("core") else "cpu"
        words = ["verify", "--on", on, "--size", "smoke", "--engine", engine, "--workers", "1"]
        with (base / f"{folder}.txt").open("a+") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            if not log.tell():
                words = [sys.executable, "-m", "simulations", *words, "--out", str(base / folder)]
                done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
                print(done.returncode, done.stderr, sep="\n", file=log, flush=True)
            log.seek(0)
            status, _, said = log.read().partition("\n")
        assert status == "0", said
        return base / folder

    return made


@pytest.fixture(scope="session")
def whole_run(run_of):
    """The run of every claim on bandits."""
    return run_of()


def spent():
    """Processor seconds of this process and of those it waited for, less Numba's: nearly the same on a busy
    machine.
    """
    return sum(os.times()[:4]) - (COMPILING.duration if COMPILING.done else 0.0)


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


def measured(reports, shared=True):
    """Seconds of each test function, with its part of the fixtures that it shares with others or without."""
    alone, needed = Counter(), {}
    for report in reports:
        name, text = report.nodeid.partition("[")[0], dict(report.user_properties)
        if "call" not in text:
            # The report of a part of a test.
            continue
        alone[name] += text["setup"] + text["call"]
        needed.setdefault(name, {}).update(text["needed"])
    if not shared:
        return dict(alone)
    users = Counter(fixture for each in needed.values() for fixture in each)
    return {
        # A dear fixture is whole each user's: any of them alone would pay for it.
        name: took + sum(c if c > DEAR else c / users[f] for f, c in needed[name].items())
        for name, took in alone.items()
    }


class Everywhere:
    """Hooks for doctests too, which stand in folders where this file is not read."""

    def __init__(self, reports):
        self.reports = reports

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector):
        """A file that cannot be imported without what is not installed is skipped."""
        report = yield
        error, modules = report.call.excinfo and report.call.excinfo.value, []
        while error is not None:
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
            modules += [f.f_globals["__name__"] for f in frames if f.f_code.co_name == "<module>"]
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if (missing or "").partition(".")[0] in OTHERS:
                report.outcome = "skipped"
                report.longrepr = (str(collector.path), 0, f"{missing} is not installed")
                # pytest leaves them half made, for other files to import.
                for name in modules:
                    sys.modules.pop(name, None)
                break
            error = error.__cause__ or error.__context__
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        """So is an example that imports it."""
        try:
            return (yield)
        except doctest.UnexpectedException as stopped:
            error = stopped.exc_info[1]
            if isinstance(error, ModuleNotFoundError) and error.name in OTHERS:
                pytest.skip(f"{error.name} is not installed")
            raise

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.reports.append(report)


def pace():
    """How many times slower this machine is, at least 1, than the one that UNIT is of."""
    took = []
    for _ in range(5):
        start = time.process_time()
        sum(map(abs, range(3_000_000)))
        took.append(time.process_time() - start)
    return max(median(took) / UNIT, 1.0)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """A slow function that SLOW does not name fails the run; ``--measure`` writes it there."""
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["left"] = config.stash[LEFT]
        return
    if config.getoption("core") and hasattr(config, "cache"):
        config.cache.set(PASSED, [report.nodeid for report in config.stash[REPORTS]])
    reports, known = config.stash[REPORTS], set(SLOW.read_text(encoding="utf-8").split())
    most = SECONDS * pace()
    if config.getoption("measure"):
        seconds = measured(reports)
        unseen, found = known - seconds.keys(), {n for n, took in seconds.items() if took > most}
        SLOW.write_text("".join(f"{name}\n" for name in sorted(unseen | found)), encoding="utf-8")
        return
    # Some files are slow as a whole.
    known |= {each.nodeid.partition("[")[0] for each in reports if "slow" in each.keywords}
    # Fixtures are timed by the clock, which says nothing on a busy machine.
    config.stash[STALE] = [
        f"{name} took {took:.1f} processor seconds, {TIMES * most:.1f} are allowed"
        for name, took in sorted(measured(reports, shared=False).items())
        if name not in known and took > TIMES * most
    ]
    if config.stash[STALE]:
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    """What SLOW lacks, and what this run leaves out."""
    for line in config.stash[STALE]:
        terminalreporter.write_line(
            f"tests/{SLOW.name} is stale: {line} (pytest --measure)", red=True
        )
    if config.getoption("core"):
        terminalreporter.write_line(
            f"Left to make test-all: {config.stash[LEFT]} slow tests, claims by simulation, and what needs "
            "torch, a browser or the site."
        )
