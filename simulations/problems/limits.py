"""What a value at a finite size has beyond its limit, from larger sizes."""

from __future__ import annotations

from collections.abc import Callable


def later_terms(value: Callable[[int], float], size: int, first: int = 8) -> tuple[float, float]:
    """What is left of a value at a size beyond its limit, and the error of that.

    A value L + c/n + d/n² + … has its limit by Richardson's rule from three doublings of a larger size,
    and the error is what the last step of that changed. The limit as it is predicted has no say: a wrong one
    would allow for itself.

    Arguments:
        value: value at a size.
        size: size at which the value is wanted.
        first: least of the larger sizes, over that; in those far larger rounding is seen.
    """
    small, middle, large = (value(size * first * factor) for factor in (1, 2, 4))
    limit, coarser = (small - 6 * middle + 8 * large) / 3, 2 * large - middle
    return value(size) - limit, abs(limit - coarser)
