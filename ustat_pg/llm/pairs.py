"""Constants from the gradients of micro-batches, by pairs of one step (theory/language_models.md).

A leave-one-out trainer makes hₖ = Σ Aᵢ sᵢ over the m completions of micro-batch k. With n_same pairs of
different completions of one prompt and n_other of different prompts,

    E⟨hₖ, hₗ⟩ = β n_same + γ n_other,   E‖hₖ‖² = α m + β n_same + γ n_other,
    γ = ‖g‖²,   β = E‖g(X)‖² (1 + 1/(G-1)²),   α = τ + φ/(G-1),

exactly, at every G. β and γ are regressed on pairs k ≠ l, α is what ‖hₖ‖² has beyond them, and
:func:`ustat_pg.predictions.paired_constants` makes c₁, c₂ and c₃ of the three.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..predictions import MseConstants, critical_budget, optimal_group_size, paired_constants
from ..validation import InputError, integer
from .constants import noise_and_signal, ratio_interval
from .moments import Means, means

__all__ = ["NoiseEstimate", "estimate_noise", "step_sums"]

Array = NDArray[np.float64]
Interval = tuple[float, float]
_NAMES = ("c1", "c2", "c3", "gradient_sq", "phi_over_tau")


@dataclass(frozen=True)
class NoiseEstimate:
    """What the steps of a window say, with standard errors and 95% intervals.

    Errors are those of a jackknife over blocks of steps; intervals of ratios are Fieller's, and their
    standard errors, by the delta method, NaN where the ratio has no value.

    Arguments:
        c1: tr Cov_X g(X); as an unbiased estimate it may be negative.
        c2: E[τ - ‖g(X)‖²].
        c3: E[φ + ‖g(X)‖²].
        gradient_sq: ‖g‖², which may be negative too.
        g_star: 1 + √(c3/c1), infinite where c1 is not positive.
        k_crit: completions a step at which noise equals signal at the best G, infinite where
            gradient_sq is not positive.
        phi_over_tau: φ/τ, as it was given or measured.
        steps: T, of the window so far.
    """

    c1: float
    c1_se: float
    c1_interval: Interval
    c2: float
    c2_se: float
    c2_interval: Interval
    c3: float
    c3_se: float
    c3_interval: Interval
    gradient_sq: float
    gradient_sq_se: float
    gradient_sq_interval: Interval
    g_star: float
    g_star_se: float
    g_star_interval: Interval
    k_crit: float
    k_crit_se: float
    k_crit_interval: Interval
    phi_over_tau: float
    phi_over_tau_se: float
    phi_over_tau_interval: Interval
    steps: int

    def metrics(self) -> dict[str, float]:
        """What is finite, by name; an interval as ``_low`` and ``_high``."""
        found: dict[str, float] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name.endswith("_interval"):
                stem = each.name.removesuffix("_interval")
                found |= {f"{stem}_low": value[0], f"{stem}_high": value[1]}
            else:
                found[each.name] = float(value)
        return {name: value for name, value in found.items() if math.isfinite(value)}


def step_sums(products: Array, groups: NDArray[np.int64], shares: ArrayLike = (0.0, 0.0)) -> Array:
    """All that an estimate takes of one step.

    Arguments:
        products: ⟨hₖ, hₗ⟩ of its micro-batches, (k, k).
        groups: which group a completion is of, (k, m).
        shares: what its completions add to φ and to τ in some layer, in any unit.
    """
    count, size = groups.shape
    same = (groups[:, None, :, None] == groups[None, :, None, :]).sum(axis=(2, 3)).astype(float)
    other = size**2 - same
    own_same, own_other = np.diagonal(same) - size, np.diagonal(other)
    apart = ~np.eye(count, dtype=bool)
    n, o, value = same[apart], other[apart], products[apart]
    squares = np.diagonal(products)
    return np.array(
        [n @ n, n @ o, o @ o, n @ value, o @ value,
         squares.sum(), own_same.sum(), own_other.sum(), groups.size, *np.asarray(shares)]
    )  # fmt: skip


def estimate_noise(
    steps: Array, group_size: int, *, phi_over_tau: float | None = None, blocks: int = 10
) -> NoiseEstimate:
    """Constants from the sums of some steps.

    Arguments:
        steps: of :func:`step_sums`, (T, Q) in the order of the steps.
        group_size: G.
        phi_over_tau: φ/τ; None for that of the shares, 1 where they have none.
        blocks: of consecutive steps, from 2 to T.

    Raises:
        InputError: another number of blocks.
    """
    if not 2 <= integer("blocks", blocks) <= len(steps):
        raise InputError(
            f"blocks are {blocks}: {len(steps)} steps make from 2 to {len(steps)} of them"
        )
    starts = np.arange(blocks) * len(steps) // blocks
    blockwise = means(np.add.reduceat(steps, starts))

    def found(mean: Array) -> Array:
        """c₁, c₂, c₃, ‖g‖² and φ/τ of means (..., Q), (..., 5)."""
        nn, no, oo, nv, ov, square, own_same, own_other, count, phi, tau = np.moveaxis(mean, -1, 0)
        # Singular where n_same is the same for all pairs, as of steps that have one.
        scale = nn * oo - no**2
        scale = np.where(scale > 1e-9 * nn * oo, scale, np.nan)
        beta, gamma = (oo * nv - no * ov) / scale, (nn * ov - no * nv) / scale
        alpha = (square - beta * own_same - gamma * own_other) / count
        ratio = phi_over_tau
        if ratio is None:
            ratio = np.divide(phi, tau, out=np.ones_like(tau), where=(tau > 0) & (phi > 0))
        known = paired_constants(alpha, beta, gamma, group_size, ratio)
        return np.stack([*known, gamma, np.broadcast_to(ratio, gamma.shape)], axis=-1)

    known = blockwise.apply(found)
    values: dict[str, Any] = {}
    for name, *told in zip(_NAMES, known.full, known.se, *known.interval(), strict=True):
        values |= _told(name, *told)
    c1, c2, c3, gradient_sq, _ = np.maximum(np.nan_to_num(known.full), 0.0)
    clipped = MseConstants(c1, c2, c3)
    best = optimal_group_size(clipped)
    budget = critical_budget(clipped, gradient_sq) if gradient_sq > 0 else math.inf
    if not np.isfinite(known.full).all():
        best = budget = math.nan
    ratio = known.apply(lambda each: each[..., [2, 0]])
    # d√r = dr / (2√r), and r = (G* - 1)².
    error = _ratio_se(ratio) / (2 * (best - 1)) if best > 1 else math.nan
    low, high = ratio_interval(ratio)
    values |= _told("g_star", best, error, 1 + math.sqrt(low), 1 + math.sqrt(high))
    noise = known.apply(lambda each: noise_and_signal(each[..., :4]))
    values |= _told("k_crit", budget, _ratio_se(noise), *ratio_interval(noise))
    return NoiseEstimate(steps=len(steps), **values)


def _told(name: str, value: float, error: float, low: float, high: float) -> dict[str, Any]:
    ends = float(low), float(high)
    return {name: float(value), f"{name}_se": float(error), f"{name}_interval": ends}


def _ratio_se(found: Means) -> float:
    """By the delta method; NaN where the ratio has no value."""
    numerator, denominator = found.full
    if not denominator > 0:
        return math.nan
    slope = np.array([1.0, -numerator / denominator]) / denominator
    return float(np.sqrt(slope @ found.covariance @ slope))
