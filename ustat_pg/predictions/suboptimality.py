"""Bounds on the suboptimality gap of the meta-algorithm (Lemma 6, suboptimality).

J is L-smooth and satisfies ‖∇J‖² >= 2μ gap, gap = J* - J; ĝ is unbiased and E‖ĝ - ∇J‖² <= M. Smoothness over
one step θ + ηĝ gives

    E gap⁺ <= gap - η(1 - Lη/2) ‖∇J‖² + Lη²M/2.

While η <= 2/L the bracket is not negative, and ‖∇J‖² >= 2μ gap gives the paper's (27),

    E gap⁺ <= (1 - 2μη + μLη²) gap + Lη²M/2.

Beyond 2/L the bracket is negative, and an upper bound on the slope is needed. Smoothness gives ‖∇J‖² <= 2L
gap, so the factor is 1 - 2Lη + L²η² = (1 - Lη)². Both factors are 1 at η = 2/L. So under c/t (27) may be
iterated only after c/t <= 2/L; the first steps use the other factor. Steps have no projection, or never leave
Θ.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from ..validation import Array, InputError, finite_array, number, positive


def _constants(pl: float, smoothness: float) -> tuple[float, float]:
    low, high = positive("pl", pl), positive("smoothness", smoothness)
    if low > high:
        raise InputError(
            f"pl is {low:g} and smoothness {high:g}: no function has μ > L, since 2μ gap <= ‖∇J‖² <= 2L gap"
        )
    return low, high


def bound_curve(
    gap: float, rates: ArrayLike, *, pl: float, smoothness: float, mse: ArrayLike
) -> Array:
    """The bound on E gap_t at t = 0, …, T, by iterating the one-step recursion (Lemma 6).

    b₀ = gap₀,  b_t = f(η_t) b_{t-1} + L η_t² M/2,
    f(η) = 1 - 2μη + μLη² while η <= 2/L, (1 - Lη)² beyond.

    This is the tightest curve that follows from the proof, at every t and for any schedule; the closed forms
    of the lemma follow from it. A quadratic with μ = L and noise M everywhere attains it.

    Arguments:
        gap: J* - J(θ₀), zero or positive.
        rates: η₁ to η_T, (T,), positive.
        pl: μ of the Polyak-Łojasiewicz inequality (Assumption 4).
        smoothness: L, at least μ (Assumption 3).
        mse: M, a bound on E‖ĝ - ∇J‖² at all points that the run may reach; a number, or one per step, (T,).

    >>> bound_curve(1.0, [0.5, 0.5], pl=1.0, smoothness=2.0, mse=0.4).tolist()
    [1.0, 0.6, 0.4]
    >>> bound_curve(1.0, [3.0], pl=1.0, smoothness=1.0, mse=0.0).tolist()     # beyond 2/L
    [1.0, 4.0]
    """
    low, high = _constants(pl, smoothness)
    start = number("gap", gap, minimum=0)
    steps = finite_array("rates", rates, 1)
    if (steps <= 0).any():
        where = int(np.argmax(steps <= 0))
        raise InputError(f"rates[{where}] is {steps[where]:g}: rates must be positive")
    noise = finite_array("mse", mse)
    if noise.shape not in ((), steps.shape):
        raise InputError(
            f"mse has shape {noise.shape}: it must be a number or one per rate, {steps.shape}"
        )
    if (noise < 0).any():
        raise InputError(f"mse holds {noise.min():g}: a mean squared error must not be negative")
    with np.errstate(over="ignore", invalid="ignore"):
        inside = 1 - 2 * low * steps + low * high * steps**2
        factors = np.where(high * steps <= 2, inside, (1 - high * steps) ** 2)
        added = high * steps**2 * noise / 2
    curve = [start]
    for factor, extra in zip(factors.tolist(), added.tolist(), strict=True):
        curve.append(factor * curve[-1] + extra)
    if not all(map(math.isfinite, curve)):
        raise InputError(f"the bound overflows: rates reach {steps.max():g} with L = {high:g}")
    return np.array(curve)


def _rate(eta: float, high: float) -> float:
    rate = positive("eta", eta)
    if rate * high >= 2:
        raise InputError(
            f"eta is {rate:g}: a constant rate must be below 2/L = {2 / high:g} (Assumption 5a)"
        )
    return rate


def constant_floor(eta: float, *, pl: float, smoothness: float, mse: float) -> float:
    """The limit of the bound under a constant rate; more steps do not lower it (Lemma 6a).

    L η M / (2μ (2 - Lη))

    Arguments:
        eta: η in (0, 2/L).
        pl, smoothness: μ <= L.
        mse: M, a bound on E‖ĝ - ∇J‖².

    >>> constant_floor(0.5, pl=1.0, smoothness=2.0, mse=0.4)
    0.2
    """
    low, high = _constants(pl, smoothness)
    rate = _rate(eta, high)
    return high * rate * number("mse", mse, minimum=0) / (2 * low * (2 - high * rate))


def constant_bound(
    steps: ArrayLike, gap: float, eta: float, *, pl: float, smoothness: float, mse: float
) -> Array:
    """The bound on E gap_T under a constant rate, in closed form (Lemma 6a).

    ρᵀ gap₀ + L η M / (2μ (2 - Lη)),   ρ = 1 - 2μη + μLη² in [0, 1)

    It exceeds :func:`bound_curve` by ρᵀ times the floor, because the paper drops this term.

    Arguments:
        steps: T, whole numbers of at least 0, of any shape.
        gap: J* - J(θ₀), zero or positive.
        eta: η in (0, 2/L).
        pl, smoothness: μ <= L.
        mse: M, a bound on E‖ĝ - ∇J‖².

    >>> constant_bound([0, 1, 2], 1.0, 0.5, pl=1.0, smoothness=2.0, mse=0.4).tolist()
    [1.2, 0.7, 0.45]
    """
    low, high = _constants(pl, smoothness)
    rate = _rate(eta, high)
    start = number("gap", gap, minimum=0)
    times = finite_array("steps", steps)
    if (times < 0).any() or (times != np.floor(times)).any():
        raise InputError(f"steps is {times.tolist()}: whole numbers of at least 0 are allowed")
    ratio = 1 - 2 * low * rate + low * high * rate**2
    return np.asarray(ratio**times * start + constant_floor(rate, pl=low, smoothness=high, mse=mse))


def decay_constant(c: float, *, pl: float, smoothness: float, mse: float) -> float:
    """The limit of T times the bound on E gap_T under the rates c/t or c/(t + t₀) (Lemma 6b).

    L c² M / (2 (2μc - 1))

    In the paper, for every ε > 0 the bound is at most (this + ε)/T from some T on. For finite T use
    :func:`bound_curve`.

    Arguments:
        c: number above 1/(2μ) (Assumption 5b).
        pl, smoothness: μ <= L.
        mse: M, a bound on E‖ĝ - ∇J‖².

    >>> decay_constant(2.0, pl=1.0, smoothness=1.5, mse=0.5)
    0.5
    """
    low, high = _constants(pl, smoothness)
    rate = positive("c", c)
    if 2 * low * rate <= 1:
        raise InputError(
            f"c is {rate:g}: it must be above 1/(2μ) = {1 / (2 * low):g} (Assumption 5b); below "
            f"it the effect of the start decays more slowly than 1/T"
        )
    return high * rate**2 * number("mse", mse, minimum=0) / (2 * (2 * low * rate - 1))
