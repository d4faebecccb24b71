"""Forecasts of a run's replications and processor seconds, from a small part of its work.

Pilots are an eighth as long as in a run, so replications are estimates. The time of a pilot gives the time of
a replication of its cell. A few enumerated tasks of each claim and kind of cell are timed, none with a
large share of all. The others are assumed to have the same start time, and the same speed per weight.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import nnls

from .blocks import Block
from .claim import Claim
from .curves import Point, measurements_of
from .measurements import PILOT_REPLICATIONS, Measurements
from .options import Options
from .plan import Plan, make_plan
from .store import Memory
from .work import Work, environment

REPLICATIONS = PILOT_REPLICATIONS // 8
"""The replications of a gradient's pilot in a forecast."""

SLOW = 8.0
"""The factor by which a task may be slower than others of its size before it is run again."""

PARTS, FEW = 4, 3
"""A part of a pilot, or a few more replications, separates a block's start time from that of a replication.
At least this many tasks are timed, if they exist.
"""

SAMPLE, SHARE = 5, 0.015
"""The number of timed tasks of a kind, and the largest share of the kind's weight in one of them."""


Kind = tuple[type, str]
"""A class of cells, and an engine."""


def plan_claims(
    claims: Sequence[Claim], options: Options, points: Sequence[Sequence[Point]] = ()
) -> list[Plan]:
    """The plans of claims with their costs, from short pilots and a sample of the enumerated tasks.

    Arguments:
        claims: designs.
        options: size, engine, seed, workers.
        points: points of each claim's figures, measured together with its checks (default: none).

    Returns:
        one plan each. Its replications are estimates; its seconds are those of this machine: for creating
        the checks, for all enumeration, and for pilots and replications.
    """
    with environment(options, None) as pool:
        clock = _Clock(Work(Memory(), options, pool))
        shown = list(points) or [()] * len(claims)
        return [_plan(claim, few, clock) for claim, few in zip(claims, shown, strict=True)]


def _plan(claim: Claim, points: Sequence[Point], clock: _Clock) -> Plan:
    options, began = clock.work.options, time.thread_time()
    measured = Measurements((check.functional for check in claim.made().checks), options)
    figures, shown = measurements_of(points, options)
    pilots = measured.pilots_of(REPLICATIONS)
    timed = {**figures.pilots_of(REPLICATIONS), **pilots}
    enumerated = [*measured.exact_tasks.values(), *figures.exact_tasks.values()]
    design = time.thread_time() - began
    starts = clock.starts(timed.values())
    began = time.thread_time()
    plan = make_plan(claim, measured.alone(clock.work, pilots), options)
    design += time.thread_time() - began
    drawn = [*measured.pilot_tasks.values(), *measured.tasks(plan.replications)]
    drawn += figures.tasks(shown)
    plan.seconds = {
        "design": design,
        "enumeration": clock.enumeration(clock.once(enumerated)),
        "simulation": clock.draws(clock.once(drawn), timed, starts),
    }
    return plan


class _Clock:
    """The time of tasks, from the tasks that the timer runs."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._loaded: set[Kind] = set()

    def once(self, tasks: Iterable[Block]) -> Collection[Block]:
        """The tasks, each once, because checks and figures share some."""
        return {self.work.store.key(task.description): task for task in tasks}.values()

    def _load(self, kind: Kind, task: Block) -> None:
        """Run a task that is not timed: the first of its kind loads or compiles the code that it calls."""
        if kind not in self._loaded:
            self._loaded.add(kind)
            self.work.run([task], "load")

    def _taken(self, tasks: Collection[Block], what: str) -> list[float]:
        """The seconds of tasks; one that was far slower for its size than others has compiled something, and
        is run again.
        """
        work = self.work
        work.run(tasks, what)
        for alike in _by_kind(tasks).values():
            usual = np.median([work.taken(task) / task.weight for task in alike])
            slow = [task for task in alike if work.taken(task) > SLOW * usual * task.weight]
            again = Work(Memory(), work.options, work.executor)
            again.run(slow, what)
            work.seconds |= again.seconds
        return [work.taken(task) for task in tasks]

    def starts(self, pilots: Iterable[Block]) -> dict[Kind, float]:
        """The time of a block before its first replication, by kind; this runs the pilots."""
        pilots, starts = list(pilots), dict[Kind, float]()
        sampled = {kind: list(sample(alike, 1.0)) for kind, alike in _by_kind(pilots).items()}
        for kind, alike in sampled.items():
            self._load(kind, _after(alike[-1], 1))
        self._taken(pilots, "pilots")
        for kind, alike in sampled.items():
            lines = []
            for pilot in alike:
                part = _after(pilot, 0)
                ends = [
                    (task.replications, *self._taken([task], "pilots")) for task in (pilot, part)
                ]
                (small, short), (large, long) = sorted(ends)
                pace = max(long - short, 0.0) / (large - small) if small < large else short / small
                lines.append(max(short - pace * small, 0.0))
            starts[kind] = float(np.median(lines))
        return starts

    def draws(
        self, tasks: Iterable[Block], pilots: Mapping[str, Block], starts: Mapping[Kind, float]
    ) -> float:
        """The seconds of blocks of draws, from the pilots of their cells and the start time of a block."""
        seconds = 0.0
        for task in tasks:
            pilot = pilots[task.cell.name]
            taken = self.work.taken(pilot)
            start = min(starts[_kind(pilot)], taken)
            seconds += start + (taken - start) * task.replications / pilot.replications
        return seconds

    def enumeration(self, tasks: Iterable[Block]) -> float:
        """The seconds of exact tasks, from a sample of each kind."""
        seconds = 0.0
        for kind, alike in _by_kind(tasks).items():
            self._load(kind, min(alike, key=lambda task: task.weight))
            sampled = list(sample(alike))
            taken = self._taken(sampled, "enumerate")
            # Fits a task's start time and its time per weight; errors are relative to the measured time.
            rows = np.array([(1.0, task.weight) for task in sampled]) / np.array(taken)[:, None]
            (start, pace), _ = nnls(rows / rows.max(axis=0), np.ones(len(rows)))
            start, pace = (start, pace) / rows.max(axis=0)
            seconds += start * len(alike) + pace * sum(task.weight for task in alike)
        return seconds


def sample(tasks: Sequence[Block], share: float = SHARE) -> Iterator[Block]:
    """The tasks of one kind that are timed for all: among those with a small share of the total weight, the
    heaviest and some spread over the others; or the few lightest if these have a large share.
    """
    ordered = sorted(tasks, key=lambda task: (task.weight, task.cell.name))
    most = share * sum(task.weight for task in tasks)
    light = ordered[: max(FEW, sum(task.weight <= most for task in ordered))]
    for place in range(len(light) - 1, -1, -max(1, len(light) // SAMPLE))[:SAMPLE]:
        yield light[place]


def _after(pilot: Block, number: int) -> Block:
    """A block after a pilot: a part of its length, or a few replications if it has no parts."""
    count = pilot.replications // PARTS or FEW
    first = pilot.first + pilot.replications + number * count
    return replace(pilot, first=first, replications=count)


def _kind(task: Block) -> Kind:
    return type(task.cell), task.engine


def _by_kind(tasks: Iterable[Block]) -> dict[Kind, list[Block]]:
    kinds: dict[Kind, list[Block]] = {}
    for task in tasks:
        kinds.setdefault(_kind(task), []).append(task)
    return kinds
