"""The runner of errors: each error has its own process, with one changed line in the program.

The process imports nothing of the program before the error is planted, and no file is changed: the module
with the error is compiled from its changed text when it is imported. Each claim is enumerated first; if
no enumeration refutes it, each is run as by ``verify``.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.machinery import SourceFileLoader
from io import StringIO
from itertools import chain, product
from multiprocessing import active_children, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType
from typing import Any

from .errors import ENGINES, ROOT, SUITE, PlantedError

__all__ = ["ask", "plant", "run_errors", "source_of"]

BLOCKS = Path("results/mutants")
"""The folder with the true program's blocks."""

LIMIT_SECONDS = 900
"""The longest time of one process, in seconds."""

ORDER = ("REFUTED", "ERROR", "INCONCLUSIVE", "CONFIRMED")
"""The verdicts in order: an error gets the first of these that a claim gives."""

PARTS = 8
"""The number of parts of a claim's checks, each spread over it; usually the first one refutes."""

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["numba", "numpy", "pandas", "scipy.stats", "sklearn.datasets"])

Answer = dict[str, str]
"""The verdict on an error or on the true program: its ``verdict`` (REFUTED, CONFIRMED, INCONCLUSIVE,
ERROR, TIMEOUT), the ``stem`` and ``engine`` that give it, and if refuted, the kind of evidence ``by`` which
(exact, simulation, control, test; design, if a formula fails) and the ``check``."""


def source_of(root: Path = ROOT) -> str:
    """A digest of the program, without the errors and the code that plants them."""
    state = hashlib.sha256()
    files = [*root.glob("ustat_pg/**/*"), *root.glob("simulations/**/*")]
    for file in sorted(files):
        if file.suffix in (".py", ".toml") and file.parent.name != "mutants":
            state.update(file.relative_to(root).as_posix().encode())
            state.update(file.read_bytes())
    return state.hexdigest()[:16]


def run_errors(
    errors: Sequence[PlantedError], size: str, engine: str, workers: int
) -> Iterator[tuple[PlantedError, Answer]]:
    """The errors with the answer on each, as they finish, by enumeration only or up to an engine."""
    pool = ThreadPoolExecutor(workers)
    futures = {}
    for error in errors:
        stems, ways = error.stems, error.engines
        if engine == SUITE:
            enumerated = stems if ENGINES[0] in ways else ()
            stems, ways = (*enumerated, *error.tests) or stems, (engine,)
        else:
            ways = ways[: ways.index(engine) + 1]
        futures[pool.submit(ask, error, stems, size, ways)] = error
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in active_children():
            process.kill()


def ask(
    error: PlantedError | None, stems: Sequence[str], size: str, engines: Sequence[str]
) -> Answer:
    """The answer of a process on an error, or on the true program; it is killed after a time limit."""
    from ..evidence.store import makers

    file = ROOT / (error.file if error else "")
    answer = {"verdict": "ERROR", "stem": stems[0], "engine": engines[-1], "by": "", "check": ""}
    receiver, sender = CONTEXT.Pipe(duplex=False)
    with TemporaryDirectory(prefix="mutant-") as folder:
        # Blocks that the error changes are not stored with the true program's blocks.
        blocks = Path(folder) if file in makers() or "llm" in file.parts else BLOCKS
        kept = folder if file in _bodies() else None
        arguments = (sender, error, stems, size, engines, blocks, kept)
        process = CONTEXT.Process(target=run_apart, args=arguments, daemon=True)
        process.start()
        sender.close()
        try:
            if receiver.poll(LIMIT_SECONDS):
                return answer | receiver.recv()
            return answer | {"verdict": "TIMEOUT", "check": f"after {LIMIT_SECONDS} s"}
        except EOFError:
            return answer | {"check": "its process died"}
        finally:
            process.kill()
            process.join()


@cache
def _bodies() -> tuple[Path, ...]:
    """The files with compiled bodies, and all files that these import."""
    from ustat_pg.files.digests import imported, sources_of

    files = [*ROOT.glob("ustat_pg/**/*.py"), *ROOT.glob("simulations/**/*.py")]
    compiled = ROOT / "ustat_pg/execution/compiled.py"
    return sources_of(*(file for file in files if compiled in imported(file)))


def plant(error: PlantedError) -> None:
    """Make imports of an error's module include the error."""
    module = error.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    assert module not in sys.modules, f"{module} is imported already: its error would go unseen"
    true = SourceFileLoader.get_code

    def get_code(self: Any, fullname: str) -> CodeType | None:
        if Path(self.path).resolve() != ROOT / error.file:
            return true(self, fullname)
        return compile(error.source, self.path, "exec")

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def run_apart(
    sender: Connection,
    error: PlantedError | None,
    stems: Sequence[str],
    size: str,
    engines: Sequence[str],
    blocks: Path,
    cache: str | None,
) -> None:
    """Send the first refutation, or the most doubtful verdict of the last engine."""
    if cache is not None:
        import_module("numba").config.CACHE_DIR = cache
    # A wrong formula may divide by 0.
    warnings.simplefilter("ignore")
    if error is not None:
        plant(error)
    answers: list[Answer] = []
    for engine, stem in product(engines, stems):
        try:
            tested = stem.startswith("tests/")
            by = ENGINES[0] if engine == SUITE else engine
            answer = _tested(stem) if tested else _verdict(stem, size, by, blocks)
        except Exception as stop:
            answer = {"verdict": "ERROR", "check": f"{type(stop).__name__}: {stop}"}
        answers.append({"stem": stem, "engine": engine, **answer})
        if answer["verdict"] == "REFUTED":
            break
    last = (answer for answer in answers if answer["engine"] == engine)
    sender.send(min(last, key=lambda answer: ORDER.index(answer["verdict"])))


def _tested(file: str) -> Answer:
    """The verdict of a file of tests: REFUTED by the first that fails."""
    import pytest

    class Failures(list[str]):
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            self.extend([report.nodeid] if report.failed else [])

    failed = Failures()
    with redirect_stdout(StringIO()):
        words = ["-x", "-q", "-p", "no:cacheprovider", "--core", str(ROOT / file)]
        code = pytest.main(words, [failed])
    if code == pytest.ExitCode.OK:
        return {"verdict": "CONFIRMED"}
    if failed:
        return {"verdict": "REFUTED", "by": "test", "check": failed[0]}
    return {"verdict": "ERROR", "check": f"{file}: {code!r}"}


def _verdict(stem: str, size: str, engine: str, blocks: Path) -> Answer:
    """A claim's verdict, and the refuting evidence if it is refuted; enumeration first checks it in parts."""
    from .. import ON_LANGUAGE_MODELS, Suite
    from ..evidence import Options, Store, run_claims
    from ..evidence.planted import run_controls
    from ..evidence.report import exit_code
    from ..processes import designs

    how, store = Options(size, engine), Store(blocks)
    kind = "language-model" if stem in ON_LANGUAGE_MODELS else "bandit"
    # Each process uses its own pools, because an error may change a pool.
    made, _, failed = designs([stem], Suite(size, 0, kind), figures=False)
    parts = [
        [replace(claim, checks=claim.checks[first::PARTS])]
        for claim in made
        for first in range(PARTS if engine == "exact" else 0)
    ]
    for claims in (*parts, made):
        run = run_claims(claims, how, store)
        for check in chain.from_iterable(claim.checks for claim in run.claims):
            for by, findings in check.findings.items():
                if findings.verdict == "REFUTED":
                    return {"verdict": "REFUTED", "by": by, "check": check.name}
    run = run.with_failed(failed)
    controls = run_controls(made, how)
    if exit_code(run.claims, controls) != 1:
        return {"verdict": str(run.claims[0].verdict)}
    seen = [("design", why) for why in failed.values()]
    seen += [("control", f"{each.name}: {each.said}") for each in controls if not each.held]
    return {"verdict": "REFUTED", "by": seen[0][0], "check": seen[0][1]}
