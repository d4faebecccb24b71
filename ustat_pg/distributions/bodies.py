"""The compiled bodies of :class:`~ustat_pg.distributions.WeightedChi2`: for one point, and loops over points.

All numbers are in units in which the greatest weight is 1, and Y = Q / (2 w_max) = Σ μₖ Gamma(mₖ/2), with
M(z) = E exp(z Y) = Π (1 - μₖ z)^{-mₖ/2}. With ζ = z y and a path through a saddle point ζ₀,

    sf(y) = (1/2πi) ∫ M e^{-ζ}/ζ dζ  (0 < ζ₀ < y),   cdf(y) = -(1/2πi) ∫ M e^{-ζ}/ζ dζ  (ζ₀ < 0),

The density y f(y) is the integral without 1/ζ. The code computes the smaller of the two tails, so
nothing cancels and the relative accuracy stays full over the range of floats; a tail that would
underflow is returned as its logarithm.
"""

from __future__ import annotations

import numpy as np

from ..execution.compiled import body

AGREE = 3e-10
"""The largest allowed difference between sums at a step and at twice the step, for tail and density.

The error of the finer sum is about the square of this, times some thousands if one weight
is far above very many others. A limit of 1e-8, or a test of the tail only, let errors of 1e-10 pass.
"""

LANES = 8
"""Nodes that are computed together; a constant, so that loops over them become vector instructions."""

STEPS = 200
"""The largest number of Newton steps to a quantile."""

_ANGLE = np.deg2rad(42.0)
_COT = 1.0 / np.tan(_ANGLE)
_L = np.log(1e17)
_SMALL = 1e-18
_NODES = 1024

_CANCEL = 30.0
_TINY = 1e-300
_LOG_TWO = np.log(2.0)

# Rows of the scratch array.
_PR, _PI, _SIGN, _RE, _IM, _LOG, _PHASE = range(7)
ROWS = 7


@body
def _saddle(y, upper, mu, inverse, gap, count):
    """The saddle point to a few percent: -ζ₀ in the lower tail, y - ζ₀ in the upper.

    At ζ = z y it solves Σ ½ mₖ μₖ/(1 - μₖ z) = y + 1/z. The path depends on it, but the value does not.
    """
    groups = len(mu)
    if not upper:
        # 1/total is concave and increasing in p, and nearly linear: Newton steps on it cannot
        # overshoot, and p >= 1 at the root.
        p = 1.0
        for _ in range(60):
            total = 1.0 / p
            slope = total * total
            for k in range(groups):
                term = 1.0 / (p + y * inverse[k])
                half = 0.5 * count[k] * term
                total += half
                slope += half * term
            step = (total * total - total) / slope
            p += step
            if abs(step) <= 0.02 * p:
                break
        return p
    mean = 0.0
    for k in range(groups):
        mean += 0.5 * count[k] * mu[k]
    # Both ends solve a/d = 1 + 1/(y - d). The greatest weight alone gives less than the sum of all weights,
    # and all weights with their own μₖ y/d give more.
    low, high = 0.0, 0.0
    for end in range(2):
        a = 0.5 * count[0] if end == 0 else mean
        r = a / y
        root = np.sqrt((1 - r) * (1 - r) + 2 * (1 + r) / y + 1 / y / y)
        high = 2 * a / (1 + r + 1 / y + root)
        if end == 0:
            low = high
    d = high
    for _ in range(80):
        total = 0.0
        slope = 0.0
        for k in range(groups):
            term = mu[k] / (y * gap[k] + mu[k] * d)
            half = 0.5 * count[k] * term
            total += half
            slope += half * term
        wanted = 1.0 + 1.0 / (y - d)
        if total > wanted:
            low = d
        else:
            high = d
        # Newton on 1/total - 1/wanted, where both terms are nearly linear in d.
        falls = 1.0 / ((y - d) * wanted)
        derivative = slope / total / total + falls * falls
        new = d - (1.0 / total - 1.0 / wanted) / derivative
        if not low < new < high:
            new = np.sqrt(low) * np.sqrt(high)
        step = abs(new - d)
        d = new
        if step <= 0.02 * d:
            break
    return d


@body
def _product(q, count, scratch):
    """Multiply Π (1 - qₖ Δ)^{mₖ} at the nodes Δ in ``scratch``, all with Im Δ >= 0.

    Each factor turns clockwise by less than π. So a product that moves from below the real axis to
    above it has crossed the negative half. The parity of these crossings gives the square root's branch.
    """
    pr, pi, sign = scratch[_PR], scratch[_PI], scratch[_SIGN]
    re, im, log, phase = scratch[_RE], scratch[_IM], scratch[_LOG], scratch[_PHASE]
    for j in range(LANES):
        pr[j] = 1.0
        pi[j] = 0.0
        sign[j] = 1.0
        log[j] = 0.0
        phase[j] = 0.0
    since = 0
    for k in range(len(q)):
        v = q[k]
        if count[k] <= 3.0:
            for _ in range(int(count[k])):
                for j in range(LANES):
                    a = 1.0 - v * re[j]
                    b = -v * im[j]
                    old = pi[j]
                    new = pr[j] * b + old * a
                    pr[j] = pr[j] * a - old * b
                    pi[j] = new
                    sign[j] = -sign[j] if (old <= 0.0) & (new > 0.0) else sign[j]
                since += 1
        else:
            for j in range(LANES):
                a = 1.0 - v * re[j]
                b = -v * im[j]
                log[j] += 0.5 * count[k] * np.log(a * a + b * b)
                phase[j] += count[k] * np.arctan2(b, a)
        if since >= 24:
            since = 0
            for j in range(LANES):
                size = abs(pr[j]) + abs(pi[j])
                if not 1e-100 < size < 1e100:
                    log[j] += np.log(size)
                    pr[j] /= size
                    pi[j] /= size


@body
def _nodes(e, grow, a, b, q, count, scratch):
    """Fill ``scratch`` with the next nodes Δ and M e^{-ζ} dζ/(i dt) there, divided by its value at ζ₀.

    Returns:
        e^t at the last node, and the size of the integrand there.
    """
    re, im = scratch[_RE], scratch[_IM]
    for j in range(LANES):
        # cosh t - 1 and sinh t.
        e *= grow
        re[j] = a * (0.5 * (e - 1.0) * (e - 1.0) / e)
        im[j] = b * (0.5 * (e - 1.0) * (e + 1.0) / e)
    _product(q, count, scratch)
    for j in range(LANES):
        x, y = scratch[_PR, j], scratch[_PI, j]
        # The principal root of x + iy, without cancellation.
        size = np.sqrt(x * x + y * y)
        if x >= 0.0:
            u = np.sqrt(0.5 * (size + x))
            v = 0.5 * y / u if u > 0.0 else 0.0
        else:
            v = np.sqrt(0.5 * (size - x))
            if y < 0.0:
                v = -v
            u = 0.5 * y / v
        # 1/root times exp(-Δ - ½ (log + i phase)).
        weight = scratch[_SIGN, j] * np.exp(-re[j] - 0.5 * scratch[_LOG, j]) / size
        turn = -im[j] - 0.5 * scratch[_PHASE, j]
        c, d = np.cos(turn), np.sin(turn)
        fr = weight * (u * c + v * d)
        fi = weight * (u * d - v * c)
        # times dζ/dt / i = B cosh t - i A sinh t.
        dr = b + re[j] * b / a
        di = -im[j] * a / b
        scratch[_PR, j] = fr * dr - fi * di
        scratch[_PI, j] = fr * di + fi * dr
    return e, max(abs(scratch[_PR, LANES - 1]), abs(scratch[_PI, LANES - 1]))


@body(inline=True)
def _over(gr, gi, re, im, zeta):
    """Re (g / ζ) at ζ = ``zeta`` + re + i im: first divided by ``zeta``, because its square may overflow."""
    zr, zi = 1.0 + re / zeta, im / zeta
    return (gr * zr + gi * zi) / (zr * zr + zi * zi) / zeta


@body
def _integral(step, zeta, a, b, q, count, scratch):
    """Trapezoid sums relative to M e^{-ζ} at ζ₀: tail and density, then both at twice the step."""
    grow = np.exp(step)
    e = 1.0
    tail = 0.5 * b / zeta
    density = 0.5 * b
    coarse = tail
    coarse_density = density
    for _ in range(0, _NODES, LANES):
        e, last = _nodes(e, grow, a, b, q, count, scratch)
        for j in range(LANES):
            gr, gi = scratch[_PR, j], scratch[_PI, j]
            part = _over(gr, gi, scratch[_RE, j], scratch[_IM, j], zeta)
            tail += part
            density += gr
            if j % 2 == 1:
                coarse += part
                coarse_density += gr
        if last <= _SMALL * b:
            break
    step /= np.pi
    return tail * step, density * step, 2.0 * coarse * step, 2.0 * coarse_density * step


@body
def _path(y, upper, mu, inverse, gap, count, q):
    """The hyperbola for a point, and ``q``, the weights as seen from its vertex ζ₀.

    Returns:
        log M e^{-ζ} at ζ₀; ζ₀; A, B of ζ₀ + A (cosh t - 1) + i B sinh t; the step; Im t of the pole.
    """
    groups = len(mu)
    at = _saddle(y, upper, mu, inverse, gap, count)
    log = 0.0
    product = 1.0
    kappa_2 = 0.0
    kappa_3 = 0.0
    largest = 0.0
    for k in range(groups):
        if upper:
            base = gap[k] + mu[k] * (at / y)
            v = mu[k] / (y * gap[k] + mu[k] * at)
        else:
            base = 1.0 + mu[k] / y * at
            v = 1.0 / (y * inverse[k] + at)
        q[k] = v
        kappa_2 += 0.5 * count[k] * v * v
        kappa_3 += count[k] * v * v * v
        largest = max(largest, v)
        # Takes one logarithm for many factors.
        if count[k] == 1.0 and 1e-100 < base < 1e100:
            product *= base
            if not 1e-100 < product < 1e100:
                log += np.log(product)
                product = 1.0
        else:
            log += count[k] * np.log(base)
    if product != 1.0:
        log += np.log(product)
    if upper:
        zeta = y - at
        scale = at - 0.5 * log - y
    else:
        zeta = -at
        scale = -0.5 * log + at
    bend = kappa_3 / (6.0 * kappa_2)
    b = _COT / (2.0 * bend)
    a = b * _COT
    radius = a / np.cos(_ANGLE)
    # The distance, in Im t, that the path can move before it meets the branch point.
    width = _ANGLE
    near = (a + 1.0 / largest) / radius
    if near < 1.0:
        width = _ANGLE - np.arccos(near)
    curvature = kappa_2 * b * b
    sigma = min(np.sqrt(2.0 * _L / curvature), 0.9 * width)
    step = 2.0 * np.pi * sigma / (_L + 0.5 * curvature * sigma * sigma)
    # The position of the pole at 0, in Im t.
    pole = 0.0
    if upper:
        place = (a - zeta) / radius
        if abs(place) <= 1.0:
            pole = np.arccos(place) - _ANGLE
    else:
        place = (a - zeta) / radius
        if place <= 1.0:
            pole = _ANGLE - np.arccos(place)
    return scale, zeta, a, b, step, pole


@body
def _point(y, upper, mu, inverse, gap, count, q, scratch):
    """The logarithm of the tail at y, the density divided by it, and the estimated error.

    Returns:
        log tail; y f(y) / tail = d log tail / d log y up to its sign; relative error.
    """
    scale, zeta, a, b, step, pole = _path(y, upper, mu, inverse, gap, count, q)
    side = 1.0 if upper else -1.0
    tail = density = error = np.nan
    for _ in range(5):
        tail, density, coarse, other = _integral(step, zeta, a, b, q, count, scratch)
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
def on_one_path(points, middle, upper, mu, inverse, gap, count, q, scratch, values):
    """Fill ``values`` (2, n) as ``_point`` would, but use the path of the point ``middle`` for all.

    The products over the weights are then formed once for all points.

    Returns:
        The largest estimated relative error.
    """
    n = len(points)
    scale, zeta, a, b, step, pole = _path(middle, upper, mu, inverse, gap, count, q)
    side = 1.0 if upper else -1.0
    sums = np.empty((6, n))
    worst = np.inf
    for _ in range(3):
        for i in range(n):
            sums[0, i] = sums[1, i] = 0.5 * b / zeta
            sums[2, i] = sums[3, i] = 0.5 * b
            sums[4, i], sums[5, i] = abs(sums[0, i]), sums[2, i]
        grow = np.exp(step)
        e = 1.0
        for _ in range(0, _NODES, LANES):
            e, last = _nodes(e, grow, a, b, q, count, scratch)
            largest = 0.0
            for i in range(n):
                off = (points[i] - middle) / middle
                for j in range(LANES):
                    re, im = scratch[_RE, j], scratch[_IM, j]
                    size = np.exp(-off * re)
                    c, d = size * np.cos(off * im), -size * np.sin(off * im)
                    gr = scratch[_PR, j] * c - scratch[_PI, j] * d
                    gi = scratch[_PR, j] * d + scratch[_PI, j] * c
                    part = _over(gr, gi, re, im, zeta)
                    sums[0, i] += part
                    sums[2, i] += gr
                    sums[4, i] += abs(part)
                    sums[5, i] += abs(gr)
                    if j % 2 == 1:
                        sums[1, i] += part
                        sums[3, i] += gr
                    last = max(abs(gr), abs(gi))
                largest = max(largest, last)
            if largest <= _SMALL * b:
                break
        worst = 0.0
        for i in range(n):
            tail = side * sums[0, i] * step / np.pi
            coarse = 2.0 * side * sums[1, i] * step / np.pi
            density = sums[2, i] * step / np.pi
            off = (points[i] - middle) / middle
            if pole > 0.0:
                # The residue at ζ = 0, divided by the common factor, because e^{-ζ y/middle} at ζ₀ is not 1.
                size = np.exp(off * zeta)
                tail -= size / np.expm1(2.0 * np.pi * pole / step)
                coarse -= size / np.expm1(np.pi * pole / step)
            error = max(abs(1.0 - coarse / tail), abs(1.0 - 2.0 * sums[3, i] / sums[2, i]))
            if not (error <= worst and tail > 0.0):
                worst = error if tail > 0.0 else np.inf
            # Away from a point's own path, terms cancel and leave their rounding errors.
            if sums[5, i] > _CANCEL * sums[2, i] or sums[4, i] * step > _CANCEL * np.pi * tail:
                return np.inf
            values[0, i] = scale - off * zeta + np.log(tail)
            values[1, i] = np.log(density / tail * (1.0 + off))
        if worst <= AGREE:
            break
        step *= 0.5
    return worst


@body
def log_tails(x, top, mean, mu, inverse, gap, count, out):
    """Fill ``out`` (3, n): log of the smaller tail, log of x f(x) divided by it, 1.0 if that tail is sf.

    Arguments:
        x: points (n,), positive and finite.
        top: the greatest weight.
        mean: E Y = ½ Σ mₖ μₖ.
        mu: weights divided by the greatest, (g,), in decreasing order; ``inverse`` 1/μ, ``gap`` 1 - μ.
        count: the number of times that each weight occurs, (g,).

    Returns:
        The largest relative error estimated at twice the step, about the square root of the true error.
    """
    q = np.empty(len(mu))
    scratch = np.empty((ROWS, LANES))
    worst = 0.0
    for i in range(len(x)):
        y = 0.5 * x[i] / top
        upper = y > mean
        if y == np.inf:
            out[0, i], out[1, i], out[2, i] = -np.inf, 0.0, 1.0
            continue
        tiny = y < _TINY
        log, ratio, error = _point(_TINY if tiny else y, upper, mu, inverse, gap, count, q, scratch)
        if tiny:
            below = np.log(x[i]) - np.log(top) - _LOG_TWO - np.log(_TINY)
            log += 0.5 * count.sum() * below
        out[0, i] = log
        out[1, i] = np.log(ratio)
        out[2, i] = 1.0 if upper else 0.0
        if not error <= worst:
            worst = error
    return worst


@body
def quantiles(target, is_upper, top, mean, mu, inverse, gap, count, out):
    """Fill ``out`` (n,) with the x whose tail has the logarithm ``target`` (n,), finite.

    Newton steps, in log x for the lower tail and in x for the upper, where the logarithm of the
    tail is nearly linear; a bracket limits them, though this is rarely needed.
    """
    q = np.empty(len(mu))
    scratch = np.empty((ROWS, LANES))
    for i in range(len(target)):
        if is_upper[i]:
            y, low, high = mean, mean, np.inf
            for _ in range(STEPS):
                log, ratio, _ = _point(y, True, mu, inverse, gap, count, q, scratch)
                if log > target[i]:
                    low = max(low, y)
                else:
                    high = min(high, y)
                step = (log - target[i]) / ratio * y
                new = y + step
                if abs(step) <= 1e-9 * y:
                    y = new
                    break
                if not low < new < high:
                    new = 0.5 * (low + high) if high < np.inf else 2.0 * low
                y = new
            out[i] = 2.0 * top * y
            continue
        y, low, high = mean, -np.inf, np.log(mean)
        out[i] = np.nan
        for _ in range(STEPS):
            log, ratio, _ = _point(y, False, mu, inverse, gap, count, q, scratch)
            if y <= _TINY and log >= target[i]:
                # Below this point the tail is a power of x.
                power = (target[i] - log) / (0.5 * count.sum())
                out[i] = np.exp(np.log(_TINY) + np.log(top) + _LOG_TWO + power)
                break
            now = np.log(y)
            if log < target[i]:
                low = max(low, now)
            else:
                high = min(high, now)
            step = (target[i] - log) / ratio
            if abs(step) <= 1e-9:
                out[i] = 2.0 * top * (y * np.exp(step))
                break
            new = now + step
            if not low < new < high:
                new = 0.5 * (low + high) if low > -np.inf else now - 1.0
            y = max(y * np.exp(new - now), _TINY)
