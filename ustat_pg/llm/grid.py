"""Training sweeps over the group size: a grid of TRL runs at a constant budget K = B G.

A sweep is data; a run is one point of its grid, one process, and one folder named by a hash of the
run's configuration::

    OUT/<key>/run.json            the configuration
    OUT/<key>/status.json         running, finished or failed; seconds, versions, what went wrong,
                                  digests of weights, prompts and verifier
    OUT/<key>/evaluations.jsonl   accuracy on the held-out prompts at the checkpoints
    OUT/<key>/training.jsonl      what each step's rewards were
    OUT/<key>/log.txt             what the process said
    OUT/<key>/checkpoints/        where ``save_every`` is set

:meth:`Sweep.run` leaves out finished runs. An interrupted or failed run is taken up again: from its
last checkpoint where ``save_every`` is set, else from the start. A run that fails is reported with
the last lines of its log, and the others go on.

A name stays while what it names changes: a model's folder, a file of prompts, a verifier. So digests
of them stand in ``status.json``. A finished run of other weights, prompts or verifier is neither
skipped nor written over: the sweep is refused, and what differs is named. An unfinished one begins
anew. One folder holds one sweep's settings: runs that differ in more than trainer, budget, group
size and seed are never averaged.

``python -m ustat_pg.llm.sweep OUT/<key>/run.json`` is one run by hand.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from ..reading import read_yaml
from ..validation import InputError, integer
from .budgets import refuse_group_size
from .records import lines, read_status, write, write_status
from .runs import GRID, Run, different, inputs, short_hash
from .training import OURS

__all__ = ["BUSY", "PRESETS", "Outcome", "Sweep", "dry_run", "settle"]

PRESETS = Path(__file__).with_name("presets")
"""Sweeps that ship with the library: the paper's, ``figure5.yaml`` and ``table2.yaml``."""

_TAIL = 20
"""Lines of a failed run's log that are reported."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: ``finished``, ``skipped`` (it was finished before), ``failed`` or
    ``interrupted``.
    """

    run: Run
    status: str
    seconds: float
    message: str = ""


@dataclass(frozen=True)
class Sweep:
    """A grid of runs: what they share, and every trainer at every budget, group size and seed.

    Arguments:
        base: settings of :meth:`~ustat_pg.llm.runs.Run.of` that all runs share.
        grid: values of trainer, budget, group_size and seed, by these names. Runs of one seed see the
            prompts in the same order.

    >>> sweep = Sweep.of({"model": "embedded:base", "held_out": 50, "budget": 32, "max_steps": 10,
    ...     "learning_rate": 1e-3, "grid": {"num_generations": [4, 8], "seed": [0, 1]}})
    >>> [(run.group_size, run.seed) for run in sweep.plan()]
    [(4, 0), (4, 1), (8, 0), (8, 1)]
    """

    base: dict[str, Any]
    grid: Mapping[str, Sequence[Any]]

    @classmethod
    def of(cls, *settings: Mapping[str, Any]) -> Sweep:
        """The sweep of these settings, of which later ones go before earlier.

        Arguments:
            settings: those of a run, by our names or TRL's. Of trainer, budget, group_size and seed
                there may be lists, or they may stand under ``grid``.

        Raises:
            InputError: the grid is none, or is over something else.
        """
        base: dict[str, Any] = {}
        grid: dict[str, Sequence[Any]] = {}
        for layer in settings:
            given = {OURS.get(name, str(name)): value for name, value in layer.items()}
            over = given.pop("grid", {})
            if not isinstance(over, Mapping) or {OURS.get(name, name) for name in over} - set(GRID):
                raise InputError(
                    f"grid is {over!r}: it must have lists for some of {', '.join(GRID)}; for all else "
                    "there are sweeps of their own, in folders of their own"
                )
            given |= {OURS.get(name, name): value for name, value in over.items()}
            for name, value in given.items():
                if name == "options":
                    base[name] = {**base.get(name, {}), **(value or {})}
                elif name in GRID and isinstance(value, list | tuple):
                    grid[name] = tuple(value)
                    base.pop(name, None)
                else:
                    base[name] = value
                    grid.pop(name, None)
        return cls(base, grid)

    @classmethod
    def read(cls, path: str | Path, *changes: Mapping[str, Any]) -> Sweep:
        """The sweep of a YAML file, with changes.

        >>> len(Sweep.read(PRESETS / "figure5.yaml").plan())
        30

        Raises:
            InputError: the file cannot be read, or has no settings.
        """
        found = read_yaml(Path(path))
        if not isinstance(found, dict):
            raise InputError(f"{path} has no settings: it must have lines such as model: NAME")
        return cls.of(found, *changes)

    def plan(self) -> tuple[Run, ...]:
        """The runs, in order: trainers, budgets, group sizes, seeds.

        Raises:
            InputError: a group size that its budget cannot hold, with those that it can; anything
                else that a run refuses; an empty or repeated grid.
        """
        names = [name for name in GRID if name in self.grid]
        for name in names:
            values = self.grid[name]
            if not values or len(set(map(repr, values))) < len(values):
                raise InputError(f"{name} is {values!r}: give at least one, and none twice")
        points = product(*(self.grid[name] for name in names))
        return tuple(
            Run.of({**self.base, **dict(zip(names, point, strict=True))}) for point in points
        )

    def prepare(self, out: str | Path) -> tuple[tuple[Run, ...], dict[str, str]]:
        """The runs, and digests of what they read; refuses what :meth:`run` does."""
        plan = self.plan()
        task, held = plan[0].tasks()
        for run in plan:
            # Only group size and budget matter to what a task is checked for.
            refuse_group_size(run.group_size, run.budget, len(task.prompts))
        read = inputs(plan[0], task, held)
        _refuse_others(Path(out), plan, read)
        return plan, read

    def commands(self, out: str | Path) -> list[str]:
        """Shell commands of the runs that are not finished, for other machines; the folder is made.

        Arguments:
            out: as for :meth:`run`, which refuses the same.
        """
        plan, _ = self.prepare(out)
        found = []
        for run in plan:
            folder = Path(out).resolve() / run.key
            if read_status(folder).get("status") != "finished":
                folder.mkdir(parents=True, exist_ok=True)
                write(folder / "run.json", run.text())
                found.append(shlex.join(run.command(folder / "run.json")))
        return found

    def run(
        self,
        out: str | Path,
        workers: int = 1,
        *,
        say: Callable[[str], None] | None = None,
    ) -> tuple[Outcome, ...]:
        """Make the runs that are not finished.

        Arguments:
            out: a folder; that of a former sweep is continued, of the same grid or another, where
                all else is the same.
            workers: how many runs go on at a time.
            say: is told of each run that ends, such as ``print``.

        Returns:
            how each run of the plan ended, in the plan's order.

        Raises:
            InputError: before anything runs: as for :meth:`plan`; a task that cannot be had; fewer
                prompts than a step needs; the folder holds results of other settings, weights,
                prompts or another verifier, and the message names what differs.
        """
        workers = integer("workers", workers)
        plan, read = self.prepare(out)
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        tell = say or (lambda line: None)
        processes: set[subprocess.Popen[bytes]] = set()
        stop = threading.Event()

        def one(number: int, run: Run) -> Outcome:
            outcome = _supervised(run, folder / run.key, read, tell, processes, stop)
            tell(
                f"[{number}/{len(plan)}] {name_of(run)}: {outcome.status}, {outcome.seconds:.0f} s"
            )
            if outcome.message:
                tell(outcome.message)
            return outcome

        with ThreadPoolExecutor(workers) as pool:
            waiting = [pool.submit(one, number, run) for number, run in enumerate(plan, 1)]
            try:
                return tuple(each.result() for each in waiting)
            except BaseException:
                stop.set()
                for each in waiting:
                    each.cancel()
                for process in list(processes):
                    process.terminate()
                raise


def _refuse_others(folder: Path, plan: Sequence[Run], now: Mapping[str, str]) -> None:
    """Refuse a folder whose results could not stand in one table with those of a plan."""
    found: dict[str, list[str]] = {}
    mine, keys = plan[0].constants(), {run.key for run in plan}
    for path in sorted(folder.glob("*/run.json")):
        other, status = Run.read(path), read_status(path.parent)
        trained = any(record["step"] > 0 for record in lines(path.parent / "evaluations.jsonl"))
        theirs = other.constants()
        changed = [
            f"{name} {theirs[name]!r}, not {mine[name]!r}"
            for name in mine
            # As JSON: a tuple is a list once it is written.
            if short_hash(theirs[name]) != short_hash(mine[name])
        ]
        finished = status.get("status") == "finished"
        # An unfinished run of the plan begins anew where it must.
        if finished or (trained and path.parent.name not in keys):
            changed += [f"other {name}, or none on record" for name in different(status, now)]
            if changed:
                found.setdefault("; ".join(changed), []).append(path.parent.name)
    if found:
        told = "\n".join(
            f"  {len(names)} with {what} ({', '.join(names[:3])}{', ...' if names[3:] else ''})"
            for what, names in found.items()
        )
        raise InputError(
            f"{folder} holds runs that are not of this sweep:\n{told}\n"
            "Name another folder, or remove these: one table is of one sweep"
        )


def settle(folder: Path, now: Mapping[str, str]) -> list[str]:
    """Clear what an earlier attempt left, where its weights, prompts or verifier were others.

    A run that was finished begins anew too: the time of the former is not of this one.
    """
    status = read_status(folder)
    changed = different(status, now) if status else []
    if changed or status.get("status") == "finished":
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        (folder / "status.json").unlink()
    return changed


def name_of(run: Run) -> str:
    return f"{run.trainer} K={run.budget} G={run.group_size} seed={run.seed} ({run.key})"


def _supervised(
    run: Run,
    folder: Path,
    read: Mapping[str, str],
    tell: Callable[[str], None],
    processes: set[subprocess.Popen[bytes]],
    stop: threading.Event,
) -> Outcome:
    """One run in a process of its own; a failure is an outcome, not an error."""
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    status = read_status(folder)
    if status.get("status") == "finished":
        return Outcome(run, "skipped", float(status.get("seconds", math.nan)))
    changed: list[str] = []
    # A process that makes this run now keeps its checkpoints; the new one will find it busy.
    with suppress(Timeout), FileLock(folder / "lock", timeout=0):
        changed = settle(folder, read)
    if changed:
        tell(
            f"{name_of(run)}: begun anew, other {', '.join(changed)} than before or none on record"
        )
    write(folder / "run.json", run.text())
    started = time.monotonic()
    environment = os.environ | {
        "OMP_NUM_THREADS": str(run.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    with (folder / "log.txt").open("ab") as log:
        if stop.is_set():
            return Outcome(run, "interrupted", 0.0)
        process = subprocess.Popen(
            run.command(folder / "run.json"), stdout=log, stderr=subprocess.STDOUT, env=environment
        )
        processes.add(process)
        code = process.wait()
        processes.discard(process)
    seconds = time.monotonic() - started
    status = read_status(folder)
    if stop.is_set():
        return Outcome(run, "interrupted", seconds)
    if code == 0 and status.get("status") == "finished":
        return Outcome(run, "finished", seconds)
    lines = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    message = "\n".join([f"exit code {code}; the end of {folder / 'log.txt'}:", *lines[-_TAIL:]])
    if code != BUSY:
        write_status(folder, status | {"status": "failed", "code": code, "message": message})
    return Outcome(run, "failed", seconds, message)


BUSY = 75
"""Exit code of a run that another process is making just now."""


def dry_run(plan: Sequence[Run]) -> tuple[list[str], list[str]]:
    """The processes of a plan, and what stands in their way: nothing is loaded but prompts.

    Arguments:
        plan: the runs, of :meth:`Sweep.plan`.

    Returns:
        a line for each run; and problems, each once: prompts that cannot be had, are too few or
        shared, and what TRL says of the configurations.
    """
    told, problems = [], []
    shapes = {(run.trainer, run.budget, run.group_size): run for run in reversed(plan)}
    longest = plan[0].max_new_tokens or 1
    try:
        task, held, dropped = plan[0].split()
        longest = task.max_new_tokens
        told.append(
            f"{len(task.prompts):,} prompts, {len(held.prompts):,} held out"
            + (f", {dropped:,} of their texts left out" if dropped else "")
        )
        for run in shapes.values():
            refuse_group_size(run.group_size, run.budget, len(task.prompts))
    except InputError as error:
        problems.append(str(error))
    for run in shapes.values():
        # TRL checks one process on the CPU: it takes all micro-batches there.
        one: dict[str, Any] = {"device": "cpu", "processes": 1, "max_new_tokens": longest}
        one |= {"micro_batch": run.micro_batch * run.processes}
        options = {name: value for name, value in run.options.items() if name != "bf16"}
        try:
            replace(run, options=options, **one).configuration("unused")
        except InputError as error:
            problems.append(str(error))
    for run in plan:
        factor = replace(run, max_new_tokens=longest).step_factor()
        told.append(
            f"{name_of(run)}: {run.steps} steps of {run.prompts} prompts x {run.group_size}, "
            f"{run.processes} process(es) x {run.accumulation} micro-batches x "
            f"{run.micro_batch}; "
            + (
                "another direction than the theory's step"
                if factor is None
                else f"{factor:.6g} of the theory's step"
            )
        )
    return told, list(dict.fromkeys(problems))
