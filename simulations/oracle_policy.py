"""Corollary 9: the limit weights of grpo and of the oracle differ by O(1/G²) at fixed B.

Runs of both are extrapolated to the limits of (T + t₀) E δδᵀ, as for Theorem 8. The checks compare the
eigenvalues of ½ Λ^½ Γ Λ^½ of the two, with noise that does not commute with the Hessian, and in one direction
at several G for the order.

To first order the difference is C/(B G(G-1)), where C is the weight of the covariance E[σ²F + g gᵀ]; in one
identifiable direction this is exact. The weights are linear in the covariance of one gradient at the optimum,
so they are measured there, at G up to 32, and in whole training runs, as the mean gap of grpo minus that of
the oracle on the same draws, at G = 2, 4 and 8.

Orders are slopes against ½ log(G(G-1)), for which the order G⁻² is the slope -2 at every G; against log G the
slope tends to -2, and the formula gives its value.

Both need the paper's assumption that the covariance in the identifiable directions depends on θ only through
Uᵀθ. It holds if a flat direction changes nothing, and fails for a mixture, in which the weights' difference
depends on the endpoint.

The claim is falsified by a slope of another order, or by a difference that is not the predicted one. A finite
run has an error of order 1/T, which is removed as for Theorem 8; products of this error remain and are
computed.

Cost: about 20 seconds on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import log, sqrt

import numpy as np

from ustat_pg.predictions import gap_transform, limit_weights

from .engines import Decay, GapTransform
from .evidence import Check, Eigenvalue, Extrapolation, Linear, LogSlope, equal
from .problems import Suite
from .problems.landscapes import LandscapeEntry, Landscapes
from .shared.margins import AMONG, COARSE, FAR_ORDER, OF_RUNS, ORDER
from .shared.runs import EXTRAPOLATED, GRPO, ORACLE, Limit, NearOptimum, parts_of
from .shared.weights import constants, difference, scale

FIRST = "order G^-1"
THIRD = "order G^-3"
ENDPOINT = "one weight at every endpoint"
DENOMINATOR = 'no "-1" in the Lyapunov denominator'
RAW = "eigenvalues of the covariance itself"
RIVALS = (FIRST, THIRD, ENDPOINT, DENOMINATOR, RAW)
ORDERS = {FIRST: -1.0, THIRD: -3.0}

OFFSET = 60.0
"""t₀ of the rates c/(t + t₀)."""

SHORT, STAGES = 25, 2
"""The steps of the shortest extrapolated runs, and the number of run lengths."""

REACH = 5.0
"""The radius of Θ in standard deviations of the linear recursion; five are reached once in a million
steps.
"""


def pairs(group_size: int) -> int:
    return group_size * (group_size - 1)


def _slope(
    entry: LandscapeEntry, group_sizes: tuple[int, ...], weight: int, exactly: bool
) -> Check:
    """The order of a weight's difference at the optimum, against log G or with slope -2 at every G."""
    constant = float(constants(entry)[weight])
    axis, places, margin = "log G", [log(g) for g in group_sizes], FAR_ORDER
    if exactly:
        axis, places, margin = "½ log G(G-1)", _places(group_sizes), ORDER
    return entry.slope(
        f"{_at(entry, weight)}{_between(group_sizes)}: order on {axis}",
        places,
        [difference(entry, g, weight=weight).measured() for g in group_sizes],
        [constant / pairs(g) for g in group_sizes],
        ORDERS,
        relative_margin=margin,
    )


def _at(entry: LandscapeEntry, weight: int) -> str:
    return f"w{weight + 1} " if len(entry.problem.curvatures) > 1 else ""


def _between(group_sizes: tuple[int, ...]) -> str:
    return f"G={group_sizes[0]}..{group_sizes[-1]}"


def _places(group_sizes: tuple[int, ...]) -> list[float]:
    return [0.5 * log(pairs(g)) for g in group_sizes]


def _gradients(entry: LandscapeEntry, group_sizes: tuple[int, ...]) -> Iterator[Check]:
    """The checks of every weight's difference at the optimum: its order, and its constant at the least G."""
    for k, constant in enumerate(constants(entry).tolist()):
        yield _slope(entry, group_sizes, k, exactly=True)
        for group_size in group_sizes[:2]:
            functional = difference(entry, group_size, weight=k).measured(pairs(group_size))
            name = f"{_at(entry, k)}G={group_size}: G(G-1) times the difference, by Theorem 2"
            yield entry.check(name, functional, equal(constant))


def runs_at(
    entry: LandscapeEntry, group_size: int, steps: int, offset: float = OFFSET
) -> NearOptimum:
    """Runs from the optimum, on a Θ with an edge that they almost never reach."""
    runs = NearOptimum(entry, group_size, steps, Decay(scale(entry), offset))
    return replace(runs, radius=REACH * sqrt(float(np.linalg.eigvalsh(runs.spread()).max())))


def gaps(runs: NearOptimum, times: float = 1) -> Linear:
    """``times`` (T + t₀) (E gap_grpo - E gap_oracle) after T steps."""
    return runs.gap_difference(GRPO, ORACLE, runs.time, times)


@dataclass(frozen=True)
class _Difference:
    """(T + t₀) (E gap_grpo - E gap_oracle), extrapolated from runs of several lengths."""

    entry: LandscapeEntry
    group_size: int

    @cached_property
    def runs(self) -> list[tuple[NearOptimum, float]]:
        """Runs of every length, and their shares."""
        offset = 0.6 * SHORT
        return [
            (runs_at(self.entry, self.group_size, SHORT * times, offset * times), share)
            for times, share in EXTRAPOLATED[STAGES]
        ]

    @property
    def measured(self) -> Extrapolation:
        runs, shares = zip(*self.runs, strict=True)
        return Extrapolation(tuple(map(gaps, runs)), shares)

    @property
    def predicted(self) -> float:
        grpo, oracle = (
            sum(share * runs.time * runs.expected(estimator) for runs, share in self.runs)
            for estimator in (GRPO, ORACLE)
        )
        return grpo - oracle

    @property
    def error(self) -> float:
        """The error of each gap, which is the product of its runs' errors."""
        shortest = self.runs[0][0]
        return shortest.time * sum(
            shortest.size(estimator)
            * float(np.prod([runs.left_out_of(estimator) for runs, _ in self.runs]))
            for estimator in (GRPO, ORACLE)
        )


def _whole_runs(entry: LandscapeEntry, group_sizes: tuple[int, ...]) -> Iterator[Check]:
    """The checks of the difference in whole training runs: the order in G, and the size."""
    places = _places(group_sizes)
    differences = [_Difference(entry, g) for g in group_sizes]
    first, values = differences[0], [pair.predicted for pair in differences]
    off = sum(pair.error / value for pair, value in zip(differences, values, strict=True))
    yield entry.check(
        f"{_between(group_sizes)}: order of the mean gaps' difference, extrapolated",
        LogSlope(tuple(places), tuple(pair.measured for pair in differences), tuple(values)),
        equal(-2.0, ORDERS, digits=off / (places[-1] - places[0]), relative_margin=FAR_ORDER),
    )
    ((grpo,),), ((oracle,),) = (first.runs[0][0].noise(estimator) for estimator in (GRPO, ORACLE))
    # Here c λ = 2, so without the 1 the weight is 3/4 as large.
    wrong = {DENOMINATOR: 0.75 * values[0], RAW: float(grpo - oracle)}
    yield entry.check(
        f"G={first.group_size}: difference of the mean gaps, extrapolated",
        first.measured,
        equal(values[0], wrong, digits=first.error, relative_margin=OF_RUNS),
    )


def _laws(entry: LandscapeEntry, group_sizes: tuple[int, ...], steps: int) -> Check:
    """The check of the order in G of the two laws' distance, by their Laplace transforms after T steps."""
    runs = [runs_at(entry, g, steps) for g in group_sizes]
    # A rate at which a law's transform is well between 1 and 0.
    rate = 1 / (2 * float(entry.problem.curvatures.max() * runs[0].spread()[-1].max()))
    terms = (GapTransform(ORACLE, steps, rate), 1.0), (GapTransform(GRPO, steps, rate), -1.0)
    places = _places(group_sizes)
    return entry.slope(
        f"{_between(group_sizes)}: order of the two laws' distance, T={steps}",
        places,
        [Linear(one.training, terms) for one in runs],
        [
            gap_transform(one.weights(ORACLE), rate) - gap_transform(one.weights(), rate)
            for one in runs
        ],
        ORDERS,
        digits=sum(one.left_out for one in runs) / (places[-1] - places[0]),
        relative_margin=ORDER,
    )


def _limits(
    entry: LandscapeEntry, group_size: int, first: int, steps: int, stages: int
) -> Iterator[Check]:
    """The checks of the difference of every limit weight, from the second moments of runs of both."""
    curvatures = entry.problem.curvatures
    schedule = Decay(1.0 / float(curvatures[0]), 40.0)
    limit = Limit(NearOptimum(entry, group_size, steps, schedule), first, stages)
    root, sums = np.sqrt(curvatures), np.add.outer(curvatures, curvatures)
    noises = [limit.runs.noise(estimator) for estimator in (GRPO, ORACLE)]
    high, low = both = [limit_weights(curvatures, noise, schedule.c) for noise in noises]
    wrong = {
        DENOMINATOR: [0.5 * root[:, None] * schedule.c * noise / sums * root for noise in noises],
        RAW: noises,
    }
    sides = zip((GRPO, ORACLE), both, strict=True)
    off = sum(limit.left_out_of(estimator) * float(weights[-1]) for estimator, weights in sides)
    margins = {"scale": float(high[-1]), "relative_margin": AMONG, "digits": off}
    for place, value in enumerate((high - low).tolist()):
        others = {
            rival: float(np.subtract(*map(np.linalg.eigvalsh, matrices))[place])
            for rival, matrices in wrong.items()
        }
        yield entry.check(
            f"G={group_size}: limit weight {place + 1} above the oracle's, from runs",
            Eigenvalue((limit.form(GRPO), limit.form(ORACLE)), (1.0, -1.0), place),
            equal(value, others, **margins),
        )


def _variants(landscapes: Landscapes) -> Iterator[Check]:
    """The checks of the constant: two prompts in a minibatch halve the difference, and it is the same far
    along a flat direction that does not change the covariance.
    """
    for entry in landscapes["quarrel"]:
        halved = difference(entry, 2, 2)
        constant = equal(4 * halved.predicted)
        yield entry.check("B=2 G=2: B G(G-1) times the difference", halved.measured(4), constant)
    for entry in landscapes["flat triple"]:
        far = difference(entry, 2, away=4 * entry.problem.flat[:, 0])
        constant = equal(2 * difference(entry, 2).predicted)
        yield entry.check("G=2: 4 away in the flat direction", far.measured(2), constant)


def _ends(entry: LandscapeEntry) -> Check:
    """The check with a flat direction that changes the covariance: the difference depends on the endpoint,
    here for two θ₂.
    """
    ends = [np.array([0.0, end]) for end in (-2.0, 2.0)]
    # G(G-1) = 2.
    noises = [parts_of(entry.problem, away)[2] / 2 for away in ends]
    return entry.slope(
        "G=2: log ratio of the differences at two endpoints",
        (0.0, 1.0),
        [difference(entry, 2, away=away).measured() for away in ends],
        [float(limit_weights(entry.problem.curvatures, n, scale(entry))[0]) for n in noises],
        {ENDPOINT: 0.0},
        relative_margin=COARSE,
    )


def checks(suite: Suite) -> Iterator[Check]:
    """The checks of the difference at the optimum and in whole runs, of its order, and of its assumptions."""
    landscapes, smoke = suite.landscapes, suite.size == "smoke"
    for entry in landscapes["triple"]:
        yield from _gradients(entry, (2, 4, 16))
    for number, entry in enumerate(landscapes["quarrel"]):
        yield from _gradients(entry, (2, 4, 16))
        # The made-up problem and the first generated one, because runs cost more than gradients.
        if number < 2:
            yield from _whole_runs(entry, (2, 4))
            yield _laws(entry, (2, 4), 100)
            yield _slope(entry, (8, 32), 0, exactly=False)
    if not smoke:
        yield from _gradients(landscapes["slopes"][0], (2, 4))
        yield from _limits(landscapes["twisted"][0], 2, 20, 60, 2)
    for entry in landscapes["quarrel"][:2]:
        for group_size in (2,) if smoke else (2, 4):
            yield from _limits(entry, group_size, 40, 120, 2 if smoke else 3)
    yield from _variants(landscapes)
    yield from map(_ends, landscapes["mixture"])
