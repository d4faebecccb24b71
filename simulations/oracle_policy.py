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
from math import log, sqrt

import numpy as np

from ustat_pg.checks import equal
from ustat_pg.engines import Decay, Estimator, Gap, GradientCell, Training
from ustat_pg.experiment import Check, Claim, Linear, LogSlope, Point, mean_of
from ustat_pg.predictions import (
    finite_covariance,
    limit_weights,
    mean_gap,
    stationary_covariance,
    weight_derivatives,
)

from .landscapes import Ground, Landscapes, ball, covariance_of, form_of_weight, projected
from .problems import Suite

STEM = "oracle_policy"

FIRST = "order G^-1"
THIRD = "order G^-3"
ENDPOINT = "one weight at every endpoint"
RIVALS = (FIRST, THIRD, ENDPOINT)
ORDERS = {FIRST: -1.0, THIRD: -3.0}

GRPO, ORACLE = Estimator("grpo"), Estimator("oracle")

OFFSET = 60.0
"""t₀ of the rates c/(t + t₀)."""

ALLOWANCE = 12.0
"""A finite run may be off by this over T + t₀, relative to its prediction."""

REACH = 5.0
"""Θ: standard deviations of the linear recursion; five are met once in a million steps."""


def pairs(size: int) -> int:
    """G(G-1)."""
    return size * (size - 1)


def scale(ground: Ground) -> float:
    """c of the rates, such that c λ = 2 in the flattest direction."""
    return 2 / float(ground.landscape.curvatures[0])


def schedule(ground: Ground) -> Decay:
    """The rates c/(t + t₀)."""
    return Decay(scale(ground), OFFSET)


def constants(ground: Ground) -> np.ndarray:
    """C of every weight, (r,): what B G(G-1) times the difference tends to."""
    landscape = ground.landscape
    without = covariance_of(landscape, "oracle", 2)
    change = 2 * (covariance_of(landscape, "grpo", 2) - without)
    # The oracle's covariance of a large group: its eigenvectors are those that the limit knows.
    return weight_derivatives(landscape.curvatures, _prompts(ground), change, scale(ground))


def _prompts(ground: Ground) -> np.ndarray:
    """The oracle's covariance as G grows, or, where all prompts agree, G times it."""
    landscape = ground.landscape
    whole = covariance_of(landscape, "oracle", 1)
    return whole if len(landscape.context_probs) == 1 else covariance_of(landscape, "oracle", 10**9)


def _axes(ground: Ground) -> np.ndarray:
    """Eigenvectors of the limit weights, as columns, ascending, (r, r)."""
    curvatures = ground.landscape.curvatures
    gamma = stationary_covariance(curvatures, _prompts(ground), scale(ground))
    root = np.sqrt(curvatures)
    return np.asarray(np.linalg.eigh(root[:, None] * gamma * root)[1])


def difference(
    ground: Ground,
    size: int,
    batch: int = 1,
    weight: int = 0,
    away: float | np.ndarray = 0.0,
    times: float = 1,
) -> Linear:
    """``times`` w_k(grpo) - w_k(oracle) to first order, from gradients at the optimum + ``away``."""
    landscape = ground.landscape
    problem = landscape.at(landscape.maximiser + away)
    form = form_of_weight(landscape, _axes(ground)[:, weight], scale(ground))
    terms = [
        (quantity, sign * times * share)
        for estimator, sign in ((GRPO, 1.0), (ORACLE, -1.0))
        for quantity, share in projected(problem, estimator, form)
    ]
    return Linear(GradientCell(problem, size, batch), tuple(terms))


def _slope(ground: Ground, sizes: tuple[int, ...], weight: int, exactly: bool) -> Check:
    """The order of a weight's difference at the optimum, on an axis where it is -2 at every G or on
    that of log G.
    """
    constant = float(constants(ground)[weight])
    values = tuple(constant / pairs(size) for size in sizes)
    places = tuple(0.5 * log(pairs(size)) if exactly else log(size) for size in sizes)
    return Check(
        f"{_word(ground, weight)} G={sizes[0]}..{sizes[-1]}: order on "
        + ("½ log G(G-1)" if exactly else "log G"),
        ground.origin,
        LogSlope(places, tuple(difference(ground, size, weight=weight) for size in sizes), values),
        equal(float(np.polyfit(places, np.log(values), 1)[0]), ORDERS, relative_margin=0.25),
    )


def _word(ground: Ground, weight: int) -> str:
    return ground.name + (f" w{weight + 1}" if len(ground.landscape.curvatures) > 1 else "")


def _gradients(ground: Ground, sizes: tuple[int, ...]) -> Iterator[Check]:
    """Every weight's difference at the optimum: its order, and its constant at the least G."""
    for k, constant in enumerate(constants(ground).tolist()):
        yield _slope(ground, sizes, k, exactly=True)
        for size in sizes[:2]:
            yield Check(
                f"{_word(ground, k)} G={size}: G(G-1) times the difference",
                ground.origin,
                difference(ground, size, weight=k, times=pairs(size)),
                equal(constant),
            )


def training(ground: Ground, size: int, steps: int) -> Training:
    """Runs from the optimum, on a Θ that they hardly ever reach the edge of."""
    landscape, rates = ground.landscape, schedule(ground)
    spread = finite_covariance(
        landscape.curvatures,
        covariance_of(landscape, "grpo", size),
        rates.rates(steps),
        steps=np.arange(1, steps + 1),
    )
    radius = REACH * sqrt(float(np.linalg.eigvalsh(spread).max()))
    return Training(landscape, size, steps, rates, projection=ball(landscape, radius))


def predicted_gap(ground: Ground, baseline: str, size: int, steps: int) -> float:
    """(T + t₀) E gap_T of the linear recursion."""
    landscape = ground.landscape
    noise = covariance_of(landscape, baseline, size)
    rates = schedule(ground).rates(steps)
    return float((steps + OFFSET) * mean_gap(landscape.curvatures, noise, rates))


def _runs(ground: Ground, size: int, steps: int) -> tuple[Linear, float]:
    """(T + t₀) (E gap_grpo - E gap_oracle) after T steps, and its prediction."""
    weights = tuple(
        (Gap(estimator, steps, steps + OFFSET), sign)
        for estimator, sign in ((GRPO, 1.0), (ORACLE, -1.0))
    )
    predicted = predicted_gap(ground, "grpo", size, steps)
    predicted -= predicted_gap(ground, "oracle", size, steps)
    return Linear(training(ground, size, steps), weights), predicted


def _whole_runs(ground: Ground, sizes: tuple[int, ...], ends: tuple[int, ...]) -> Iterator[Check]:
    """Checks in whole training runs: the order in G, and the size at every T."""
    first = ends[0]
    found = [_runs(ground, size, first) for size in sizes]
    places = tuple(0.5 * log(pairs(size)) for size in sizes)
    values = tuple(value for _, value in found)
    yield Check(
        f"{ground.name} G={sizes[0]}..{sizes[-1]}: order of the mean gaps' difference, T={first}",
        ground.origin,
        LogSlope(places, tuple(point for point, _ in found), values),
        equal(-2.0, ORDERS, digits=ALLOWANCE / (first + OFFSET), relative_margin=0.25),
    )
    for end in ends:
        functional, value = _runs(ground, 2, end)
        yield Check(
            f"{ground.name} G=2: difference of the mean gaps, T={end}",
            ground.origin,
            functional,
            equal(value, digits=value * ALLOWANCE / (end + OFFSET), relative_margin=0.2),
        )


def _batch(ground: Ground) -> Iterator[Check]:
    """Two prompts in a minibatch halve the difference."""
    constant = float(constants(ground)[0])
    yield Check(
        f"{ground.name} B=2 G=2: B G(G-1) times the difference",
        ground.origin,
        difference(ground, 2, 2, times=4),
        equal(constant),
    )


def _along_flat(ground: Ground) -> Iterator[Check]:
    """Far along a flat direction that the covariance does not see, the same constant."""
    away = 4 * ground.landscape.flat[:, 0]
    constant = float(constants(ground)[0])
    yield Check(
        f"{ground.name} G=2: 4 away in the flat direction",
        ground.origin,
        difference(ground, 2, away=away, times=2),
        equal(constant),
    )


ENDS = (-2.0, 2.0)
"""θ₂ of two endpoints of a mixture."""


def _ends(ground: Ground) -> Iterator[Check]:
    """Where the covariance sees a flat direction, another difference at every endpoint."""
    landscape = ground.landscape
    points, values = [], []
    for end in ENDS:
        away = np.array([0.0, end])
        moments = landscape.at(landscape.maximiser + away).moments()
        assert moments.matrices is not None
        (record,) = moments.matrices()
        # σ²F along the direction that is identified, the first coordinate; G(G-1) = 2.
        second = float(moments.reward_variance[0] * record.fisher[0, 0]) / 2
        points.append(difference(ground, 2, away=away))
        values.append(float(limit_weights(landscape.curvatures, [[second]], scale(ground))[0]))
    yield Check(
        f"{ground.name} G=2: log ratio of the differences at two endpoints",
        ground.origin,
        LogSlope((0.0, 1.0), tuple(points), tuple(values)),
        equal(log(values[1] / values[0]), {ENDPOINT: 0.0}, relative_margin=0.2),
    )


def _checks(suite: Suite) -> Iterator[Check]:
    grounds, smoke = Landscapes(suite), suite.size == "smoke"
    for ground in grounds.triples("one"):
        yield from _gradients(ground, (2, 4, 16))
        if ground.origin == "made-up" and not smoke:
            yield from _whole_runs(ground, (2, 4, 8), (200,))
    for number, ground in enumerate(grounds.triples("pair")):
        yield from _gradients(ground, (2, 4, 16))
        # The made-up one and the first that is generated; runs cost more than gradients.
        if smoke and number < 2:
            yield from _whole_runs(ground, (2, 4), (100,))
        elif number < 2:
            yield _slope(ground, (8, 32), 0, exactly=False)
            yield from _whole_runs(ground, (2, 4, 8), (200,) if number else (200, 800))
    if not smoke:
        yield from _gradients(grounds.slopes, (2, 4))
    for ground in grounds.triples("pair"):
        yield from _batch(ground)
    for ground in grounds.triples("flat"):
        yield from _along_flat(ground)
    for ground in grounds.mixtures():
        yield from _ends(ground)


def claim(suite: Suite) -> Claim:
    """The difference at the optimum and in whole runs, its order, and what it rests on."""
    if suite.user is not None:
        # A problem of the user's own need not have an interior optimum.
        return Claim(STEM, RIVALS, ())
    return Claim(STEM, RIVALS, tuple(_checks(suite)))


def curves(suite: Suite) -> Iterator[Point]:
    """The limit weights against G, their difference, and G(G-1) times it, beside mean gaps of runs."""
    if suite.user is not None:
        return
    grounds = Landscapes(suite)
    for ground in (next(grounds.triples("one")), next(grounds.triples("pair"))):
        landscape, constant = ground.landscape, float(constants(ground)[0])
        for size in (2, 3, 4, 6, 8, 12, 16, 24, 32):
            at: dict[str, float | str] = {"problem": ground.name, "group_size": size}
            problem = landscape.at(landscape.maximiser)
            form = form_of_weight(landscape, _axes(ground)[:, 0], scale(ground))
            for estimator in (GRPO, ORACLE):
                noise = covariance_of(landscape, estimator.baseline, size)
                (weight,) = limit_weights(landscape.curvatures, noise, scale(ground))
                functional = Linear(
                    GradientCell(problem, size), tuple(projected(problem, estimator, form))
                )
                yield Point(STEM, estimator.baseline, at, float(weight), functional)
            yield Point(
                STEM, "difference", at, constant / pairs(size), difference(ground, size), True
            )
            yield Point(
                STEM,
                "scaled difference",
                at,
                constant,
                difference(ground, size, times=pairs(size)),
                True,
            )
            if size in (2, 4, 8):
                functional, _ = _runs(ground, size, 200)
                for series, times in (("runs", 1), ("scaled runs", pairs(size))):
                    scaled = tuple(
                        (quantity, times * sign) for quantity, sign in functional.weights
                    )
                    yield Point(
                        STEM, series, at, None, Linear(functional.cell, scaled), enumerate=True
                    )
            for estimator in (GRPO, ORACLE):
                if size in (2, 4, 8):
                    yield Point(
                        STEM,
                        f"{estimator.baseline} runs",
                        at,
                        None,
                        mean_of(training(ground, size, 200), Gap(estimator, 200, 200 + OFFSET)),
                    )
