"""The compiled bodies of panels: Chebyshev polynomials that replace the computation at many points."""

from __future__ import annotations

import numpy as np

from ..execution.compiled import body
from .bodies import AGREE, LANES, ROWS, STEPS, on_one_path

DEGREE = 23

_PANEL = 5e-14


@body
def panel(low, high, upper, top, mu, inverse, gap, count):
    """Chebyshev coefficients (2, 24) of both logarithms between two points, and the remaining error.

    They are functions of x in the upper tail and of log x in the lower, where they are nearly linear.
    Arguments are in units of x; ``low`` and ``high`` are logarithms in the lower tail.
    """
    q = np.empty(len(mu))
    scratch = np.empty((ROWS, LANES))
    nodes = DEGREE + 1
    values = np.empty((2, nodes))
    points = np.empty(nodes)
    for i in range(nodes):
        v = 0.5 * (low + high) + 0.5 * (high - low) * np.cos(np.pi * (i + 0.5) / nodes)
        points[i] = (v if upper else np.exp(v)) / 2.0 / top
    v = 0.5 * (low + high)
    middle = (v if upper else np.exp(v)) / 2.0 / top
    error = on_one_path(points, middle, upper, mu, inverse, gap, count, q, scratch, values)
    worst = 0.0 if error <= AGREE else np.inf
    coefficients = np.zeros((2, nodes))
    for row in range(2):
        for k in range(nodes):
            total = 0.0
            for i in range(nodes):
                total += values[row, i] * np.cos(np.pi * k * (i + 0.5) / nodes)
            coefficients[row, k] = total * (1.0 if k == 0 else 2.0) / nodes
        largest = np.abs(values[row]).max()
        left = max(abs(coefficients[row, nodes - 1]), abs(coefficients[row, nodes - 2]))
        # The rounding error of the values grows with their size.
        worst = max(worst, left / (_PANEL + 4e-16 * largest))
    return coefficients, worst <= 1.0


@body(inline=True)
def _both(v, low, high, coefficients):
    """Both polynomials of a panel at v, by Clenshaw's recurrence."""
    u = (2.0 * v - low - high) / (high - low)
    b1 = b2 = c1 = c2 = 0.0
    for k in range(DEGREE, 0, -1):
        b1, b2 = coefficients[0, k] + 2.0 * u * b1 - b2, b1
        c1, c2 = coefficients[1, k] + 2.0 * u * c1 - c2, c1
    return coefficients[0, 0] + u * b1 - b2, coefficients[1, 0] + u * c1 - c2


@body
def interpolate(x, low, high, upper, coefficients, out):
    """Fill ``out`` (3, n) at points x (n,) of a panel, as :func:`log_tails` does."""
    for i in range(len(x)):
        v = x[i] if upper else np.log(x[i])
        out[0, i], out[1, i] = _both(v, low, high, coefficients)
        out[2, i] = 1.0 if upper else 0.0


@body
def invert(target, low, high, upper, coefficients, out):
    """Fill ``out`` (n,) with the x of a panel whose tail has the logarithm ``target`` (n,).

    Newton steps, as in :func:`quantiles`. Their bracket is a little wider than the panel,
    because rounding may put a point at the edge slightly outside it.
    """
    width = high - low
    for i in range(len(target)):
        below, above = low - 1e-6 * width, high + 1e-6 * width
        v = 0.5 * (low + high)
        for _ in range(STEPS):
            log, ratio = _both(v, low, high, coefficients)
            if (log > target[i]) == upper:
                below = v
            else:
                above = v
            slope = -np.exp(ratio) / v if upper else np.exp(ratio)
            step = (target[i] - log) / slope
            v += step
            if abs(step) <= 1e-9 * width:
                break
            if not below < v < above:
                v = 0.5 * (below + above)
        out[i] = v if upper else np.exp(v)
