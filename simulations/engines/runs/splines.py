"""Quintic splines in one and two variables, and one step of a chain back through them.

The expectation of a chain's next value evaluates a spline at each place that the chain may reach. The
splines are not-a-knot in ξ, y = a sinh ξ; outside the grid, the value is that at its edge.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import copysign, log, sqrt

import numpy as np
from scipy.linalg.lapack import dgbtrf, dgbtrs

from ustat_pg.execution.compiled import body
from ustat_pg.validation import Array

_WIDTH = 6
"""The number of bands on each side of the diagonal in the spline's equations."""
_12TH, _24TH, _120TH = 1 / 12, 1 / 24, 1 / 120


def coefficients(values: Array) -> Array:
    """Coefficients of the quintic spline through values (W, n[, n]): (W, n + 4[, n + 4]).

    The spline is Σᵢ cᵢ B(ξ - i), i = -2 to n + 1; at the two knots next to each end it has a fifth
    derivative (not-a-knot), which is the sixth difference of c there.
    """
    out = values
    for axis in range(1, values.ndim):
        front = np.moveaxis(out, axis, 0)
        count = len(front)
        right = np.zeros((count + 4, front[0].size))
        right[2:-2] = front.reshape(count, -1)
        factors, pivots = _factors(count)
        solved, _ = dgbtrs(factors, _WIDTH, _WIDTH, right, pivots)
        out = np.moveaxis(solved.reshape(count + 4, *front.shape[1:]), 0, axis)
    return np.ascontiguousarray(out)


@lru_cache(maxsize=16)
def _factors(count: int) -> tuple[Array, Array]:
    """LAPACK's factors of the spline's equations for this number of values, and the pivots."""

    def equations() -> Iterator[tuple[int, int, tuple[int, ...] | Array]]:
        smooth = (1, -6, 15, -20, 15, -6, 1)
        for row in (0, 1):
            yield row, row, smooth
            yield count + 2 + row, count - 4 + row, smooth
        for node in range(count):
            yield node + 2, node, np.array([1, 26, 66, 26, 1]) / 120

    # The first rows are space for new entries of the factors.
    bands = np.zeros((3 * _WIDTH + 1, count + 4))
    for row, first, entries in equations():
        for column, entry in enumerate(entries, start=first):
            bands[2 * _WIDTH + row - column, column] = entry
    factors, pivots, _ = dgbtrf(bands, _WIDTH, _WIDTH)
    return factors, pivots


@body(inline=True)
def _weights(t):
    """B(t + 2), …, B(t - 3) of the quintic B-spline, 0 <= t <= 1."""
    s, u, v = 1.0 - t, 1.0 + t, 2.0 - t
    t2, s2 = t * t, s * s
    return (
        s2 * s2 * s * _120TH,
        0.425 + u * (0.625 + u * (-1.75 + u * (1.25 + u * (-0.375 + u * _24TH)))),
        0.55 + t2 * (-0.5 + t2 * (0.25 - t * _12TH)),
        0.55 + s2 * (-0.5 + s2 * (0.25 - s * _12TH)),
        0.425 + v * (0.625 + v * (-1.75 + v * (1.25 + v * (-0.375 + v * _24TH)))),
        t2 * t2 * t * _120TH,
    )


@body
def _project(y, frame, shift, radius, z):
    """Project y in place: P(y); z is scratch."""
    length = 0.0
    for q in range(len(frame)):
        z[q] = shift[q]
        for j in range(len(y)):
            z[q] += frame[q, j] * y[j]
        length += z[q] * z[q]
    if length <= radius * radius:
        return
    factor = radius / np.sqrt(length) - 1.0
    for q in range(len(frame)):
        for j in range(len(y)):
            y[j] += frame[q, j] * (factor * z[q])


@body(inline=True)
def _place(y, scale, spacing, first, count):
    """The position of y on an axis, 0 to count - 1; points outside count as the nearest inside."""
    v = abs(y / scale)
    # This computes asinh directly: it needs only absolute precision, and takes a quarter of the time.
    x = copysign(log(v + sqrt(v * v + 1.0)), y) / spacing - first
    return min(max(x, 0.0), count - 1.0)


@body
def back_on_line(coefficients, axes, y, move, chance, rate, projection, out):
    """One step back: out (W, M) is E u(P(y + rate ĝ)) of splines with coefficients (W, n + 4).

    ``axes`` contains a of each axis, the spacing of ξ, the first place and the number of points of each;
    ``projection`` is the argument of ``_project``. A run that does not move is not projected: no run is
    outside, and a projection would give u a kink at the points where it puts its runs.
    """
    scale, spacing, first, shape = axes
    frame, shift, radius = projection
    at, z = np.empty(1), np.empty(len(frame))
    width, count = len(coefficients), shape[0]
    for m in range(len(y)):
        for c in range(width):
            out[c, m] = 0.0
        for k in range(chance.shape[1]):
            at[0] = y[m, 0] + rate * move[m, k, 0]
            if len(frame) and move[m, k, 0] != 0.0:
                _project(at, frame, shift, radius, z)
            x = _place(at[0], scale[0], spacing, first[0], count)
            # The value is already at least 0, but this tells the compiler that the index is not negative.
            i = max(min(int(x), count - 2), 0)
            w = _weights(x - i)
            for c in range(width):
                value = 0.0
                for a in range(6):
                    value += w[a] * coefficients[c, i + a]
                out[c, m] += chance[m, k] * value


@body
def back_on_plane(coefficients, axes, y, move, chance, rate, projection, out):
    """The same on a plane, coefficients (W, n + 4, n + 4)."""
    scale, spacing, first, shape = axes
    frame, shift, radius = projection
    at, z = np.empty(2), np.empty(len(frame))
    width, rows, columns = len(coefficients), shape[0], shape[1]
    for m in range(len(y)):
        for c in range(width):
            out[c, m] = 0.0
        for k in range(chance.shape[1]):
            at[0] = y[m, 0] + rate * move[m, k, 0]
            at[1] = y[m, 1] + rate * move[m, k, 1]
            if len(frame) and (move[m, k, 0] != 0.0 or move[m, k, 1] != 0.0):
                _project(at, frame, shift, radius, z)
            x = _place(at[0], scale[0], spacing, first[0], rows)
            i = max(min(int(x), rows - 2), 0)
            w = _weights(x - i)
            x = _place(at[1], scale[1], spacing, first[1], columns)
            j = max(min(int(x), columns - 2), 0)
            v = _weights(x - j)
            for c in range(width):
                value = 0.0
                for a in range(6):
                    along = 0.0
                    for b in range(6):
                        along += v[b] * coefficients[c, i + a, j + b]
                    value += w[a] * along
                out[c, m] += chance[m, k] * value
