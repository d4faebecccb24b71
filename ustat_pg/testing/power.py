"""The inverse questions: how small a difference is seen, and how many samples or seeds see one.

Differences of two means, by Student's t (statsmodels): of training runs with different seeds, say, one
number a run.
"""

from __future__ import annotations

from math import ceil, sqrt

from numpy.typing import ArrayLike

from ..validation import InputError, finite_array, integer, number, positive

__all__ = ["samples_needed", "seeds_needed", "smallest_difference"]


def _rates(alpha: float, power: float) -> dict[str, float]:
    return {
        "alpha": number("alpha", alpha, above=0, below=1),
        "power": number("power", power, above=0, below=1),
    }


def samples_needed(
    difference: float, deviation: float, *, alpha: float = 0.05, power: float = 0.8
) -> int:
    """The samples on each of two sides for a two-sided t-test to see a difference of means.

    Arguments:
        difference: between the means, positive.
        deviation: standard deviation of one sample, on both sides.
        alpha: chance of seeing a difference where there is none.
        power: chance of seeing the difference.

    Raises:
        InputError: a number that is not as said.

    >>> samples_needed(1.0, 1.5)
    37
    """
    from statsmodels.stats.power import TTestIndPower

    effect = positive("difference", difference) / positive("deviation", deviation)
    rates = _rates(alpha, power)
    if TTestIndPower().power(effect, 2, rates["alpha"]) >= rates["power"]:
        return 2
    return ceil(TTestIndPower().solve_power(effect, **rates))


def smallest_difference(
    samples: int, deviation: float, *, alpha: float = 0.05, power: float = 0.8
) -> float:
    """The smallest difference of means that so many samples on each of two sides see.

    Arguments:
        samples: on each side, at least 2.
        deviation, alpha, power: as for :func:`samples_needed`.

    Raises:
        InputError: a number that is not as said.

    >>> round(smallest_difference(5, 1.5), 2)
    3.04
    """
    from statsmodels.stats.power import TTestIndPower

    count = integer("samples", samples, 2)
    effect = TTestIndPower().solve_power(nobs1=count, **_rates(alpha, power))
    return float(effect) * positive("deviation", deviation)


def seeds_needed(
    first: ArrayLike, second: ArrayLike, difference: float = 1.0, *, power: float = 0.8
) -> int:
    """The seeds on each side that see a difference between two training recipes, from pilot runs.

    The deviation is the pooled one of the pilots: with few of them itself uncertain, by a factor of
    about 1 ± 1/√(2 (n-2)) for n pilots in all.

    Arguments:
        first, second: the results of pilot runs of each recipe, one number a seed, at least 2 each.
        difference: what is to be seen, in the results' unit: 1 point, say.
        power: chance of seeing it.

    Raises:
        InputError: fewer than two runs, or results that do not vary.

    >>> seeds_needed([61.2, 63.1, 60.4], [62.0, 64.2, 61.9])
    30
    """
    from statsmodels.stats.weightstats import CompareMeans

    sides = [finite_array("first", first, 1), finite_array("second", second, 1)]
    for name, side in zip(("first", "second"), sides, strict=True):
        if len(side) < 2:
            raise InputError(f"{name} holds {len(side)} run: at least 2 say how results vary")
    both = CompareMeans.from_data(*sides)
    pooled = float(both.std_meandiff_pooledvar) / sqrt(sum(1 / len(side) for side in sides))
    if not pooled > 0:
        raise InputError("the pilot runs do not vary: their deviation is 0")
    return samples_needed(difference, pooled, power=power)
