"""Corollary 9: the limit weights of grpo and of the oracle differ by O(1/G²) at fixed B.

To first order in it the difference is C/(B G(G-1)), C the weight of the covariance E[σ²F + g gᵀ]; in
one identifiable direction that is exact. The weights are linear in the covariance of one gradient at
the optimum, so they are measured there, at G up to 32, and in whole training runs, as the mean gap
of grpo less that of the oracle on the same draws, at G = 2, 4 and 8.

Orders are slopes on ½ log(G(G-1)), where the order G⁻² is the slope -2 at every G; on log G the
slope tends to -2, and the formula says how far it has come.

Both need what the paper assumes: that the covariance in the identifiable directions depends on θ
through Uᵀθ alone. It holds where a flat direction changes nothing, and fails for a mixture, whose
weights have another difference at every endpoint.

Falsified by a slope of another order, or a difference that is not the one predicted. A finite run
has an error of order 1/T: twelve times 1/(T + t₀) is granted at two T.

Cost: about 20 seconds on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import log, sqrt

import numpy as np

from ustat_pg.checks import equal
from ustat_pg.engines import Decay
from ustat_pg.experiment import Check, Claim, Linear, LogSlope
from ustat_pg.predictions import limit_weights

from .problems import Suite
from .problems.landscapes import LandscapeEntry, Landscapes
from .problems.optima import GRPO, ORACLE, parts_of
from .problems.runs import NearOptimum
from .problems.weights import constants, difference, scale

STEM = "oracle_policy"

FIRST = "order G^-1"
THIRD = "order G^-3"
ENDPOINT = "one weight at every endpoint"
RIVALS = (FIRST, THIRD, ENDPOINT)
ORDERS = {FIRST: -1.0, THIRD: -3.0}

OFFSET = 60.0
"""t₀ of the rates c/(t + t₀)."""

ALLOWANCE = 12.0
"""A finite run may be off by this over T + t₀, relative to its prediction."""

REACH = 5.0
"""Θ: standard deviations of the linear recursion; five are met once in a million steps."""


def pairs(group_size: int) -> int:
    """G(G-1)."""
    return group_size * (group_size - 1)


def _slope(
    entry: LandscapeEntry, group_sizes: tuple[int, ...], weight: int, exactly: bool
) -> Check:
    """The order of a weight's difference at the optimum, on an axis where it is -2 at every G or on
    that of log G.
    """
    constant = float(constants(entry)[weight])
    values = tuple(constant / pairs(g) for g in group_sizes)
    places = tuple(0.5 * log(pairs(g)) if exactly else log(g) for g in group_sizes)
    axis = "½ log G(G-1)" if exactly else "log G"
    return entry.check(
        f"{_at(entry, weight)}G={group_sizes[0]}..{group_sizes[-1]}: order on {axis}",
        LogSlope(places, tuple(difference(entry, g, weight=weight) for g in group_sizes), values),
        equal(float(np.polyfit(places, np.log(values), 1)[0]), ORDERS, relative_margin=0.25),
    )


def _at(entry: LandscapeEntry, weight: int) -> str:
    return f"w{weight + 1} " if len(entry.problem.curvatures) > 1 else ""


def _gradients(entry: LandscapeEntry, group_sizes: tuple[int, ...]) -> Iterator[Check]:
    """Every weight's difference at the optimum: its order, and its constant at the least G."""
    for k, constant in enumerate(constants(entry).tolist()):
        yield _slope(entry, group_sizes, k, exactly=True)
        for group_size in group_sizes[:2]:
            functional = difference(entry, group_size, weight=k, times=pairs(group_size))
            name = f"{_at(entry, k)}G={group_size}: G(G-1) times the difference"
            yield entry.check(name, functional, equal(constant))


def runs_at(entry: LandscapeEntry, group_size: int, steps: int) -> NearOptimum:
    """Runs from the optimum, on a Θ that they hardly ever reach the edge of."""
    runs = NearOptimum(entry, group_size, steps, Decay(scale(entry), OFFSET))
    return replace(runs, radius=REACH * sqrt(float(np.linalg.eigvalsh(runs.spread()).max())))


def gaps(runs: NearOptimum, times: float = 1) -> Linear:
    """``times`` (T + t₀) (E gap_grpo - E gap_oracle) after T steps."""
    return runs.gap_difference(GRPO, ORACLE, runs.steps + OFFSET, times)


def _expected(runs: NearOptimum) -> float:
    """(T + t₀) (E gap_grpo - E gap_oracle) of the linear recursion."""
    end = runs.steps + OFFSET
    return end * runs.expected(GRPO) - end * runs.expected(ORACLE)


def _whole_runs(
    entry: LandscapeEntry, group_sizes: tuple[int, ...], ends: tuple[int, ...]
) -> Iterator[Check]:
    """The same in whole training runs: the order in G, and the size at every T."""
    first, places = ends[0], tuple(0.5 * log(pairs(g)) for g in group_sizes)
    runs = [runs_at(entry, g, first) for g in group_sizes]
    yield entry.check(
        f"G={group_sizes[0]}..{group_sizes[-1]}: order of the mean gaps' difference, T={first}",
        LogSlope(places, tuple(map(gaps, runs)), tuple(map(_expected, runs))),
        equal(-2.0, ORDERS, digits=ALLOWANCE / (first + OFFSET), relative_margin=0.25),
    )
    for end in ends:
        pair = runs_at(entry, 2, end)
        value = _expected(pair)
        digits = value * ALLOWANCE / (end + OFFSET)
        statement = equal(value, digits=digits, relative_margin=0.2)
        yield entry.check(f"G=2: difference of the mean gaps, T={end}", gaps(pair), statement)


def _variants(landscapes: Landscapes) -> Iterator[Check]:
    """The constant again: two prompts in a minibatch halve the difference, and far along a flat
    direction that the covariance does not see it is the same.
    """
    for entry in landscapes["quarrel"]:
        constant = equal(float(constants(entry)[0]))
        halved = difference(entry, 2, 2, times=4)
        yield entry.check("B=2 G=2: B G(G-1) times the difference", halved, constant)
    for entry in landscapes["flat triple"]:
        constant = equal(float(constants(entry)[0]))
        far = difference(entry, 2, away=4 * entry.problem.flat[:, 0], times=2)
        yield entry.check("G=2: 4 away in the flat direction", far, constant)


ENDS = (-2.0, 2.0)
"""θ₂ of two endpoints of a mixture."""


def _ends(entry: LandscapeEntry) -> Check:
    """Where the covariance sees a flat direction, another difference at every endpoint."""
    landscape = entry.problem
    points, values = [], []
    for end in ENDS:
        away = np.array([0.0, end])
        # G(G-1) = 2.
        pair = parts_of(landscape, away)[2] / 2
        points.append(difference(entry, 2, away=away))
        values.append(float(limit_weights(landscape.curvatures, pair, scale(entry))[0]))
    return entry.check(
        "G=2: log ratio of the differences at two endpoints",
        LogSlope((0.0, 1.0), tuple(points), tuple(values)),
        equal(log(values[1] / values[0]), {ENDPOINT: 0.0}, relative_margin=0.2),
    )


def _checks(suite: Suite) -> Iterator[Check]:
    landscapes, smoke = suite.landscapes, suite.size == "smoke"
    for entry in landscapes["triple"]:
        yield from _gradients(entry, (2, 4, 16))
        if entry.origin == "made-up" and not smoke:
            yield from _whole_runs(entry, (2, 4, 8), (200,))
    for number, entry in enumerate(landscapes["quarrel"]):
        yield from _gradients(entry, (2, 4, 16))
        # The made-up one and the first that is generated; runs cost more than gradients.
        if smoke and number < 2:
            yield from _whole_runs(entry, (2, 4), (100,))
        elif number < 2:
            yield _slope(entry, (8, 32), 0, exactly=False)
            yield from _whole_runs(entry, (2, 4, 8), (200,) if number else (200, 800))
    if not smoke:
        yield from _gradients(landscapes["slopes"][0], (2, 4))
    yield from _variants(landscapes)
    yield from map(_ends, landscapes["mixture"])


def claim(suite: Suite) -> Claim:
    """The difference at the optimum and in whole runs, its order, and what it rests on."""
    return Claim(STEM, RIVALS, tuple(_checks(suite)))
