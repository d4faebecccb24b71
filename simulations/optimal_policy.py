"""Corollary 10: under E[Uᵀ s sᵀ U a | x] = 0 every weight of the limit law of a baseline b(x) is at
least the oracle's, so asymptotically no such baseline has a stochastically smaller gap than grpo.

Where the assumption holds (:func:`~simulations.interior_problems.ordered_problem`) the laws are ordered: the
Laplace transform of the gap is smaller for every constant than for grpo and for the oracle, and the
one cdf lies under the other. In small groups grpo still pays for its own noise, and constants near V
beat it. Over several prompts, each with the assumption, it is the matrices that are ordered: the
least eigenvalue of Cov(b) - Cov(oracle) is positive for b(x) off to either side, and so is the
difference of every limit weight.

Assumption 2 in the norm, E[‖s‖² a | x] = 0, is not enough: there a constant other than V has more
mass near 0, and where curvatures are unequal its whole law may be stochastically smaller. For logits
linear in θ, E[s sᵀ a | x] is the Hessian of V(x); at an interior optimum it averages to -Λ, neither
form can hold, and a constant below V beats the oracle: in one direction V - λ/F.

Falsified by a law, a transform or a weight on the wrong side, or of another size.

Cost: about 15 seconds on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ustat_pg.engines import Estimator, GradientCell, SquaredProjection
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.predictions import (
    gap_transform,
    limit_weights,
    matrix_correlation,
    sup_distance,
)

from .engines import Decay, GapTransform
from .engines.runs.cell import BINS
from .evidence import (
    Check,
    Eigenvalue,
    LawExcess,
    Linear,
    Pit,
    equal,
    positive,
)
from .problems import Suite, mse_of, word
from .problems.landscapes import Landscape, LandscapeEntry
from .shared.peers import COARSE, scale
from .shared.runs import (
    GRPO,
    ORACLE,
    VANILLA,
    NearOptimum,
    at_optimum,
    constant,
    covariance_of,
    critic,
    moments_of,
)
from .shared.weights import Difference, projected, solved

NORM = "norm form of Assumption 2 suffices"
REVERSED = "ordering reversed for constant baselines"
EVERYWHERE = "the order holds without the assumption"
AT_ONCE = "the order holds for grpo at every G"
RIVALS = (NORM, REVERSED, EVERYWHERE, AT_ONCE)

RUNS = {
    "ordered": (2.0, 40.0, 1.5),
    "uneven": (0.7, 20.0, None),
    "norm only": (2.0, 20.0, None),
    "bowl": (2.0, 40.0, 0.5),
}
"""c λ in the flattest direction, t₀ and the radius of Θ, by family of landscapes: runs on the ordered
ones do not leave Θ, and in the flatter direction of the uneven ones errors fade slowly.
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
    """E exp(-s gap) of one baseline above that of another; s in units of 1/E gap of the oracle."""
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
    """The law of one baseline's gap above that of another by as much as predicted, nowhere below."""
    distance = sup_distance(runs.law(better), runs.law(worse))
    # What each law may be off by, and a bin at either side.
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
            equal(value, {rival: wrong}, scale=1.0, relative_margin=0.04, digits=off),
        )


def _ordered(entry: LandscapeEntry, full: bool) -> Iterator[Check]:
    """The matrix form holds: every constant loses to the oracle, and to grpo in groups of 8."""
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


def _ordered_weights(entry: LandscapeEntry) -> Iterator[Check]:
    """Every weight of a constant above the oracle's."""
    landscape, above = entry.problem, constant(float(entry.problem.maximum) + 0.4)
    c = 2 / float(landscape.curvatures[0])
    for axis, unit in enumerate(np.eye(len(landscape.curvatures))):
        apart = Difference(landscape, above, ORACLE, unit, c, 1)
        name = f"w{axis + 1}: constant V + 0.4 above the oracle"
        yield from entry.gains(name, apart.measured(), apart.predicted, REVERSED)


def _values(entry: LandscapeEntry) -> np.ndarray:
    outcomes = at_optimum(entry.problem).outcomes
    return np.asarray((outcomes.probs * outcomes.rewards).sum(axis=1))


def _fisher(entry: LandscapeEntry, squares: np.ndarray) -> np.ndarray:
    """Uᵀ E[squares(X) s sᵀ] U at the optimum, summed over prompts and arms."""
    problem, basis = at_optimum(entry.problem), entry.problem.identifiable
    scores = np.stack([problem.policy.scores(x) for x in range(problem.contexts)]) @ basis
    chances = (problem.context_probs * squares)[:, None] * problem.policy.probs
    return np.einsum("xk,xki,xkj->ij", chances, scores, scores)


def _entries(
    landscape: Landscape,
    signs: dict[Estimator, float],
    group_size: int,
    form: Callable[[np.ndarray], np.ndarray],
) -> tuple[Linear, ...]:
    """A matrix of estimators' covariances at the optimum, its lower triangle row by row: each entry is
    the trace of a covariance and the form of a symmetric unit.
    """
    problem, unit = at_optimum(landscape), np.eye(len(landscape.curvatures))
    pairs = [(unit[j], unit[k]) for j in range(len(unit)) for k in range(j + 1)]
    entries = []
    for one, other in pairs:
        matrix = form((np.outer(one, other) + np.outer(other, one)) / 2)
        terms = [
            (quantity, sign * share)
            for estimator, sign in signs.items()
            for quantity, share in projected(problem, estimator, matrix)
        ]
        entries.append(Linear(GradientCell(problem, group_size), tuple(terms)))
    return tuple(entries)


def _least_excess(
    entry: LandscapeEntry,
    worse: Estimator,
    better: Estimator,
    group_size: int,
    rivals: dict[str, float],
) -> Check:
    """The least eigenvalue of Cov - Cov: positive where the one covariance is larger as a matrix."""
    landscape, basis = entry.problem, entry.problem.identifiable
    high, low = (covariance_of(landscape, estimator, group_size) for estimator in (worse, better))
    value = np.linalg.eigvalsh(high - low)[0]
    size = scale(GradientCell(at_optimum(landscape), group_size), worse)
    excess = _entries(
        landscape, {worse: 1.0, better: -1.0}, group_size, lambda unit: basis @ unit @ basis.T
    )
    return entry.check(
        f"G={group_size}: least eigenvalue of Cov({word(worse)}) - Cov({word(better)})",
        Eigenvalue((excess,), (1.0,), 0),
        equal(float(value), rivals, scale=size, relative_margin=COARSE),
    )


def _several_prompts(entry: LandscapeEntry) -> Iterator[Check]:
    """The matrix form at every prompt: the covariance of b(x) is the oracle's and a positive matrix,
    (V - b)² F/G in the mean, and every weight of the limit law is larger.
    """
    landscape, values = entry.problem, _values(entry)
    for x in range(len(values)):
        yield _correlation_along(entry, x)
    away = np.where(np.arange(len(values)) % 2, -0.35, 0.5)
    uneven = critic(values + away)
    for worse, off in ((uneven, away), (VANILLA, values)):
        larger = np.linalg.eigvalsh(_fisher(entry, off**2))
        yield _least_excess(entry, worse, ORACLE, 1, {REVERSED: -float(larger[-1])})
    near = np.linalg.eigvalsh(_fisher(entry, (away / 4) ** 2) / 2)[0]
    yield _least_excess(entry, critic(values + away / 4), GRPO, 2, {AT_ONCE: float(near)})
    c = 1 / float(landscape.curvatures[0])
    # ½ Λ^½ Γ Λ^½ of either.
    forms = tuple(
        _entries(landscape, {estimator: 1.0}, 1, lambda unit: solved(landscape, unit, c))
        for estimator in (uneven, ORACLE)
    )
    high, low = (
        limit_weights(landscape.curvatures, covariance_of(landscape, estimator, 1), c)
        for estimator in (uneven, ORACLE)
    )
    for place, gain in enumerate((high - low).tolist()):
        yield entry.check(
            f"limit weight {place + 1}: {word(uneven)} above the oracle",
            Eigenvalue(forms, (1.0, -1.0), place),
            equal(gain, {REVERSED: -gain}, relative_margin=COARSE),
        )


def _correlation_along(entry: LandscapeEntry, x: int, *rivals: str) -> Check:
    """E[⟨s, u⟩² a | x] along a fixed direction u: E⟨ĝ, u⟩² of b = V ± 1 differs by 4 times it.

    A rival says that it is 0.
    """
    problem = at_optimum(entry.problem).restrict([x])
    (seen,) = matrix_correlation(problem.moments(), np.eye(problem.d))
    unit, value = direction(problem, 0), _values(entry)[x]
    cell = GradientCell(problem, 1)
    terms = tuple((SquaredProjection(constant(value + sign)), -sign / 4) for sign in (1.0, -1.0))
    return entry.check(
        f"prompt {x}: E[<s, u>² a]",
        Linear(cell, terms),
        equal(
            float(unit @ seen @ unit),
            dict.fromkeys(rivals, 0.0),
            scale=scale(cell, constant(value + 1), unit),
            relative_margin=COARSE,
        ),
    )


def _uneven(entry: LandscapeEntry, steps: int) -> Iterator[Check]:
    """The norm form alone: the larger weight of a constant is below the oracle's, and its whole law
    of the gap is the smaller.
    """
    better, c = constant(0.7), 0.7 / float(entry.problem.curvatures[0])
    apart = Difference(entry.problem, ORACLE, better, np.eye(2)[0], c, 1)
    name = ": the weight of the oracle above constant 0.7"
    yield from entry.gains(name, apart.measured(), apart.predicted, NORM)
    yield from _by_law(runs_on("uneven", entry, steps), better, ORACLE, NORM)
    yield _correlation_along(entry, 0, NORM)
    extra = float(np.linalg.eigvalsh(_fisher(entry, (_values(entry) - 0.7) ** 2))[0])
    yield _least_excess(entry, better, ORACLE, 1, {NORM: extra})


def best_constant(entry: LandscapeEntry) -> float:
    """V - λ/F: the best constant at an optimum in one direction, for logits linear in θ."""
    landscape = entry.problem
    fisher = float(moments_of(landscape).fisher_trace[0])
    return float(landscape.maximum) - float(landscape.curvatures[0]) / fisher


def _correlation(entry: LandscapeEntry) -> Check:
    """E[‖s‖² a] = -tr Λ, from the errors of two constants: for b = V ± δ they differ by 4 δ times it.

    With several prompts the constants lie about the mean of V that F weights.
    """
    problem, step = at_optimum(entry.problem), 0.5
    moments = problem.moments()
    share = problem.context_probs * moments.fisher_trace
    centre = float(share @ moments.value / share.sum())
    terms = tuple(
        (mse_of("constant", centre + sign * step), -sign / (4 * step)) for sign in (1.0, -1.0)
    )
    statement = equal(-float(entry.problem.curvatures.sum()), {EVERYWHERE: 0.0})
    return entry.check(": E[‖s‖² a] = -tr Λ", Linear(GradientCell(problem, 1), terms), statement)


def _linear(entry: LandscapeEntry) -> Iterator[Check]:
    """Logits linear in θ: a constant below V beats the oracle in whole runs, by as much as predicted."""
    runs, better = runs_on("bowl", entry), constant(best_constant(entry))
    times = runs.steps + 40.0
    gain = times * (sum(runs.weights(ORACLE)) - sum(runs.weights(better)))
    name = f"{_at(runs)}: oracle's mean gap above that of V - λ/F"
    functional = runs.gap_difference(ORACLE, better, times)
    digits = times * sum(
        runs.left_out_of(estimator) * runs.size(estimator) for estimator in (ORACLE, better)
    )
    yield from entry.gains(name, functional, gain, EVERYWHERE, digits=digits, relative_margin=0.3)
    yield from _by_law(runs, better, ORACLE, EVERYWHERE)


def checks(suite: Suite) -> Iterator[Check]:
    """The order where the assumption holds, and what happens where it does not."""
    landscapes, smoke = suite.landscapes, suite.size == "smoke"
    for entry in landscapes["ordered"]:
        yield from _ordered(entry, not smoke)
    for entry in landscapes["ordered, d = 2"]:
        yield from _ordered_weights(entry)
    for entry in landscapes["ordered prompts"]:
        yield from _several_prompts(entry)
    for entry in landscapes["uneven"]:
        yield from _uneven(entry, 400 if smoke else 1000)
    # The norm form alone and equal curvatures: a constant has more mass near 0.
    short = runs_on("norm only", landscapes["norm only"][0], 40)
    yield _by_transform(short, constant(0.2), ORACLE, 5.0, NORM)
    for entry in landscapes["bowl"]:
        yield _correlation(entry)
        yield from _linear(entry)
    for entry in (landscapes["slopes"][0], *landscapes["quarrel"]):
        yield _correlation(entry)
    for entry in (landscapes["slopes"][0], *landscapes["quarrel"]):
        values = _values(entry)
        below = critic(values - np.linspace(0.05, 0.1, len(values)))
        extra = _fisher(entry, np.linspace(0.05, 0.1, len(values)) ** 2)
        wrong = float(np.linalg.eigvalsh(extra)[0])
        yield _least_excess(entry, below, ORACLE, 1, {EVERYWHERE: wrong})
