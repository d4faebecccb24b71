"""Corollary 10 by matrices: the order of covariances and of limit weights, and its assumptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ustat_pg.engines import Estimator, GradientCell, SquaredProjection
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.predictions import limit_weights, matrix_correlation

from ..evidence import Check, Eigenvalue, Linear, equal
from ..problems import Suite, mse_of, word
from ..problems.landscapes import Landscape, LandscapeEntry
from ..shared.margins import COARSE
from ..shared.peers import scale
from ..shared.runs import GRPO, ORACLE, VANILLA, at_optimum, constant, covariance_of, critic
from ..shared.weights import Difference, projected, solved

NORM = "norm form of Assumption 2 suffices"
REVERSED = "ordering reversed for constant baselines"
EVERYWHERE = "the order holds without the assumption"
AT_ONCE = "the order holds for grpo at every G"
RIVALS = (NORM, REVERSED, EVERYWHERE, AT_ONCE)


def ordered_weights(entry: LandscapeEntry) -> Iterator[Check]:
    """Every weight of a constant above the oracle's."""
    landscape, above = entry.problem, constant(float(entry.problem.maximum) + 0.4)
    c = 2 / float(landscape.curvatures[0])
    for axis, unit in enumerate(np.eye(len(landscape.curvatures))):
        apart = Difference(landscape, above, ORACLE, unit, c, 1)
        name = f"w{axis + 1}: constant V + 0.4 above the oracle"
        yield from entry.gains(name, apart.measured(), apart.predicted, REVERSED)


def values_at_optimum(entry: LandscapeEntry) -> np.ndarray:
    outcomes = at_optimum(entry.problem).outcomes
    return np.asarray((outcomes.probs * outcomes.rewards).sum(axis=1))


def fisher_of(entry: LandscapeEntry, squares: np.ndarray) -> np.ndarray:
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
    """A matrix of estimators' covariances at the optimum, as its lower triangle by rows. Each entry is
    the trace of a covariance times a symmetric unit matrix.
    """
    problem, unit = at_optimum(landscape), np.eye(len(landscape.curvatures))
    entries = []
    for j, k in zip(*np.tril_indices(len(unit)), strict=True):
        product = np.outer(unit[j], unit[k])
        matrix = form((product + product.T) / 2)
        terms = [
            (quantity, sign * share)
            for estimator, sign in signs.items()
            for quantity, share in projected(problem, estimator, matrix)
        ]
        entries.append(Linear(GradientCell(problem, group_size), tuple(terms)))
    return tuple(entries)


def least_excess(
    entry: LandscapeEntry,
    worse: Estimator,
    better: Estimator,
    group_size: int,
    rivals: dict[str, float],
) -> Check:
    """The least eigenvalue of Cov - Cov: positive if the first covariance is the larger matrix."""
    landscape, basis = entry.problem, entry.problem.identifiable
    high, low = (covariance_of(landscape, estimator, group_size) for estimator in (worse, better))
    value = np.linalg.eigvalsh(high - low)[0]
    size, signs = (
        scale(GradientCell(at_optimum(landscape), group_size), worse),
        {worse: 1.0, better: -1.0},
    )
    excess = _entries(landscape, signs, group_size, lambda unit: basis @ unit @ basis.T)
    return entry.check(
        f"G={group_size}: least eigenvalue of Cov({word(worse)}) - Cov({word(better)})",
        Eigenvalue((excess,), (1.0,), 0),
        equal(float(value), rivals, scale=size, relative_margin=COARSE),
    )


def _below_the_oracle(
    entry: LandscapeEntry, baseline: Estimator, off: np.ndarray, rival: str
) -> Check:
    """A baseline that differs from V at each prompt is better than the oracle along a direction. A rival says
    that the difference costs E[off² s sᵀ], as under the assumption.
    """
    least = float(np.linalg.eigvalsh(fisher_of(entry, off**2))[0])
    return least_excess(entry, baseline, ORACLE, 1, {rival: least})


def several_prompts(entry: LandscapeEntry) -> Iterator[Check]:
    """The matrix form at every prompt: the covariance of b(x) is the oracle's plus a positive matrix with
    mean (V - b)² F/G, and every weight of the limit law is larger.
    """
    landscape, values = entry.problem, values_at_optimum(entry)
    for x in range(len(values)):
        yield correlation_along(entry, x)
    away = np.where(np.arange(len(values)) % 2, -0.35, 0.5)
    uneven = critic(values + away)
    for worse, off in ((uneven, away), (VANILLA, values)):
        larger = np.linalg.eigvalsh(fisher_of(entry, off**2))
        yield least_excess(entry, worse, ORACLE, 1, {REVERSED: -float(larger[-1])})
    near = np.linalg.eigvalsh(fisher_of(entry, (away / 4) ** 2) / 2)[0]
    yield least_excess(entry, critic(values + away / 4), GRPO, 2, {AT_ONCE: float(near)})
    c = 1 / float(landscape.curvatures[0])
    # ½ Λ^½ Γ Λ^½ for each.
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


def correlation_along(entry: LandscapeEntry, x: int, *rivals: str) -> Check:
    """E[⟨s, u⟩² a | x] along a fixed direction u: E⟨ĝ, u⟩² of b = V ± 1 differs by 4 times it.

    A rival says that it is 0.
    """
    problem = at_optimum(entry.problem).restrict([x])
    (seen,) = matrix_correlation(problem.moments(), np.eye(problem.d))
    unit, value = direction(problem, 0), values_at_optimum(entry)[x]
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


def score_correlation(entry: LandscapeEntry) -> Check:
    """E[‖s‖² a] = -tr Λ, from the errors of two constants: for b = V ± δ they differ by 4 δ times it.

    With several prompts the constants lie around the mean of V weighted by F.
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


def checks(suite: Suite) -> Iterator[Check]:
    """The order of the matrices with and without the assumption."""
    landscapes = suite.landscapes
    for entry in landscapes["ordered, d = 2"]:
        yield from ordered_weights(entry)
    for entry in landscapes["ordered prompts"]:
        yield from several_prompts(entry)
    for entry in landscapes["uneven"]:
        values = values_at_optimum(entry)
        yield correlation_along(entry, 0, NORM)
        yield _below_the_oracle(entry, constant(0.7), values - 0.7, NORM)
    for entry in landscapes["bowl"]:
        yield score_correlation(entry)
    for entry in (landscapes["slopes"][0], *landscapes["quarrel"]):
        values = values_at_optimum(entry)
        off = np.linspace(0.05, 0.1, len(values))
        yield score_correlation(entry)
        yield _below_the_oracle(entry, critic(values - off), off, EVERYWHERE)
