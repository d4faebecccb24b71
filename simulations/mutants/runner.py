"""The runner of errors: each has a process of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from ustat_pg.compiled import bodies
from ustat_pg.experiment.store import makers

from .errors import ROOT, PlantedError
from .planted import answer

__all__ = ["Found", "run_errors", "source_of"]

BLOCKS = Path("results/mutants")
"""The folder with the true program's blocks."""

LIMIT_SECONDS = 900
"""The most that one process may take."""

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["numba", "numpy", "pandas", "scipy.stats", "sklearn.datasets"])


@dataclass(frozen=True)
class Found:
    """What became of one error, or of the true program.

    Arguments:
        verdict: REFUTED, CONFIRMED, INCONCLUSIVE, ERROR or TIMEOUT.
        stem: claim that said so, the first that refutes.
        engine: way of running it: exact, or cpu, which simulates too.
        by: what refutes: exact, simulation, control, or design, where a formula fails.
        check: check that refutes, or what an error of the program says.
    """

    verdict: str
    stem: str = ""
    engine: str = ""
    by: str = ""
    check: str = ""


def source_of(root: Path = ROOT) -> str:
    """A digest of the program, but for the errors and what plants them."""
    state = hashlib.sha256()
    for room in ("ustat_pg", "simulations"):
        for file in sorted((root / room).rglob("*")):
            if file.suffix in (".py", ".toml") and file.parent.name != "mutants":
                state.update(file.relative_to(root).as_posix().encode())
                state.update(file.read_bytes())
    return state.hexdigest()[:16]


def run_errors(
    errors: Sequence[PlantedError], size: str, engines: Sequence[str], workers: int
) -> Iterator[tuple[PlantedError, Found]]:
    """Errors, as they come, with what became of each."""

    def settled(error: PlantedError) -> Found:
        for engine in (engine for engine in error.engines if engine in engines):
            found = ask(error, error.stems, size, engine)
            if found.verdict == "REFUTED" or stopped.is_set():
                break
        return found

    pool, stopped = ThreadPoolExecutor(workers), Event()
    futures = {pool.submit(settled, error): error for error in errors}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
        for process in active_children():
            process.kill()


def ask(error: PlantedError | None, stems: Sequence[str], size: str, engine: str) -> Found:
    """What a process says of an error, or of the true program; it is killed after its time."""
    file = ROOT / (error.file if error else "")
    receiver, sender = CONTEXT.Pipe(duplex=False)
    with TemporaryDirectory(prefix="mutant-") as folder:
        # What the error changes is not kept beside the true program's.
        blocks = Path(folder) if file in makers() or "llm" in file.parts else BLOCKS
        cache = Path(folder) if file in bodies() else None
        asked = (sender, error, stems, size, engine, blocks, cache)
        process = CONTEXT.Process(target=answer, args=asked, daemon=True)
        process.start()
        sender.close()
        try:
            if receiver.poll(LIMIT_SECONDS):
                found = Found(**receiver.recv())
                process.join()
                return found
            return Found("TIMEOUT", stems[0], engine, check=f"after {LIMIT_SECONDS} s")
        except EOFError:
            return Found("ERROR", stems[0], engine, check="its process died")
        finally:
            process.kill()
            process.join()
