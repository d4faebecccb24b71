"""The compiled bodies of :class:`~ustat_pg.distributions.WeightedChi2`: one point, and a loop.

Everything is in units where the greatest weight is 1 and Y = Q / (2 w_max) = Σ μₖ Gamma(mₖ/2), with
M(z) = E exp(z Y) = Π (1 - μₖ z)^{-mₖ/2}. With ζ = z y and a path through a saddle point ζ₀,

    sf(y) = (1/2πi) ∫ M e^{-ζ}/ζ dζ  (0 < ζ₀ < y),   cdf(y) = -(1/2πi) ∫ M e^{-ζ}/ζ dζ  (ζ₀ < 0),

and the density y f(y) is the integral without 1/ζ. The tail on the point's own side of the mean is
computed, so nothing cancels and its relative accuracy holds as far as numbers reach; what underflows
stays in a logarithm.
"""

from __future__ import annotations

import numpy as np

from ..compiled import body

__all__ = ["log_tails"]

AGREE = 3e-10
"""How far the sums at a step and at its double may differ, of the tail and of the density.

The finer sum errs by about the square, but a factor of thousands goes with it where one weight
stands far above very many: 1e-8, and the tail alone, let errors of 1e-10 pass.
"""

_ANGLE = np.deg2rad(42.0)
_COT = 1.0 / np.tan(_ANGLE)
_L = np.log(1e17)
_SMALL = 1e-18
_NODES = 1024
_TINY = 1e-300


@body
def _saddle(y, upper, mu, gap, count):
    """The saddle point to a few percent: -ζ₀ in the lower tail, y - ζ₀ in the upper.

    At ζ = z y it solves Σ ½ mₖ μₖ/(1 - μₖ z) = y + 1/z. Only the path depends on it, not the value.
    """
    total = mean = 0.0
    for k in range(len(mu)):
        total += 0.5 * count[k]
        mean += 0.5 * count[k] * mu[k]
    low, high = 1.0, 1.0 + total
    if upper:
        # Both ends solve a/d = 1 + 1/(y - d): the greatest weight alone gives less than the sum of
        # all, and all with their own μₖ y/d give more.
        for end in range(2):
            a = 0.5 * count[0] if end == 0 else mean
            r = a / y
            root = np.sqrt((1 - r) * (1 - r) + 2 * (1 + r) / y + 1 / y / y)
            high = 2 * a / (1 + r + 1 / y + root)
            if end == 0:
                low = high
    while high > 1.02 * low:
        middle = np.sqrt(low) * np.sqrt(high)
        excess = -1.0 - 1.0 / (y - middle) if upper else 1.0 / middle - 1.0
        for k in range(len(mu)):
            far = y * gap[k] if upper else y
            excess += 0.5 * count[k] * mu[k] / (far + mu[k] * middle)
        if excess > 0.0:
            low = middle
        else:
            high = middle
    return np.sqrt(low) * np.sqrt(high)


@body
def _integral(step, zeta, a, b, q, count):
    """Trapezoid sums relative to M e^{-ζ} at ζ₀: tail and density, then both at the double step."""
    tail = coarse = 0.5 * b / zeta
    density = 0.5 * b
    coarse_density = density
    for node in range(1, _NODES + 1):
        e = np.exp(step * node)
        # cosh t - 1 and sinh t.
        re, im = a * (0.5 * (e - 1.0) * (e - 1.0) / e), b * (0.5 * (e - 1.0) * (e + 1.0) / e)
        place = complex(re, im)
        # Π (1 - qₖ Δ)^{mₖ}: each factor turns clockwise by less than π, so a product that comes from
        # below the real axis to above it has crossed the negative half, where a root changes sign.
        product, log, sign = complex(1.0, 0.0), complex(0.0, 0.0), 1.0
        for k in range(len(q)):
            factor = 1.0 - q[k] * place
            if count[k] > 3.0:
                log += count[k] * np.log(factor)
                continue
            for _ in range(int(count[k])):
                before = product.imag
                product *= factor
                if before <= 0.0 and product.imag > 0.0:
                    sign = -sign
            size = abs(product.real) + abs(product.imag)
            if not 1e-100 < size < 1e100:
                log += np.log(size)
                product /= size
        # M e^{-ζ} dζ/(i dt), over its value at ζ₀.
        value = sign * np.exp(-place - 0.5 * log) / np.sqrt(product)
        value *= complex(b + re * b / a, -im * a / b)
        # Over ``zeta``, whose square may overflow.
        part = (value / (1.0 + place / zeta)).real / zeta
        tail += part
        density += value.real
        if node % 2 == 0:
            coarse += part
            coarse_density += value.real
        if max(abs(value.real), abs(value.imag)) <= _SMALL * b:
            break
    step /= np.pi
    return tail * step, density * step, 2.0 * coarse * step, 2.0 * coarse_density * step


@body
def _point(y, upper, mu, gap, count, q):
    """The logarithm of the tail at y, the density over it, and the error estimated.

    Returns:
        log tail; y f(y) / tail = d log tail / d log y up to its sign; relative error.
    """
    at = _saddle(y, upper, mu, gap, count)
    log = kappa_2 = kappa_3 = largest = 0.0
    for k in range(len(mu)):
        far = y * gap[k] if upper else y
        # The weight as seen from the saddle point.
        v = mu[k] / (far + mu[k] * at)
        q[k] = v
        log += count[k] * np.log((gap[k] if upper else 1.0) + mu[k] * (at / y))
        kappa_2 += 0.5 * count[k] * v * v
        kappa_3 += count[k] * v * v * v
        largest = max(largest, v)
    side, zeta = (1.0, y - at) if upper else (-1.0, -at)
    scale = at - 0.5 * log - y if upper else at - 0.5 * log
    # The hyperbola ζ₀ + A (cosh t - 1) + i B sinh t.
    bend = kappa_3 / (6.0 * kappa_2)
    b = _COT / (2.0 * bend)
    a = b * _COT
    radius = a / np.cos(_ANGLE)
    # How far the path moves, in Im t, until it meets the branch point.
    near = (a + 1.0 / largest) / radius
    width = _ANGLE - np.arccos(near) if near < 1.0 else _ANGLE
    curvature = kappa_2 * b * b
    sigma = min(np.sqrt(2.0 * _L / curvature), 0.9 * width)
    step = 2.0 * np.pi * sigma / (_L + 0.5 * curvature * sigma * sigma)
    # Where the pole at 0 lies, in Im t.
    place = (a - zeta) / radius
    pole = side * (np.arccos(place) - _ANGLE) if abs(place) <= 1.0 else 0.0
    tail = density = error = np.nan
    for _ in range(5):
        tail, density, coarse, other = _integral(step, zeta, a, b, q, count)
        tail *= side
        coarse *= side
        if pole > 0.0:
            tail -= 1.0 / np.expm1(2.0 * np.pi * pole / step)
            coarse -= 1.0 / np.expm1(np.pi * pole / step)
        error = max(abs(1.0 - coarse / tail), abs(1.0 - other / density))
        if error <= AGREE and tail > 0.0:
            break
        step *= 0.5
    return scale + np.log(tail), density / tail, error


@body
def log_tails(y, upper, mu, gap, count, out):
    """Fill ``out`` (2, n): log of the tail of a side, and log of y f(y) over it.

    Arguments:
        y: points (n,), positive and finite.
        upper: whether the tail is sf, (n,), as above the mean.
        mu: weights over the greatest, (g,), falling; ``gap`` 1 - μ.
        count: number of times that each occurs, (g,).

    Returns:
        The largest relative error estimated at the double step, about the root of the true one.
    """
    q = np.empty(len(mu))
    worst = 0.0
    for i in range(len(y)):
        # Below, the tail is a power of y.
        tiny = y[i] < _TINY
        log, ratio, error = _point(_TINY if tiny else y[i], upper[i], mu, gap, count, q)
        if tiny:
            log += 0.5 * count.sum() * (np.log(y[i]) - np.log(_TINY))
        out[0, i], out[1, i] = log, np.log(ratio)
        if not error <= worst:
            worst = error
    return worst
