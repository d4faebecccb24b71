"""Theorem 8: with ηₜ = c/t, T times the gap tends in law to Σ wₖ χ²₁, w the eigenvalues of
½ Λ^½ Γ Λ^½ and Γ_jk = c² Σ_jk / (c λ_j + c λ_k - 1), for √T Uᵀ(θ_T - θ*) tends to N(0, Γ).

The first step from the optimum has the second moments η² Σ: no more is left out there than rounding.
After many steps they are those of the linear recursion, Γ_T, but for an error of order 1/T (cubic
terms of the return). Its size is computed, from how curvature and noise change around the optimum,
and taken off: runs of n, 2n and 4n steps at rates 1, 1/2 and 1/4 as large are extrapolated
(Richardson). The same runs at two steps each, extrapolated in T as well, are held against the limit.

Asked are the Laplace transform of the gap, the characteristic function of Uᵀ(θ - θ*) in directions
in which its coordinates are correlated, its second moments, entry by entry, and their eigenvalues,
with up to three directions and noise that does not commute with the Hessian; the whole distribution
by simulation, in a Dvoretzky-Kiefer-Wolfowitz band; and consistency: from a start away,
1 - E exp(-s gap), which bounds a multiple of P(gap > δ) for every δ, falls like 1/T.

What is asked of the runs rests on the problem's own return, curvatures and rates, and on the laws as
they are computed: each has a check of its own, the laws against quadrature and draws.

Where the noise depends on the endpoint (Assumption 8) the limit is a mixture: each run is held
against its own law. A start with too small a t₀ leaves the basin of the optimum: another law.

Falsified by any of these being off by more than what is computed to be left out.

Cost: about 20 seconds of one core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import exp, inf, log, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from ustat_pg.distributions import WeightedChi2
from ustat_pg.engines import Estimator, Quantity
from ustat_pg.predictions import (
    MixtureLaw,
    conditional_transform,
    finite_covariance,
    finite_law,
    finite_weights,
    gap_transform,
    limit_law,
    mean_gap,
    stationary_covariance,
    sup_distance,
)

from .engines import Decay, GapTransform, Training
from .engines.runs.cell import BINS
from .evidence import (
    Below,
    Check,
    ChiSquares,
    Eigenvalue,
    Extrapolation,
    Interval,
    LawDistance,
    Linear,
    Pit,
    Statement,
    TransformOf,
    equal,
    mean_of,
)
from .problems import Entry, Suite
from .problems.landscapes import LandscapeEntry
from .shared.basins import curvatures
from .shared.mixture import Mixture
from .shared.runs import EXTRAPOLATED, GRPO, RADIUS, Limit, NearOptimum

NORMAL = "normal"
EQUAL = "equal weights"
ONE = "one chi-square with the same mean"
ORACLE = "oracle's weights at G = 2"
DENOMINATOR = 'no "-1" in the Lyapunov denominator'
HALF = "no 1/2"
SQUARE = "G^2 for G(G-1)"
PROMPTS = "c1 dropped"
UNPROJECTED = "Hessian unprojected"
STAYS = "distance to the limit stays"
DIAGONAL = "the diagonal for eigenvalues"
UNROTATED = "covariance not rotated to the eigenbasis"
OFF_DIAGONAL = 'no "-1" off the diagonal'
LATE = "rates one step late"
LAPLACE = "double exponential with the same covariance"
RIVALS = (
    NORMAL, EQUAL, ONE, ORACLE, DENOMINATOR, HALF, SQUARE, PROMPTS, UNPROJECTED, STAYS,
    DIAGONAL, UNROTATED, OFF_DIAGONAL, LATE, LAPLACE,
)  # fmt: skip


def near(
    entry: LandscapeEntry, group_size: int, c: float, t0: float, steps: int, *away: float
) -> NearOptimum:
    return NearOptimum(entry, group_size, steps, Decay(c, t0), start=away)


def scaled(
    entry: LandscapeEntry, group_size: int, exponent: float, t0: float, steps: int, *away: float
) -> NearOptimum:
    """Runs of grpo with c λ = ``exponent`` in the flattest direction."""
    flattest = float(entry.problem.curvatures[0])
    return near(entry, group_size, exponent / flattest, t0, steps, *away)


def _moments(runs: NearOptimum, noise: np.ndarray) -> np.ndarray:
    """Γ_T of the recursion, were that the covariance of a gradient."""
    return finite_covariance(runs.landscape.curvatures, noise, runs.rates(), runs.displacement)


def _unrotated(runs: NearOptimum) -> np.ndarray:
    """The covariance in the parameters' own coordinates, as if they were eigendirections, (r, r)."""
    basis, rank = runs.landscape.identifiable, runs.rank
    return np.asarray((basis @ runs.noise() @ basis.T)[:rank, :rank])


def _rate(runs: NearOptimum) -> tuple[float, np.ndarray]:
    """c, and c λ_j + c λ_k."""
    assert isinstance(runs.schedule, Decay)
    curvatures, c = runs.landscape.curvatures, runs.schedule.c
    return c, c * np.add.outer(curvatures, curvatures)


def _wrong_weights(
    runs: NearOptimum,
    weights: np.ndarray,
    gamma_of: Callable[[np.ndarray], np.ndarray],
    time: float = 1.0,
) -> dict[str, np.ndarray]:
    """The wrong weights that make no noise of their own, of the second moments that a noise leads to;
    those of the limit hold over ``time``.
    """
    root, (c, sums) = np.sqrt(runs.landscape.curvatures), _rate(runs)
    noise = runs.noise()

    def form(gamma: np.ndarray) -> np.ndarray:
        return np.asarray(0.5 * root[:, None] * gamma * root)

    wrong = {DENOMINATOR: np.linalg.eigvalsh(form(c**2 * noise / sums) / time), HALF: 2 * weights}
    if runs.rank > 1:
        wrong |= {
            EQUAL: np.full(runs.rank, weights.mean()),
            ONE: np.append(np.zeros(runs.rank - 1), weights.sum()),
            DIAGONAL: np.sort(np.diagonal(form(gamma_of(noise)))),
            UNROTATED: np.linalg.eigvalsh(form(gamma_of(_unrotated(runs)))),
        }
    return wrong


def rivals(runs: NearOptimum) -> dict[str, ArrayLike]:
    """The wrong weights of the gap that are others than the theorem's by design."""
    assert isinstance(runs.schedule, Decay)
    weights, time = np.array(runs.weights()), runs.steps + runs.schedule.t0
    wrong: dict[str, ArrayLike] = {
        **_wrong_weights(runs, weights, partial(_moments, runs), time),
        SQUARE: runs.weights_by(lambda c1, c2, c3, g: c1 + c2 / g + c3 / g**2),
    }
    if runs.rank > 1:
        wrong[ONE] = [weights.sum()]
    if runs.group_size == 2:
        wrong[ORACLE] = runs.weights(Estimator("oracle"))
    if runs.prompts_disagree:
        wrong[PROMPTS] = runs.weights_by(lambda c1, c2, c3, g: c2 / g + c3 / (g * (g - 1)))
    if runs.landscape.d > runs.rank:
        wrong[UNPROJECTED] = runs.weights_along(np.eye(runs.landscape.d)[:, : runs.rank])
    return wrong


def _at(runs: NearOptimum) -> str:
    return f"G={runs.group_size} c={_rate(runs)[0]:.3g} T={runs.steps}"


def _transforms_at(runs: NearOptimum, rate: float) -> tuple[float, dict[str, float]]:
    """The Laplace transform at a rate, and what the rivals say."""
    weights = np.array(runs.weights())
    wrong = {name: gap_transform(law, rate) for name, law in rivals(runs).items()}
    # A normal law of the same mean and variance; its transform may exceed 1.
    wrong[NORMAL] = exp(-rate * weights.sum() + rate**2 * float((weights**2).sum()))
    return gap_transform(weights, rate), wrong


def _sensitivity(runs: NearOptimum, rate: float) -> float:
    """By how much the transform falls where all weights grow by a share, over the share."""
    grown = 2 * rate * np.array(runs.weights())
    return float(np.prod((1 + grown) ** -0.5) * (grown / (1 + grown)).sum() / 2)


def _transform(runs: NearOptimum) -> Check:
    rate = 1 / sum(runs.weights())
    value, wrong = _transforms_at(runs, rate)
    digits = runs.left_out * _sensitivity(runs, rate)
    return runs.entry.check(
        f"{_at(runs)}: transform at 1/mean",
        runs.transform(rate),
        equal(value, wrong, scale=1.0, relative_margin=0.02, digits=digits),
    )


def _extrapolated_transform(runs: NearOptimum, stages: int, times: float = 1.0) -> Check:
    """The Laplace transform, extrapolated: products remain of the error that one run leaves out."""
    stretches, shares = zip(*EXTRAPOLATED[stages], strict=True)
    longer = [runs.stretched(stretch) for stretch in stretches]
    rates = [times / sum(stretched.weights()) for stretched in longer]
    values = [
        _transforms_at(stretched, rate) for stretched, rate in zip(longer, rates, strict=True)
    ]

    def extrapolated(terms: Iterable[float]) -> float:
        return sum(share * term for share, term in zip(shares, terms, strict=True))

    wrong = {name: extrapolated(of[name] for _, of in values) for name in values[0][1]}
    left_out = float(np.prod([stretched.left_out for stretched in longer]))
    digits = left_out * _sensitivity(runs, times / sum(runs.weights()))
    points = [stretched.transform(rate) for stretched, rate in zip(longer, rates, strict=True)]
    value = extrapolated(v for v, _ in values)
    return runs.entry.check(
        f"{_at(runs)}: transform at {times:g}/mean, extrapolated",
        Extrapolation(tuple(points), shares),
        equal(value, wrong, scale=1.0, relative_margin=0.05, digits=digits),
    )


def _cosines(runs: NearOptimum) -> Iterator[Check]:
    """The characteristic function of δ where kᵀΓk = 1, k along sums and differences of coordinates."""
    gamma = _moments(runs, runs.noise())
    _, sums = _rate(runs)
    others = {
        DIAGONAL: np.diag(np.diagonal(gamma)),
        OFF_DIAGONAL: gamma * np.where(np.eye(runs.rank) > 0, 1.0, 1 - 1 / sums),
        UNROTATED: _moments(runs, _unrotated(runs)),
    }
    signs = np.array([[1.0, 1.0, 1.0], [1.0, -1.0, 1.0]])[: runs.rank, : runs.rank]
    for sign in signs:
        k = sign / np.sqrt(np.diagonal(gamma))
        k = k / sqrt(k @ gamma @ k)
        wrong = {name: exp(-0.5 * k @ other @ k) for name, other in others.items()}
        wrong = (wrong if runs.rank > 1 else {}) | {LAPLACE: 1 / 1.5}
        way = "".join("+" if part > 0 else "-" for part in sign)
        yield runs.entry.check(
            f"{_at(runs)}: characteristic function along {way}",
            runs.within(RADIUS).cosine(k),
            equal(exp(-0.5), wrong, relative_margin=0.05, digits=runs.left_out * 0.5 * exp(-0.5)),
        )


def _first_step(entry: LandscapeEntry) -> Iterator[Check]:
    """Second moments after one step from the optimum are those of one gradient: exactly."""
    runs = scaled(entry, 2, 1.2, 4.0, 1).within(RADIUS)
    value = _moments(runs, runs.noise())
    (rate,) = runs.rates()
    late = value * (runs.rates(2)[1] / rate) ** 2
    square = rate**2 * runs.noise_by(lambda c1, c2, c3, g: c1 + c2 / g + c3 / g**2)
    for j in range(runs.rank):
        for k in range(j + 1):
            size = sqrt(value[j, j] * value[k, k])
            wrong = {LATE: late[j, k], SQUARE: square[j, k]}
            yield entry.check(
                f"first step: E d{k + 1} d{j + 1}",
                mean_of(runs.training, runs.product(k, j)),
                equal(float(value[j, k]), wrong, scale=size),
            )


def _short(entry: LandscapeEntry) -> Iterator[Check]:
    """Two short steps from a start away, where the recursion leaves out next to nothing: its second
    moments, its mean gap, the mean of its law, and its weights as eigenvalues.
    """
    still = scaled(entry, 2, 1.2, 1200.0, 2)
    sizes = np.sqrt(np.diagonal(still.spread()[-1]))
    runs = replace(still, start=(2 * float(sizes[0]), -float(sizes[1]))).within(2 * RADIUS)
    curvatures, rates = runs.landscape.curvatures, runs.rates()
    recursion = (curvatures, runs.noise(), rates, runs.displacement)
    gamma, root = finite_covariance(*recursion), np.sqrt(curvatures)
    pairs = [(j, k) for j in range(runs.rank) for k in range(j + 1)]
    for j, k in pairs:
        size = sqrt(gamma[j, j] * gamma[k, k])
        yield entry.check(
            f"two short steps: E d{k + 1} d{j + 1}",
            mean_of(runs.training, runs.product(j, k)),
            equal(float(gamma[j, k]), scale=size, digits=runs.left_out * size),
        )
    for what, value in (
        ("mean gap", float(mean_gap(*recursion))),
        ("mean of the gap's law", finite_law(*recursion).mean()),
    ):
        yield entry.check(
            f"two short steps: {what}", runs.gap(), equal(value, digits=runs.left_out * value)
        )
    form = tuple(
        Linear(runs.training, ((runs.product(j, k), 0.5 * float(root[j] * root[k])),))
        for j, k in pairs
    )
    weights = finite_weights(*recursion)
    most = float(weights[-1])
    for place, weight in enumerate(weights.tolist()):
        yield entry.check(
            f"two short steps: weight {place + 1}",
            Eigenvalue((form,), (1.0,), place),
            equal(weight, scale=most, relative_margin=0.2, digits=runs.left_out * most),
        )


def _limit(runs: NearOptimum, first: int, stages: int) -> Iterator[Check]:
    """Γ, entry by entry, and the weights of the limit law."""
    curvatures, (c, sums) = runs.landscape.curvatures, _rate(runs)
    noise, size = runs.noise(), range(runs.rank)
    gamma = stationary_covariance(curvatures, noise, c)
    plain = c**2 * noise / sums
    limit = Limit(runs, first, stages)
    name = f"G={runs.group_size} c={c:.3g} T={first}, {runs.steps}"
    for j in size:
        for k in range(j + 1):
            wrong = dict.fromkeys((DENOMINATOR, OFF_DIAGONAL)[: 1 + (j != k)], plain[j, k])
            scale = sqrt(gamma[j, j] * gamma[k, k])
            margins = {"scale": scale, "relative_margin": 2.0, "digits": limit.left_out * scale}
            yield runs.entry.check(
                f"{name}: limit of (T + t0) E d{k + 1} d{j + 1}",
                limit.entry(j, k),
                equal(float(gamma[j, k]), wrong, **margins),
            )
    weights = limit_law(curvatures, noise, c).weights
    wrong_weights = _wrong_weights(
        runs, weights, lambda noise: stationary_covariance(curvatures, noise, c)
    )
    most = float(weights[-1])
    margins = {"scale": most, "relative_margin": 2.0, "digits": limit.left_out * most}
    for place in size:
        wrong = {rival: float(others[place]) for rival, others in wrong_weights.items()}
        yield runs.entry.check(
            f"{name}: limit weight {place + 1}",
            Eigenvalue((limit.form(),), (1.0,), place),
            equal(float(weights[place]), wrong, **margins),
        )


def _consistent(entry: LandscapeEntry) -> Check:
    """The slope of log(1 - E exp(-s gap)) on log(T + t₀) at one s, from a start two deviations away."""
    ends, t0 = (200, 800), 75.0
    early = scaled(entry, 2, 2.0, t0, ends[0])
    away = 2 * sqrt(float(early.spread()[-1][0, 0]))
    runs = [scaled(entry, 2, 2.0, t0, end, away) for end in ends]
    rate = 0.25 / sum(early.weights())
    places = [log(end + t0) for end in ends]
    return entry.slope(
        "G=2: 1 - E exp(-s gap) against T, from a start away",
        places,
        [Linear(runs[1].training, ((GapTransform(GRPO, end, rate), -1.0),), 1.0) for end in ends],
        [1 - gap_transform(one.weights(), rate) for one in runs],
        {STAYS: 0.0},
        scale=1.0,
        relative_margin=0.2,
        # The slope of a rate that is half as fast lies between the two.
        digits=sum(one.left_out for one in runs) / (places[1] - places[0]),
    )


def _distance(distance: float, wrong: dict[str, float], off: float) -> Statement:
    """A distribution that is so far from a law, and how far it would be from the wrong ones."""
    return equal(distance, wrong, scale=1.0, relative_margin=0.0125, digits=off + 1 / BINS)


def _distribution(runs: NearOptimum) -> Check:
    law = runs.law()
    pit = Pit(GRPO, runs.steps, tuple(law.weights.tolist()))
    apart = {name: sup_distance(WeightedChi2(w), law) for name, w in rivals(runs).items()}
    apart[NORMAL] = sup_distance(norm(law.mean(), law.var() ** 0.5), law)
    statement = _distance(0.0, apart, runs.off_of())
    return runs.entry.check(
        f"{_at(runs)}: distribution", LawDistance(runs.training, pit), statement
    )


def _mixture(entry: LandscapeEntry) -> Iterator[Check]:
    """Uniform against each run's own law; at a distance from the law of the mean weight."""
    runs, levels = Mixture(entry), np.linspace(0, 1, 501)[1:-1]
    off = runs.shares(levels) - levels
    distance = float(np.abs(off).max())
    # What other weights change, and what lies between two levels.
    between = 2 * float(np.abs(runs.shares(levels, 1000) - levels - off).max())
    between += float(np.abs(np.diff(off, n=2)).max())
    for law, pit, value, missed in (
        ("conditional distribution", runs.own_law, 0.0, 0.0),
        ("distance from the law of the mean weight", runs.mean_law, distance, between),
    ):
        statement = _distance(value, {}, runs.off + missed)
        yield entry.check(f"G=2: {law}", LawDistance(runs.training, pit), statement)


def _starts(entry: LandscapeEntry) -> Check:
    """The transform of the gap where runs start, which normal spreads of θ₀ make: a chi-square's."""
    landscape, spread = entry.problem, 0.01
    weights = landscape.curvatures * spread**2 / 2
    rate = 1 / float(weights.sum())
    runs = Training(landscape, 2, 1, Decay(1.0), start=landscape.maximiser, start_scale=spread)
    value = gap_transform(weights, rate)

    def transform(count: int) -> float:
        """That of the return itself, its fourth order and all, by the rule of Gauss and Hermite."""
        nodes, shares = np.polynomial.hermite_e.hermegauss(count)
        places = landscape.maximiser + spread * nodes[:, None] * landscape.identifiable[:, 0]
        return float(shares @ np.exp(-rate * landscape.gap(places)) / shares.sum())

    fine, coarse = transform(96), transform(48)
    digits = abs(fine - value) + abs(fine - coarse)
    return entry.check(
        "random starts: transform at 1/mean",
        mean_of(runs, GapTransform(GRPO, 0, rate)),
        equal(value, scale=1.0, relative_margin=0.02, digits=digits),
    )


def _leaves(entry: LandscapeEntry) -> Check:
    """Too small a t₀: first steps beyond the basin, and another law than the recursion's."""
    runs = near(entry, 2, 10.0, 4.0, 250, 0.2, -0.2)
    distance = LawDistance(runs.training, Pit(GRPO, runs.steps, runs.weights()))
    far = Statement(0.1, Interval(0.05, inf), {}, 1.0, 0.02)
    return entry.check(f"{_at(runs)}, t0=4: the law is another one", distance, far)


def _of_law(
    entry: Entry[tuple[float, ...]],
    what: str,
    terms: Sequence[tuple[Quantity, float]],
    value: float,
    rivals: dict[str, float] | None = None,
    digits: float = 0.0,
) -> Check:
    """A probability or a mean of draws of weighted chi-squares, or a combination of such."""
    statement = equal(value, rivals, scale=1.0, relative_margin=0.01, digits=digits)
    return entry.check(what, Linear(ChiSquares(), tuple(terms)), statement)


def _laws(suite: Suite) -> Iterator[Check]:
    """The laws as they are computed, of one, two and three terms, against quadrature and draws."""
    made_up = {"one": (0.7,), "two": (0.2, 1.5), "equal": (0.6, 0.6), "three": (0.1, 0.4, 1.1)}
    entries = [Entry(f"weights, {name}", "made-up", weights) for name, weights in made_up.items()]
    places = (0.3, 1.0, 2.5)  # of cdfs, in units of the mean
    drawn = np.random.default_rng([suite.seed, 54]).uniform(0.1, 2.0, 3).round(6).tolist()
    for entry in (*entries, Entry("weights, drawn", "generated", tuple(drawn))):
        weights, law = entry.problem, WeightedChi2(entry.problem)
        mean = float(sum(weights))
        bell = norm(mean, (2 * sum(w**2 for w in weights)) ** 0.5)
        low, middle, high = ((Below(weights, place * mean), 1.0) for place in places)
        for below, place in zip((low, middle, high), places, strict=True):
            wrong = {NORMAL: float(bell.cdf(place * mean))}
            what = f": cdf at {place * mean:.3g}"
            yield _of_law(entry, what, (below,), float(law.cdf(place * mean)), wrong)
        tail = Below(weights, float(law.ppf(0.9)))
        nodes, shares = np.polynomial.legendre.leggauss(32)
        half = (places[-1] - places[0]) * mean / 2
        density = half * float(shares @ law.pdf(places[0] * mean + half * (1 + nodes)))
        by_own_law = float(conditional_transform([mean], [weights])[0])
        transform = gap_transform(weights, 1 / mean)
        yield _of_law(entry, ": cdf at the quantile 0.9", ((tail, 1.0),), 0.9)
        yield _of_law(entry, ": density", (high, (low[0], -1.0)), density)
        yield _of_law(entry, ": transform", ((TransformOf(weights, 1 / mean), 1.0),), transform)
        yield _of_law(entry, ": transform of a run by its own law", (middle,), by_own_law)
    first, second, share = (0.2, 1.5), (1.1,), 0.3
    mixture = MixtureLaw([WeightedChi2(first), WeightedChi2(second)], np.array([share, 1 - share]))
    place = float(mixture.mean())
    parts = ((Below(first, place), share), (Below(second, place), 1 - share))
    yield _of_law(entries[0], ", mixed with another law: cdf", parts, float(mixture.cdf(place)))
    # Two laws of one term each are farthest apart where their densities meet.
    small, large = made_up["one"][0], 3 * made_up["one"][0]
    meet = log(large / small) * large * small / (large - small)
    apart = ((Below((small,), meet), 1.0), (Below((large,), meet), -1.0))
    within = 1e-7
    distance = sup_distance(WeightedChi2([small]), WeightedChi2([large]), within)
    what = ": distance from three times the weight"
    yield _of_law(entries[0], what, apart, distance, digits=within)


def checks(suite: Suite) -> Iterator[Check]:
    """Transforms, moments and laws by both kinds of evidence; the mixture; a failure."""
    landscapes, smoke = suite.landscapes, suite.size == "smoke"
    stages = 2 if smoke else 3
    for family in ("disagreement", "tilted"):
        for entry in landscapes[family]:
            yield _transform(scaled(entry, 2, 1.2, 300.0, 300))
            yield _extrapolated_transform(scaled(entry, 2, 1.2, 100.0, 100), 3)
    for entry in landscapes["disagreement"]:
        yield _extrapolated_transform(scaled(entry, 2, 1.2, 100.0, 100), 3, 4.0)
        if not smoke or entry.origin == "made-up":
            yield _extrapolated_transform(scaled(entry, 8, 1.2, 100.0, 100), 2)
        yield from _limit(scaled(entry, 2, 0.7, 40.0, 120), 40, 3)
        yield from _cosines(scaled(entry, 2, 1.2, 360.0, 360))
        yield _distribution(scaled(entry, 2, 1.2, 300.0, 300))
        yield _consistent(entry)
        yield from curvatures(entry)
    for entry in landscapes["twisted"]:
        yield from _first_step(entry)
        yield from _short(entry)
        yield from curvatures(entry)
        yield _extrapolated_transform(scaled(entry, 2, 1.2, 90.0, 60), stages)
        yield from _limit(scaled(entry, 2, 0.7, 40.0, 60), 20, stages)
        yield from _cosines(scaled(entry, 2, 1.2, 180.0, 120))
        yield _distribution(scaled(entry, 2, 1.2, 720.0, 480))
    if not smoke:
        for entry in landscapes["ring"]:
            yield _extrapolated_transform(scaled(entry, 2, 1.2, 90.0, 60), 3)
    yield _distribution(near(landscapes["diabetes"][0], 2, 16.0, 400.0, 400))
    if suite.size == "card":
        for entry in (landscapes["disagreement"][0], landscapes["twisted"][0]):
            yield _distribution(scaled(entry, 2, 1.2, 300.0, 100_000))
    for entry in landscapes["twisted, r = 3"]:
        runs = scaled(entry, 2, 0.9, 960.0, 640)
        yield _transform(runs)
        yield from _cosines(runs)
    for entry in landscapes["calm mixture"]:
        yield from _mixture(entry)
    yield _starts(landscapes["calm mixture"][0])
    yield _leaves(landscapes["steep"][0])
    yield from _laws(suite)
