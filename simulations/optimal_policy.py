"""Corollary 10: under E[Uᵀ s sᵀ U a | x] = 0 every weight of the limit law of a baseline b(x) is at
least the oracle's, so asymptotically no such baseline has a stochastically smaller gap than grpo.

If the assumption holds (:func:`~simulations.interior_problems.ordered_problem`), the laws are ordered: the
Laplace transform of the gap is smaller for every constant than for grpo and for the oracle, and one cdf is
below the other. In small groups grpo has its own noise, and constants near V beat it. Over several prompts
that satisfy the assumption the matrices are ordered: the least eigenvalue of Cov(b) - Cov(oracle) is positive
for b(x) above or below V, and so is the difference of every limit weight.

Assumption 2 in the norm, E[‖s‖² a | x] = 0, is not enough: then a constant other than V has more mass near 0,
and if curvatures are unequal its whole law may be stochastically smaller. For logits linear in θ, E[s sᵀ a |
x] is the Hessian of V(x). At an interior optimum its mean is -Λ, so neither form can hold, and a constant
below V beats the oracle: in one direction V - λ/F.

The claim is falsified if a law, a transform or a weight is on the wrong side, or has another size.

Cost: about 15 seconds on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.distributions import sup_distance
from ustat_pg.engines import Estimator
from ustat_pg.predictions import gap_transform

from .engines import Decay, GapTransform
from .engines.runs.cell import BINS
from .evidence import Check, LawExcess, Linear, Pit, equal, positive
from .parts import covariance_order
from .parts.covariance_order import AT_ONCE, EVERYWHERE, NORM, REVERSED
from .problems import Suite, word
from .problems.landscapes import LandscapeEntry
from .shared.margins import LOOSE, TWO_LAWS
from .shared.runs import GRPO, ORACLE, VANILLA, NearOptimum, constant, moments_of
from .shared.weights import Difference

RIVALS = covariance_order.RIVALS

RUNS = {
    "ordered": (2.0, 40.0, 1.5),
    "uneven": (0.7, 20.0, None),
    "norm only": (2.0, 20.0, None),
    "bowl": (2.0, 40.0, 0.5),
}
"""c λ in the flattest direction, t₀ and the radius of Θ, by family of landscapes: runs on the ordered
landscapes do not leave Θ, and in the flatter direction of the uneven ones errors decay slowly.
"""


def runs_on(
    family: str, entry: LandscapeEntry, steps: int = 120, group_size: int = 2
) -> NearOptimum:
    """Runs from the optimum under c/(t + t₀), on a landscape of a family."""
    exponent, t0, radius = RUNS[family]
    schedule = Decay(exponent / float(entry.problem.curvatures[0]), t0)
    return NearOptimum(entry, group_size, steps, schedule, radius=radius)


def _at(runs: NearOptimum) -> str:
    return f"G={runs.group_size} T={runs.steps}"


def _by_transform(
    runs: NearOptimum, better: Estimator, worse: Estimator, rate: float, rival: str
) -> Check:
    """The check that E exp(-s gap) of one baseline is above another's; s in units of the oracle's 1/E gap."""
    times = rate / sum(runs.weights(ORACLE))
    high, low = (gap_transform(runs.weights(estimator), times) for estimator in (better, worse))
    transforms = tuple(
        (GapTransform(estimator, runs.steps, times), sign)
        for estimator, sign in ((better, 1.0), (worse, -1.0))
    )
    return runs.entry.check(
        f"{_at(runs)}: transform of {word(better)} above {word(worse)}, s={rate:g}",
        Linear(runs.training, transforms),
        positive(high - low, [rival], scale=1.0),
    )


def _by_law(runs: NearOptimum, better: Estimator, worse: Estimator, rival: str) -> Iterator[Check]:
    """The check that one gap's law is above another's by the predicted amount, and nowhere below."""
    distance = sup_distance(runs.law(better), runs.law(worse))
    # The tolerance is the error of each law, plus one bin on both sides.
    off = runs.off_of(better) + runs.off_of(worse) + 2 / BINS
    edges, cell = runs.weights(ORACLE), runs.training
    first, second = (Pit(estimator, runs.steps, edges) for estimator in (better, worse))
    for name, excess, value, wrong in (
        ("by how much", LawExcess(cell, first, second), distance, 0.0),
        ("nowhere below", LawExcess(cell, second, first), 0.0, distance),
    ):
        yield runs.entry.check(
            f"{_at(runs)}: law of {word(better)} over {word(worse)}: {name}",
            excess,
            equal(value, {rival: wrong}, scale=1.0, relative_margin=TWO_LAWS, digits=off),
        )


def _ordered(entry: LandscapeEntry, full: bool) -> Iterator[Check]:
    """The checks under the matrix form: every constant loses to the oracle, and to grpo in groups of 8."""
    value, steps = float(entry.problem.maximum), 120 if full else 80
    runs = runs_on("ordered", entry, steps, 8)
    for estimator in (VANILLA, constant(value + 0.4)):
        for better in (GRPO, ORACLE):
            for rate in (0.5, 10.0) if full else (2.0,):
                yield _by_transform(runs, better, estimator, rate, REVERSED)
        yield from _by_law(runs, GRPO, estimator, REVERSED)
    yield _by_transform(runs, ORACLE, constant(value - 0.25), 2.0, REVERSED)
    small = runs_on("ordered", entry, steps, 4)
    yield _by_transform(small, constant(value + 0.1), GRPO, 2.0, AT_ONCE)


def _uneven(entry: LandscapeEntry, steps: int) -> Iterator[Check]:
    """The checks under the norm form alone: the larger weight of a constant is below the oracle's, and its
    whole law of the gap is smaller.
    """
    better, c = constant(0.7), 0.7 / float(entry.problem.curvatures[0])
    apart = Difference(entry.problem, ORACLE, better, np.eye(2)[0], c, 1)
    name = ": the weight of the oracle above constant 0.7"
    yield from entry.gains(name, apart.measured(), apart.predicted, NORM)
    yield from _by_law(runs_on("uneven", entry, steps), better, ORACLE, NORM)


def best_constant(entry: LandscapeEntry) -> float:
    """The best constant V - λ/F at an optimum in one direction, for logits linear in θ."""
    landscape = entry.problem
    fisher = float(moments_of(landscape).fisher_trace[0])
    return float(landscape.maximum) - float(landscape.curvatures[0]) / fisher


def _linear(entry: LandscapeEntry) -> Iterator[Check]:
    """The check for logits linear in θ: a constant below V beats the oracle, by the predicted amount."""
    runs, better = runs_on("bowl", entry), constant(best_constant(entry))
    times = runs.steps + 40.0
    gain = times * (sum(runs.weights(ORACLE)) - sum(runs.weights(better)))
    name = f"{_at(runs)}: oracle's mean gap above that of V - λ/F"
    functional = runs.gap_difference(ORACLE, better, times)
    digits = times * sum(
        runs.left_out_of(estimator) * runs.size(estimator) for estimator in (ORACLE, better)
    )
    yield from entry.gains(name, functional, gain, EVERYWHERE, digits=digits, relative_margin=LOOSE)
    yield from _by_law(runs, better, ORACLE, EVERYWHERE)


def checks(suite: Suite) -> Iterator[Check]:
    """The checks of the order under the assumption, and of its failures without it."""
    landscapes, smoke = suite.landscapes, suite.size == "smoke"
    for entry in landscapes["ordered"]:
        yield from _ordered(entry, not smoke)
    for entry in landscapes["uneven"]:
        yield from _uneven(entry, 400 if smoke else 1000)
    # With the norm form alone and equal curvatures a constant has more mass near 0.
    short = runs_on("norm only", landscapes["norm only"][0], 40)
    yield _by_transform(short, constant(0.2), ORACLE, 5.0, NORM)
    for entry in landscapes["bowl"]:
        yield from _linear(entry)
    yield from covariance_order.checks(suite)
