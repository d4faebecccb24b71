"""Corollary 10: under E[Uᵀ s sᵀ U a | x] = 0 every weight of the limit law of a baseline b(x) is at
least the oracle's, so asymptotically no such baseline has a stochastically smaller gap than grpo.

Where the assumption holds (:func:`~ustat_pg.problems.ordered_problem`) the laws are ordered: the
Laplace transform of the gap is smaller for every constant than for grpo and for the oracle, and the
one cdf lies under the other. In small groups grpo still pays for its own noise, and constants near V
beat it.

Assumption 2 in the norm, E[‖s‖² a | x] = 0, is not enough. There a constant other than V has more
mass near 0, one weight below the oracle's; where curvatures are unequal both may be, and the whole
law of a constant's gap stochastically smaller.

For logits linear in θ, E[s sᵀ a | x] is the Hessian of V(x). So at an interior optimum it averages to
-Λ, neither form can hold, and a constant below V beats the oracle: in one direction V - λ/F.

Falsified by a law, a transform or a weight on the wrong side, or of another size.

Cost: about 15 seconds on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from ustat_pg.checks import equal, positive
from ustat_pg.distributions import WeightedChi2
from ustat_pg.engines import Decay, Estimator, Gap, GapTransform, GradientCell, Pit, Training
from ustat_pg.experiment import Check, Claim, LawExcess, LawShare, Linear, Point
from ustat_pg.predictions import finite_weights, sup_distance
from ustat_pg.problems import norm_only_problem

from .landscapes import Ground, Landscapes, ball, covariance_of, form_of_weight, projected
from .problems import Suite, mse_of

STEM = "optimal_policy"

NORM = "norm form of Assumption 2 suffices"
REVERSED = "ordering reversed for constant baselines"
EVERYWHERE = "the order holds without the assumption"
AT_ONCE = "the order holds for grpo at every G"
RIVALS = (NORM, REVERSED, EVERYWHERE, AT_ONCE)

GRPO, ORACLE, VANILLA = Estimator("grpo"), Estimator("oracle"), Estimator("vanilla")

CURVED = 0.02
"""How far the law of a finite run may be off the linear recursion's, as a probability."""


def constant(value: float) -> Estimator:
    """The baseline that is this number."""
    return Estimator("constant", float(value))


def _word(estimator: Estimator) -> str:
    value = estimator.constant
    return estimator.baseline if value is None else f"constant {value:.4g}"


@lru_cache(maxsize=512)
def weights(ground: Ground, runs: Training, estimator: Estimator, steps: int) -> tuple[float, ...]:
    """Weights of the law of the gap after so many steps."""
    landscape = ground.landscape
    more = {} if estimator.constant is None else {"constant": estimator.constant}
    noise = covariance_of(landscape, estimator.baseline, runs.group_size, runs.batch_size, **more)
    found = finite_weights(landscape.curvatures, noise, runs.schedule.rates(steps))
    return tuple(found.tolist())


def _transform(ground: Ground, runs: Training, estimator: Estimator, rate: float) -> float:
    law = np.array(weights(ground, runs, estimator, runs.steps))
    return float(np.prod((1 + 2 * rate * law) ** -0.5))


def _by_transform(
    ground: Ground, runs: Training, better: Estimator, worse: Estimator, rate: float, rival: str
) -> Check:
    """E exp(-s gap) of one baseline above that of another; s in units of 1/E gap of the oracle."""
    times = rate / sum(weights(ground, runs, ORACLE, runs.steps))
    gain = _transform(ground, runs, better, times) - _transform(ground, runs, worse, times)
    quantities = tuple(
        (GapTransform(estimator, runs.steps, times), sign)
        for estimator, sign in ((better, 1.0), (worse, -1.0))
    )
    return Check(
        f"{_at(ground, runs)}: transform of {_word(better)} above {_word(worse)}, s={rate:g}",
        ground.origin,
        Linear(runs, quantities),
        positive(gain, [rival], scale=1.0),
    )


def _at(ground: Ground, runs: Training) -> str:
    return f"{ground.name} G={runs.group_size} T={runs.steps}"


def _by_law(
    ground: Ground, runs: Training, better: Estimator, worse: Estimator, rival: str
) -> Iterator[Check]:
    """The law of one baseline's gap above that of another by as much as predicted, nowhere below."""
    one, other = (WeightedChi2(weights(ground, runs, e, runs.steps)) for e in (better, worse))
    distance = sup_distance(one, other)
    edges = weights(ground, runs, ORACLE, runs.steps)
    first, second = (Pit(estimator, runs.steps, edges) for estimator in (better, worse))
    name = f"{_at(ground, runs)}: law of {_word(better)} over {_word(worse)}"
    yield Check(
        f"{name}: by how much",
        ground.origin,
        LawExcess(runs, first, second),
        equal(distance, {rival: 0.0}, scale=1.0, relative_margin=0.04, digits=CURVED),
    )
    yield Check(
        f"{name}: nowhere below",
        ground.origin,
        LawExcess(runs, second, first),
        equal(0.0, {rival: distance}, scale=1.0, relative_margin=0.04, digits=CURVED / 2),
    )


def ordered_runs(ground: Ground, size: int, steps: int = 120) -> Training:
    """Runs from the optimum under c/(t + t₀), c λ = 2, on a ball that they do not leave."""
    landscape = ground.landscape
    rates = Decay(2 / float(landscape.curvatures[0]), 40.0)
    return Training(landscape, size, steps, rates, projection=ball(landscape, 1.5))


def _ordered(ground: Ground, full: bool) -> Iterator[Check]:
    """The matrix form holds: every constant loses to the oracle, and to grpo in groups of 8."""
    value = float(ground.landscape.maximum)
    steps = 120 if full else 80
    runs = ordered_runs(ground, 8, steps)
    for estimator in (VANILLA, constant(value + 0.4)):
        for better in (GRPO, ORACLE):
            for rate in (0.5, 10.0) if full else (2.0,):
                yield _by_transform(ground, runs, better, estimator, rate, REVERSED)
        yield from _by_law(ground, runs, GRPO, estimator, REVERSED)
    yield _by_transform(ground, runs, ORACLE, constant(value - 0.25), 2.0, REVERSED)
    small = ordered_runs(ground, 4, steps)
    yield _by_transform(ground, small, constant(value + 0.1), GRPO, 2.0, AT_ONCE)


def weight_gain(ground: Ground, better: Estimator, worse: Estimator, axis: int, c: float) -> Linear:
    """The limit weight of one baseline in an eigendirection less that of another, at G = 1, from
    gradients at the optimum.
    """
    landscape = ground.landscape
    problem = landscape.at(landscape.maximiser)
    form = form_of_weight(landscape, np.eye(len(landscape.curvatures))[axis], c)
    terms = [
        (quantity, sign * share)
        for estimator, sign in ((worse, 1.0), (better, -1.0))
        for quantity, share in projected(problem, estimator, form)
    ]
    return Linear(GradientCell(problem, 1), tuple(terms))


def factors(ground: Ground, c: float) -> np.ndarray:
    """What a variance in each eigendirection is multiplied by to give a limit weight, (r,)."""
    exponents = c * ground.landscape.curvatures
    return np.asarray(c * exponents / (2 * (2 * exponents - 1)))


def _ordered_weights(ground: Ground) -> Iterator[Check]:
    """Every weight of a constant above the oracle's, by (V - b)² F times its factor."""
    value, c = float(ground.landscape.maximum), 2 / float(ground.landscape.curvatures[0])
    for axis, factor in enumerate(factors(ground, c)):
        gain = float(factor) * 0.4**2 / len(factors(ground, c))
        functional = weight_gain(ground, ORACLE, constant(value + 0.4), axis, c)
        name = f"{ground.name} w{axis + 1}: constant V + 0.4 above the oracle"
        yield Check(name, ground.origin, functional, positive(gain, [REVERSED], scale=gain))
        yield Check(f"{name}: by how much", ground.origin, functional, equal(gain))


def uneven_runs(ground: Ground, steps: int) -> Training:
    """Runs under c/(t + t₀) with c λ = 0.7 in the flatter direction: its errors fade slowly."""
    rates = Decay(0.7 / float(ground.landscape.curvatures[0]), 20.0)
    return Training(ground.landscape, 2, steps, rates)


def _uneven(ground: Ground, steps: int) -> Iterator[Check]:
    """The norm form alone: the larger weight of a constant is below the oracle's, and its whole law
    of the gap is the smaller.
    """
    better, c = constant(0.7), 0.7 / float(ground.landscape.curvatures[0])
    # Variances at G = 1: ½(1 - b)² along the flatter direction, ½ b² along the other.
    oracle = factors(ground, c) * 0.125
    own = factors(ground, c) * 0.5 * np.array([0.3**2, 0.7**2])
    gain = float(oracle[0] - own[0])
    functional = weight_gain(ground, better, ORACLE, 0, c)
    name = f"{ground.name}: the weight of the oracle above constant 0.7"
    yield Check(name, ground.origin, functional, positive(gain, [NORM], scale=gain))
    yield Check(f"{name}: by how much", ground.origin, functional, equal(gain))
    yield from _by_law(ground, uneven_runs(ground, steps), better, ORACLE, NORM)


def crossing_runs(ground: Ground) -> Training:
    """A short run, for exact expectations on a plane."""
    rates = Decay(2 / float(ground.landscape.curvatures[0]), 20.0)
    return Training(ground.landscape, 2, 40, rates)


def _crossing() -> Iterator[Check]:
    """The norm form alone and equal curvatures: a constant has more mass near 0."""
    ground = Ground("norm only", "made-up", norm_only_problem())
    yield _by_transform(ground, crossing_runs(ground), constant(0.2), ORACLE, 5.0, NORM)


def best_constant(ground: Ground) -> float:
    """V - λ/F: the best constant at an optimum in one direction, for logits linear in θ."""
    landscape = ground.landscape
    fisher = float(landscape.at(landscape.maximiser).moments().fisher_trace[0])
    return float(landscape.maximum) - float(landscape.curvatures[0]) / fisher


def linear_runs(ground: Ground) -> Training:
    """Runs on a problem whose logits are linear in θ."""
    rates = Decay(2 / float(ground.landscape.curvatures[0]), 40.0)
    return Training(ground.landscape, 2, 120, rates, projection=ball(ground.landscape, 0.5))


def _correlation(ground: Ground) -> Check:
    """E[‖s‖² a] = -tr Λ, from the errors of two constants: for b = V ± δ they differ by 4 δ times it.

    With several prompts the constants lie about the mean of V that F weights.
    """
    landscape, step = ground.landscape, 0.5
    problem = landscape.at(landscape.maximiser)
    moments = problem.moments()
    share = problem.context_probs * moments.fisher_trace
    centre = float(share @ moments.value / share.sum())
    terms = tuple(
        (mse_of("constant", centre + sign * step), -sign / (4 * step)) for sign in (1.0, -1.0)
    )
    total = -float(landscape.curvatures.sum())
    return Check(
        f"{ground.name}: E[‖s‖² a] = -tr Λ",
        ground.origin,
        Linear(GradientCell(problem, 1), terms),
        equal(total, {EVERYWHERE: 0.0}),
    )


def _linear(ground: Ground) -> Iterator[Check]:
    """Logits linear in θ: a constant below V beats the oracle in whole runs, by as much as predicted."""
    runs, better = linear_runs(ground), constant(best_constant(ground))
    times = runs.steps + 40.0
    quantities = tuple(
        (Gap(estimator, runs.steps, times), sign)
        for estimator, sign in ((ORACLE, 1.0), (better, -1.0))
    )
    means = [sum(weights(ground, runs, e, runs.steps)) for e in (ORACLE, better)]
    gain = times * (means[0] - means[1])
    functional = Linear(runs, quantities)
    name = f"{_at(ground, runs)}: oracle's mean gap above that of V - λ/F"
    yield Check(name, ground.origin, functional, positive(gain, [EVERYWHERE], scale=gain))
    yield Check(
        f"{name}: by how much",
        ground.origin,
        functional,
        equal(gain, digits=0.05 * gain, relative_margin=0.3),
    )
    yield from _by_law(ground, runs, better, ORACLE, EVERYWHERE)


def _checks(suite: Suite) -> Iterator[Check]:
    grounds, smoke = Landscapes(suite), suite.size == "smoke"
    for ground in grounds.ordered():
        yield from _ordered(ground, not smoke)
    for ground in grounds.ordered(2):
        yield from _ordered_weights(ground)
    for ground in grounds.uneven():
        yield from _uneven(ground, 400 if smoke else 1000)
    yield from _crossing()
    for ground in (grounds.bowl, *grounds.bowls()):
        yield _correlation(ground)
        yield from _linear(ground)
    for ground in (grounds.slopes, *grounds.triples("pair")):
        yield _correlation(ground)


def claim(suite: Suite) -> Claim:
    """The order where the assumption holds, and what happens where it does not."""
    if suite.user is not None:
        # A problem of the user's own need not have an interior optimum.
        return Claim(STEM, RIVALS, ())
    return Claim(STEM, RIVALS, tuple(_checks(suite)))


LEVELS = (*(k / 32 for k in range(1, 32)), 2000 / 2048, 2030 / 2048)
"""Quantiles of the oracle's law at which cdfs are shown, on the edges of bins."""


def curves(suite: Suite) -> Iterator[Point]:
    """The laws of the gap, as cdfs over the oracle's quantiles, for baselines on three problems."""
    if suite.user is not None:
        return
    grounds = Landscapes(suite)
    ordered, uneven = next(grounds.ordered()), next(grounds.uneven())
    crossing = Ground("norm only", "made-up", norm_only_problem())
    for ground, runs, estimators in (
        (ordered, ordered_runs(ordered, 8), (ORACLE, GRPO, constant(0.9), VANILLA)),
        (crossing, crossing_runs(crossing), (ORACLE, constant(0.2))),
        (uneven, uneven_runs(uneven, 1000), (ORACLE, constant(0.7))),
    ):
        edges = weights(ground, runs, ORACLE, runs.steps)
        law = WeightedChi2(edges)
        for estimator in estimators:
            own = WeightedChi2(weights(ground, runs, estimator, runs.steps))
            pit = Pit(estimator, runs.steps, edges)
            for number, level in enumerate(LEVELS):
                place = float(law.ppf(level))
                at: dict[str, float | str] = {
                    "problem": ground.name,
                    "group_size": runs.group_size,
                    "gap": place / float(law.mean()),
                }
                # Lines want more points than the eye does.
                share = LawShare(runs, pit, level) if number % 2 else None
                yield Point(STEM, estimator.label, at, float(own.cdf(place)), share)
