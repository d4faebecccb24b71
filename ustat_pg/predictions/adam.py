"""The best group size for Adam, whose divisor knows the noise of the batch (Theorem 7, group_size).

Adam divides the gradient of parameter j by √vⱼ, and vⱼ is a mean of squared gradients of past batches. So
for batches of K = BG outputs it is E ĝⱼ² = gⱼ² + (c1ⱼ G + c2ⱼ + c3ⱼ/(G-1))/K, with the constants of this
parameter alone. To first order in the learning rate a step gains

    Σⱼ gⱼ²/√vⱼ,   with the slope in G   -1/(2K) Σⱼ wⱼ (c1ⱼ - c3ⱼ/(G-1)²),   wⱼ = gⱼ² vⱼ^(-3/2),

so that the best group size satisfies G* = 1 + √(Σ wⱼ c3ⱼ / Σ wⱼ c1ⱼ), where w itself depends on G* and K.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from ..display.shown import Shown
from ..moments.record import Moments, takes_problems
from ..rounding import DERIVED
from ..validation import Array, InputError, integer
from .closed_forms import adam_gain, adam_square, adam_weight, best_group_size, budget_noise
from .covariance import covariance_parts
from .group_size import mse_constants, optimal_group_size
from .mse import no_gradient

_TRIED = 1000
"""The number of group sizes between which the slope of the gain is followed."""


@dataclass(frozen=True, eq=False)
class AdamGroupSize(Shown):
    """The best group size for Adam at a budget.

    Arguments:
        group_size: G*, the real group size of the largest gain, from 1 to K.
        plain_group_size: G* of the gradient's error, which is best for SGD.
        gain: Σⱼ gⱼ²/√vⱼ at G*; a step of rate η gains η times as much, to first order.
        kept: share of it that is left at the plain G* (at most K).
        weights: wⱼ = gⱼ² vⱼ^(-3/2) at G*, (d,).
    """

    group_size: float
    plain_group_size: float
    gain: float
    kept: float
    weights: Array


@takes_problems
def adam_group_size(moments: Moments, budget: int) -> AdamGroupSize:
    """The best group size for Adam at a budget, if its divisor has seen batches like this one (Theorem 7,
    group_size) [exact to first order in the rate].

    G* = 1 + √(Σ wⱼ c3ⱼ / Σ wⱼ c1ⱼ),  wⱼ = gⱼ² vⱼ^(-3/2),  vⱼ = gⱼ² + (c1ⱼ G* + c2ⱼ + c3ⱼ/(G*-1))/K

    is solved where the gain is largest. Unlike that of SGD it depends on the budget.

    Arguments:
        moments: moments with matrices, or a problem.
        budget: K >= 2, outputs of a step.

    Raises:
        InputError: the mean gradient is 0, so that no group size gains anything.

    >>> from ustat_pg.problems import named_problem
    >>> found = adam_group_size(named_problem("features").problem, 64)
    >>> round(found.group_size, 3), round(found.plain_group_size, 3)
    (2.736, 2.771)
    """
    outputs = integer("budget", budget, 2)
    signal = moments.weighted_gradient(np.ones(len(moments))) ** 2
    if signal.sum() <= no_gradient(moments):
        raise InputError("the mean gradient is 0: a step of Adam gains nothing at any group size")
    # A parameter without a gradient gains nothing, whatever its noise.
    moving = signal > 0
    g, c1, c2, c3 = (
        part[moving] for part in (signal, *map(np.diagonal, covariance_parts(moments)))
    )

    def square(size: float) -> Array:
        return np.asarray(adam_square(g, budget_noise(size, c1, c2, c3), outputs))

    def gain(size: float) -> float:
        return float(adam_gain(g, square(size), np.sqrt).sum())

    def slope(size: float) -> float:
        return float(adam_weight(g, square(size), np.sqrt) @ (c3 / (size - 1) ** 2 - c1))

    # The gain of each parameter has one maximum, so that of the sum lies between them.
    alone = best_group_size(c3 / np.maximum(c1, DERIVED * c3), np.sqrt)
    low, high = (min(float(end), float(outputs)) for end in (alone.min(), alone.max()))
    sizes = 1 + np.geomspace(low - 1, high - 1, _TRIED)
    at = int(np.argmax([gain(size) for size in sizes]))
    ends = sizes[max(at - 1, 0)], sizes[min(at + 1, _TRIED - 1)]
    best = sizes[at]
    if slope(ends[0]) > 0 > slope(ends[1]):
        best = brentq(slope, *ends, xtol=DERIVED)
    plain = optimal_group_size(mse_constants(moments))
    weights = np.zeros(len(signal))
    weights[moving] = adam_weight(g, square(best), np.sqrt)
    return AdamGroupSize(
        float(best), plain, gain(best), gain(min(plain, float(outputs))) / gain(best), weights
    )
