"""Runs of claims in parallel, each in its own process, with the points of its figures.

Designs, enumerations and decisions hold the interpreter lock, so threads of one process would wait for each
other. The processes share only the store, so finished work is kept.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import active_children, connection, get_context, parent_process
from pathlib import Path
from threading import Thread
from traceback import extract_tb
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

import ustat_pg

from . import claim, curves
from .evidence import Claim, LostWorkers, Options, Point, Run, Store, run_claims, run_points
from .evidence.curves import tidy
from .evidence.executors import loss
from .evidence.work import bar

if TYPE_CHECKING:
    import pandas as pd

    from .evidence.executors import Cluster
    from .problems import Suite

__all__ = ["Settled", "designs", "processes_of", "settle", "settle_apart"]

HERE = Path(__file__).parent
LIBRARY = Path(ustat_pg.__file__).parent
FORMULAS = {
    *("predictions", "estimators", "ustatistics", "distributions", "moments", "problems"),
    *("evidence", "interior_problems"),
}
"""Packages for which an error in the design of a claim refutes the claim, on the suite's own problems."""

MACHINERY = {"evidence", "engines", "interior_problems"}
"""Packages of the experiments that are not claims."""

THREADS = {"cuda": 4}
"""Threads of each process by engine (default: one): blocks of one process run on a device in parallel, blocks
of several processes take turns.
"""

PATIENCE_SECONDS = 20.0
"""The seconds that a process without parent has to finish its block."""


@dataclass(frozen=True)
class Settled:
    """Claims with their verdicts, and the measured points of their figures, with a row each."""

    run: Run
    points: pd.DataFrame


def settle(
    stems: Sequence[str],
    suite: Suite,
    options: Options,
    folder: Path,
    cluster: Cluster | None = None,
) -> Settled:
    """Settle claims in this process, or with blocks on a cluster, and measure the points of their figures."""
    store = Store(folder)
    designed, shown, failed = designs(stems, suite)
    run = run_claims(designed, options, store, cluster).with_failed(failed)
    # Each claim runs alone, so a block's content is the same to the last bit.
    drawn = {name: number for plan in run.plans for name, number in plan.replications.items()}
    points = tidy([run_points(claim, options, store, cluster, drawn) for claim in shown])
    return Settled(run, points)


def processes_of(stems: Sequence[str], options: Options) -> int:
    """The number of processes for claims."""
    return min(max(options.workers // THREADS.get(options.engine, 1), 1), len(stems))


def settle_apart(stems: Sequence[str], suite: Suite, options: Options, folder: Path) -> Settled:
    """Run each claim in one of several processes.

    Raises:
        LostWorkers: a process died; finished blocks are kept, and the same call continues.
    """
    count = processes_of(stems, options)
    share = replace(options, workers=options.workers // count, progress=False)
    start, others = time.perf_counter(), set(active_children())
    pool = ProcessPoolExecutor(count, get_context("spawn"), _obey)
    try:
        futures = [pool.submit(settle, [stem], suite, share, folder) for stem in stems]
        with bar("claims", len(stems), options.progress) as shown:
            for future in as_completed(futures):
                future.result()
                shown.update()
        parts = [future.result() for future in futures]
    except BaseException as error:
        for child in set(active_children()) - others:
            child.terminate()
        if (message := loss(error)) is not None:
            raise LostWorkers(message) from error
        raise
    finally:
        # When a run stops, running blocks are finished and kept.
        pool.shutdown(cancel_futures=True)
    runs = [part.run for part in parts]
    run = Run(
        tuple(claim for run in runs for claim in run.claims),
        tuple(plan for run in runs for plan in run.plans),
        time.perf_counter() - start,
        tuple(dict.fromkeys(file for run in runs for file in run.set_aside)),
    )
    return Settled(run, tidy([part.points for part in parts]))


def _obey() -> None:
    """Leave interruptions to the parent process, and end when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "only a child process has one to wait for"
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    # A process that waits for work at that point would wait forever.
    time.sleep(PATIENCE_SECONDS)
    os._exit(1)


def designs(
    stems: Sequence[str], suite: Suite, *, figures: bool = True
) -> tuple[list[Claim], list[Sequence[Point]], dict[str, str]]:
    """The claims, the points of their figures (empty unless requested), and by stem the failures of claims
    without a design.
    """
    made: list[Claim] = []
    points: list[Sequence[Point]] = []
    failed: dict[str, str] = {}
    for stem in stems:
        try:
            # The number of threads that add up a product changes its last digits.
            with threadpool_limits(1):
                designed = claim(stem, suite).made()
                shown = curves(stem, suite) if figures else ()
        except Exception as error:
            message = _formula_error(error)
            if message is None:
                raise
            failed[stem] = message
        else:
            made.append(designed)
            points.append(shown)
    return made, points, failed


def _formula_error(error: Exception) -> str | None:
    """The failure in words if a formula of the library raised the error; else None."""
    frames = [(Path(frame.filename), frame) for frame in extract_tb(error.__traceback__)]
    rooms = [_room(path) for path, _ in frames]
    last = max(
        place
        for place, (path, _) in enumerate(frames)
        if HERE in path.parents and rooms[place] not in MACHINERY
    )
    called = [frame for frame, room in list(zip(frames, rooms, strict=True))[last + 1 :] if room]
    if not FORMULAS & set(rooms[last + 1 :]):
        return None
    path, place = frames[last]
    return (
        f"{called[0][1].name} raised {type(error).__name__}: {error} "
        f"(asked in simulations/{path.relative_to(HERE)}, line {place.lineno}, {place.name})"
    )


def _room(path: Path) -> str:
    """The package of a file of this project; "" for other files."""
    for root in (HERE, LIBRARY):
        if root in path.parents:
            return path.relative_to(root).with_suffix("").parts[0]
    return ""
