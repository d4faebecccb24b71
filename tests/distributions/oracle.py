"""The law of Σ wₖ χ²₁ in mpmath, by ways that share nothing with the library's.

:func:`tails` integrates along two straight rays from the saddle point, by the double-exponential
rule, with a logarithm for every weight: no hyperbola, no pole to subtract, no branch to follow.
"""

from collections import Counter
from typing import Any

import mpmath
import numpy as np
from mpmath import mp, mpf

from ustat_pg.distributions import WeightedChi2


def tails(weights: Any, x: float, digits: int = 24) -> tuple[Any, Any, Any]:
    """cdf, sf and density at x, each to about ``digits`` digits relative."""
    with mp.workdps(digits + 12):
        groups = Counter(float(w) for w in weights)
        top = mpf(max(groups))
        mu = [(mpf(w) / top, mpf(m) / 2) for w, m in groups.items()]
        y = mpf(x) / (2 * top)
        mean = sum(m * u for u, m in mu)
        if y > mean:
            low, high = mpf(0), mpf(1)
        else:
            low, high = -(1 + sum(m for _, m in mu)) / y, mpf(0)
        # The saddle of K(z) - z y - log|z|, by bisection of the distance from an end.
        for _ in range(4000):
            middle = (low + high) / 2
            if high < 0 and low / high > 4:
                middle = -mpmath.sqrt(low * high)
            if y > mean and (1 - low) > 4 * (1 - high) and high < 1:
                middle = 1 - mpmath.sqrt((1 - low) * (1 - high))
            rises = sum(m * u / (1 - u * middle) for u, m in mu) - y - 1 / middle
            low, high = (low, middle) if rises > 0 else (middle, high)
            size = min(1 - high, low) if y > mean else -high
            if high - low < mpf(2) ** -6 * size:
                break
        start = (low + high) / 2
        bend = sum(m * (u / (1 - u * start)) ** 2 for u, m in mu) + 1 / start**2
        unit = 1 / mpmath.sqrt(bend)
        ray = mpmath.expjpi(mpf(1) / 3)
        height = -sum(m * mpmath.log(1 - u * start) for u, m in mu) - start * y

        def value(t: Any) -> tuple[Any, Any]:
            inner = mpmath.exp(-t)
            r = unit * mpmath.exp(t - inner)
            z = start + r * ray
            power = -sum(m * mpmath.log(1 - u * z) for u, m in mu) - z * y - height
            if power.real < -3 * digits:
                return mpf(0), mpf(0)
            f = mpmath.exp(power) * ray * r * (1 + inner)
            return (f / z).imag, f.imag

        def sums(points: Any) -> tuple[Any, Any]:
            tail = density = mpf(0)
            for point in points:
                a, b = value(point)
                tail, density = tail + a, density + b
            return tail, density

        left = -mpmath.log(2.4 * digits)
        right = mpmath.log(4 * digits) + 2
        far = (4 * digits) / (y * unit)
        if far > 1:
            right = max(right, mpmath.log(far) + 1)
        count = 32
        step = (right - left) / count
        total = sums(left + step * i for i in range(count + 1))
        before = None
        while True:
            more = sums(left + step * (i + mpf(1) / 2) for i in range(count))
            total = tuple(old + new for old, new in zip(total, more, strict=True))
            count *= 2
            step /= 2
            now = tuple(part * step for part in total)
            if before is not None and all(
                abs(one - other) <= mpf(10) ** -(digits // 2 + 2) * abs(one)
                for one, other in zip(now, before, strict=True)
            ):
                break
            before = now
            if count > 4096:
                raise ArithmeticError(f"no convergence: {weights}, {x}")
        scale = mpmath.exp(height) / mp.pi
        tail, density = now[0] * scale, now[1] * scale / (2 * top)
        if y > mean:
            return 1 - tail, tail, density
        return -tail, 1 + tail, density


def case(generator: np.random.Generator, most: int) -> tuple[np.ndarray, float]:
    """Random weights of one of six shapes, at most ``most`` of them, and a random point.

    Points lie from far below the mean, down to 1e-20 of it, to a thousand standard deviations up.
    """
    n = int(np.exp(generator.uniform(0, np.log(most + 0.99))))
    span = 10 ** generator.uniform(0, 8)
    shape = generator.integers(6)
    if shape == 0:
        weights = np.exp(generator.uniform(-np.log(span), 0, n))
    elif shape == 1:
        groups = max(1, n // 4)
        values = np.exp(generator.uniform(-np.log(span), 0, groups))
        weights = np.repeat(values, generator.integers(1, 9, groups))
    elif shape == 2:
        weights = np.append(generator.uniform(0.5, 1, n) / span, 1.0)
    elif shape == 3:
        weights = generator.uniform(0.1, 0.999) ** np.arange(min(n, 60))
    elif shape == 4:
        weights = 1 + generator.uniform(0, 10 ** generator.uniform(-6, 0), n)
    else:
        weights = 1 / np.arange(1, n + 1) ** generator.uniform(0.5, 4)
    weights = weights * 10 ** generator.uniform(-6, 6)
    mean, spread = weights.sum(), np.sqrt(2 * (weights**2).sum())
    x = (
        mean * 10 ** -generator.uniform(0, 3),
        mean * 10 ** -generator.uniform(0, 20),
        mean + spread * 10 ** generator.uniform(-3, 1),
        mean + spread * 10 ** generator.uniform(0, 3),
    )[generator.integers(4)]
    return weights, float(x)


def errors(weights: np.ndarray, x: float) -> dict[str, float]:
    """How far :class:`WeightedChi2` is from the oracle.

    Returns:
        ``absolute`` of cdf and sf; ``tail`` and ``density``, relative, of the smaller tail and of
        the density, or of their logarithms where these exceed 100; ``log``, the tail's logarithm.
    """
    law = WeightedChi2(weights)
    cdf, sf, density = tails(weights, x, 20)
    with mp.workdps(40):
        small = min(cdf, sf)
        log_tail, log_density = mpmath.log(small), mpmath.log(density)
        result = law.logcdf(x) if cdf < sf else law.logsf(x)
        return {
            "absolute": float(max(abs(mpf(law.cdf(x)) - cdf), abs(mpf(law.sf(x)) - sf))),
            "tail": float(abs(mpf(result) - log_tail) / max(1, abs(log_tail) / 100)),
            "density": float(
                abs(mpf(law.logpdf(x)) - log_density) / max(1, abs(log_density) / 100)
            ),
            "log": float(log_tail),
        }
