"""Laws of the gap as they are computed, held against quadrature and draws."""

from __future__ import annotations

from collections.abc import Iterator
from math import log

import numpy as np
from scipy.stats import norm

from ustat_pg.checks import Statement, equal
from ustat_pg.distributions import WeightedChi2
from ustat_pg.experiment import Below, Check, ChiSquares, Linear, TransformOf, mean_of
from ustat_pg.predictions import MixtureLaw, conditional_transform, gap_transform, sup_distance

from .entry import Entry
from .suite import Suite

CELL = ChiSquares()

PLACES = (0.3, 1.0, 2.5)
"""Where cdfs are asked for, in units of the mean."""

QUANTILE = 0.9
"""The level of the quantile that is asked for."""

NODES = 32
"""Points at which a density is summed (Gauss and Legendre)."""

MARGIN = 0.01
"""The half-width asked of probabilities in simulation."""


def _probability(value: float, rivals: dict[str, float] | None = None) -> Statement:
    return equal(value, rivals, scale=1.0, relative_margin=MARGIN)


def checks_of_laws(suite: Suite, normal: str) -> Iterator[Check]:
    """Cdfs, quantiles, densities and transforms of one, two and three terms; a mixture's cdf; the
    transform of a run by its own law; the distance of two laws. A normal law of the same mean and
    variance is a rival.
    """
    made_up = {"one": (0.7,), "two": (0.2, 1.5), "equal": (0.6, 0.6), "three": (0.1, 0.4, 1.1)}
    entries = [Entry(f"weights, {name}", "made-up", each) for name, each in made_up.items()]
    drawn = np.random.default_rng([suite.seed, 54]).uniform(0.1, 2.0, 3).round(6).tolist()
    for entry in (*entries, Entry("weights, drawn", "generated", tuple(drawn))):
        weights, law = entry.problem, WeightedChi2(entry.problem)
        mean = float(sum(weights))
        bell = norm(mean, (2 * sum(w**2 for w in weights)) ** 0.5)
        for place in (each * mean for each in PLACES):
            rivals = {normal: float(bell.cdf(place))}
            below = mean_of(CELL, Below(weights, place))
            yield entry.check(f": cdf at {place:.3g}", below, _probability(law.cdf(place), rivals))
        tail = Below(weights, float(law.ppf(QUANTILE)))
        yield entry.check(
            f": cdf at the quantile {QUANTILE:g}", mean_of(CELL, tail), _probability(QUANTILE)
        )
        ends = PLACES[0] * mean, PLACES[-1] * mean
        between = Linear(CELL, ((Below(weights, ends[1]), 1.0), (Below(weights, ends[0]), -1.0)))
        nodes, shares = np.polynomial.legendre.leggauss(NODES)
        half = (ends[1] - ends[0]) / 2
        density = law.pdf(ends[0] + half * (1 + nodes))
        yield entry.check(": density", between, _probability(half * float(shares @ density)))
        transform = mean_of(CELL, TransformOf(weights, 1 / mean))
        yield entry.check(": transform", transform, _probability(gap_transform(weights, 1 / mean)))
        own = float(conditional_transform([mean], [weights])[0])
        functional = mean_of(CELL, Below(weights, mean))
        yield entry.check(": transform of a run by its own law", functional, _probability(own))
    yield from _pairs(entries[0])


def _pairs(entry: Entry[tuple[float, ...]]) -> Iterator[Check]:
    """A mixture of two laws, and the distance of two that have one term each: their cdfs are farthest
    apart where their densities meet.
    """
    first, second, share = (0.2, 1.5), (1.1,), 0.3
    mixture = MixtureLaw([WeightedChi2(first), WeightedChi2(second)], np.array([share, 1 - share]))
    place = float(mixture.mean())
    parts = ((Below(first, place), share), (Below(second, place), 1 - share))
    yield entry.check(
        ", mixed with another law: cdf", Linear(CELL, parts), _probability(mixture.cdf(place))
    )
    small, large = entry.problem[0], 3 * entry.problem[0]
    meet = log(large / small) * large * small / (large - small)
    apart = ((Below((small,), meet), 1.0), (Below((large,), meet), -1.0))
    distance = sup_distance(WeightedChi2([small]), WeightedChi2([large]))
    yield entry.check(
        ": distance from three times the weight",
        Linear(CELL, apart),
        equal(distance, scale=1.0, relative_margin=MARGIN, digits=1e-5),
    )
