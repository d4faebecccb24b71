"""Theorem 8 by whole laws: the computed laws of weighted chi-squares, compared with quadrature and
draws; runs with random starts; and the mixture in the limit if the noise depends on the endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log

import numpy as np
from scipy.stats import norm

from ustat_pg.distributions import MixtureLaw, WeightedChi2, sup_distance
from ustat_pg.engines import Quantity
from ustat_pg.predictions import conditional_transform, gap_transform

from ..engines import Decay, GapTransform, Training
from ..engines.runs.cell import BINS
from ..evidence import (
    Below,
    Check,
    ChiSquares,
    LawDistance,
    Linear,
    Statement,
    TransformOf,
    equal,
    mean_of,
)
from ..problems import Entry, Suite
from ..problems.landscapes import LandscapeEntry
from ..shared.margins import LAW, PROBABILITY, TRANSFORM
from ..shared.mixture import Mixture
from ..shared.runs import GRPO

NORMAL = "normal"


def so_far_off(distance: float, wrong: dict[str, float], off: float) -> Statement:
    """A distribution with its distance from a law, and its distances from the wrong laws."""
    return equal(distance, wrong, scale=1.0, relative_margin=LAW, digits=off + 1 / BINS)


def mixtures(entry: LandscapeEntry) -> Iterator[Check]:
    """Uniform under each run's own law, and at a distance from the law of the mean weight."""
    runs, levels = Mixture(entry), np.linspace(0, 1, 501)[1:-1]
    off = runs.shares(levels) - levels
    distance = float(np.abs(off).max())
    # The change from other weights, and the probability between two levels.
    between = 2 * float(np.abs(runs.shares(levels, 1000) - levels - off).max())
    between += float(np.abs(np.diff(off, n=2)).max())
    for law, pit, value, missed in (
        ("conditional distribution", runs.own_law, 0.0, 0.0),
        ("distance from the law of the mean weight", runs.mean_law, distance, between),
    ):
        statement = so_far_off(value, {}, runs.off + missed)
        yield entry.check(f"G=2: {law}", LawDistance(runs.training, pit), statement)


def random_starts(entry: LandscapeEntry) -> Check:
    """The transform of the gap at the start of runs: normal spreads of θ₀ make it that of a chi-square."""
    landscape, spread = entry.problem, 0.01
    weights = landscape.curvatures * spread**2 / 2
    rate = 1 / float(weights.sum())
    runs = Training(landscape, 2, 1, Decay(1.0), start=landscape.maximiser, start_scale=spread)
    value = gap_transform(weights, rate)

    def transform(count: int) -> float:
        """The transform for the return itself, with all orders, by Gauss-Hermite quadrature."""
        nodes, shares = np.polynomial.hermite_e.hermegauss(count)
        places = landscape.maximiser + spread * nodes[:, None] * landscape.identifiable[:, 0]
        return float(shares @ np.exp(-rate * landscape.gap(places)) / shares.sum())

    fine, coarse = transform(96), transform(48)
    digits = abs(fine - value) + abs(fine - coarse)
    return entry.check(
        "random starts: transform at 1/mean",
        mean_of(runs, GapTransform(GRPO, 0, rate)),
        equal(value, scale=1.0, relative_margin=TRANSFORM, digits=digits),
    )


def _of_law(
    entry: Entry[tuple[float, ...]],
    what: str,
    terms: Sequence[tuple[Quantity, float]],
    value: float,
    rivals: dict[str, float] | None = None,
    digits: float = 0.0,
) -> Check:
    """A probability or mean from draws of weighted chi-squares, or a combination of these."""
    statement = equal(value, rivals, scale=1.0, relative_margin=PROBABILITY, digits=digits)
    return entry.check(what, Linear(ChiSquares(), tuple(terms)), statement)


def computed_laws(suite: Suite) -> Iterator[Check]:
    """The computed laws of one, two and three terms, compared with quadrature and draws."""
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
    # Two laws of one term each are farthest apart where their densities are equal.
    small, large = made_up["one"][0], 3 * made_up["one"][0]
    meet = log(large / small) * large * small / (large - small)
    apart = ((Below((small,), meet), 1.0), (Below((large,), meet), -1.0))
    within = 1e-7
    distance = sup_distance(WeightedChi2([small]), WeightedChi2([large]), within)
    what = ": distance from three times the weight"
    yield _of_law(entries[0], what, apart, distance, digits=within)


def checks(suite: Suite) -> Iterator[Check]:
    """The mixture, the law of starts, and the computed laws."""
    entries = suite.landscapes["calm mixture"]
    for entry in entries:
        yield from mixtures(entry)
    yield random_starts(entries[0])
    yield from computed_laws(suite)
