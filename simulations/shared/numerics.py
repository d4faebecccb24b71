"""Numbers with a known error: derivatives by interpolation, and the terms that an expansion
in 1/n has beyond its limit. The errors are computed from these numbers, never from a prediction.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.polynomial import Chebyshev

from ustat_pg.validation import Array

__all__ = ["Approximate", "derivative", "later_terms"]


EPSILON = float(np.finfo(float).eps)

DEGREE = 24
"""The degree of the polynomial that gives a derivative."""

ROUNDED = 16 * EPSILON
"""The rounding error of a function's value, relative to its largest value nearby."""

ROUGH = 1e-6
"""The error, relative to the terms of a slope, above which a function does not count as smooth."""

HALVINGS = 12
"""The largest number of times that the interval of an interpolation is halved."""

DOUBLINGS = 4
"""The number of times that the size of an expansion is doubled."""


class Approximate(NamedTuple):
    """A number and its largest error."""

    value: float
    error: float


def derivative(
    function: Callable[[Array], Array], at: float, reach: float, order: int = 1
) -> Approximate:
    """A derivative at a point, from a polynomial through values on both sides.

    The interval is halved until the polynomial's error, estimated from its last coefficients, is less
    than the effect of rounding in its values, or until halving does not help: the effect of rounding is twice
    as large on half the interval. The result is NaN if no interval works: an error as large as the slope
    would allow anything.

    Arguments:
        function: an analytic function, of many numbers at once.
        at: the point.
        reach: half the length of the first interval.
        order: 1 for the slope.

    >>> slope, error = derivative(np.exp, 0.0, 4.0)
    >>> error < 1e-11, abs(slope - 1) < error
    (True, True)
    """
    best = Approximate(np.nan, np.inf)
    for _ in range(HALVINGS):
        curve = Chebyshev.interpolate(function, DEGREE, [at - reach, at + reach])
        # In the middle |dᵐT_k| is at most kᵐ, and the coefficients continue to fall at the same rate.
        most, sizes = (DEGREE / reach) ** order, np.abs(curve.coef)
        left_out = 2 * most * float(sizes[-2:].sum())
        rounding = ROUNDED * most * float(sizes.sum())
        if left_out + rounding < min(best.error, ROUGH * most * float(sizes.sum())):
            best = Approximate(float(curve.deriv(order)(at)), left_out + rounding)
        elif np.isfinite(best.error):
            break
        if left_out <= rounding:
            break
        reach /= 2
    return best


def later_terms(
    value: Callable[[int], float],
    size: int,
    first: int = 8,
    *,
    doublings: int = DOUBLINGS,
    cancels: Callable[[int], float] | None = None,
) -> Approximate:
    """The part of a value at a size beyond its limit.

    A value L + c/n + d/n² + … has its limit by Richardson's rule from doublings of a larger size,
    ``first`` times as large. The error is the larger of the changes in its last two steps,
    plus the effect of rounding in the values. It does not use the predicted limit: a wrong one would
    enlarge its own tolerance.

    Arguments:
        value: the value at a size.
        size: the size.
        first: the ratio of the least of these sizes to the size.
        doublings: the number of doublings.
        cancels: the size of the terms that cancel in a value; by default the value's own size.

    >>> later, error = later_terms(lambda n: 3 + 2 / n + 5 / n**2, 4)
    >>> abs(later - (2 / 4 + 5 / 4**2)) < error < 1e-10
    True
    """
    sizes = [size * first * 2**doubling for doubling in range(doublings + 1)]
    values = [value(one) for one in sizes]
    rounding = ROUNDED * max(
        abs(one) if cancels is None else cancels(at) for at, one in zip(sizes, values, strict=True)
    )
    limits = [values[-1]]
    # The absolute weights of the last of these sum to less than 8.
    for order in range(1, doublings + 1):
        share = 2**order
        values = [(share * after - before) / (share - 1) for before, after in pairwise(values)]
        limits.append(values[-1])
    changes = np.abs(np.diff(limits))[-2:]
    return Approximate(value(size) - limits[-1], float(max(changes)) + 8 * rounding)
