"""Numbers that are known up to an error of their own: derivatives by interpolation, and what an expansion
in 1/n leaves beyond its limit. The errors are computed from the numbers at hand, never from a prediction.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.polynomial import Chebyshev

from ustat_pg.engines.base import Array

__all__ = ["Approximate", "derivative", "later_terms"]


EPSILON = float(np.finfo(float).eps)

DEGREE = 24
"""The degree of the polynomial whose slope is a derivative."""

ROUNDED = 16 * EPSILON
"""The rounding of a function's value, relative to the largest that it takes near by."""

ROUGH = 1e-6
"""An error, relative to the terms of a slope, from which values are of no smooth function."""

HALVINGS = 12
"""How often the interval of an interpolation is halved at most."""

DOUBLINGS = 4
"""How often the size of an expansion is doubled."""


class Approximate(NamedTuple):
    """A number, and by how much it may be off."""

    value: float
    error: float


def derivative(
    function: Callable[[Array], Array], at: float, reach: float, order: int = 1
) -> Approximate:
    """A derivative at a point, of a polynomial through values on both sides.

    The interval is halved until what the polynomial leaves out, by the last of its coefficients, is less
    than what the rounding of its values makes, or until that helps no more: what rounding makes is twice
    as much on half the interval. Not a number where no interval does: an error as large as the slope
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
        # In the middle |dᵐT_k| is at most kᵐ, and the coefficients go on to fall as they did.
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
    ``first`` times as large. The error is the larger of the changes that the last two steps of it made,
    and what rounding makes of the values. The limit as it is predicted has no say: a wrong one would
    allow for itself.

    Arguments:
        value: the value at a size.
        size: the size.
        first: how many times larger the least of these sizes is.
        doublings: how often that is doubled.
        cancels: the size of what cancels in a value; the value's own unless given.

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
    # The weights of the last of these add up to less than 8 in absolute value.
    for order in range(1, doublings + 1):
        share = 2**order
        values = [(share * after - before) / (share - 1) for before, after in pairwise(values)]
        limits.append(values[-1])
    changes = np.abs(np.diff(limits))[-2:]
    return Approximate(value(size) - limits[-1], float(max(changes)) + 8 * rounding)
