"""Estimates of φ from gradients of micro-batches, without separate completions.

Completion i of a group of G adds vᵢ, and φ = E[rᵢ ‖vᵢ‖²], where rᵢ is the variance of the others' rewards
divided by Aᵢ², which follows from the advantages. In its group rᵢ = e + dᵢ, where e is the group's mean, and
completions are assigned to micro-batches at random. Let W be the sum of dᵢ over micro-batch k, which has cₖ
completions of a group. Then

    E[W ‖Hₖ‖²] = θ Σ c (G-c)/(G-1) + κ Σ 2c (c-1)(G-c)/(G-2) + λ Σ 2c (G-c)(m-c)/(G-1),
    E[W ⟨Hₖ, Hₗ⟩] = κ Σ cₖ cₗ (G - 2cₖ)/(G-2) + λ (...),

with sums over groups, θ = E[dᵢ ‖vᵢ‖²], κ = E[dᵢ ⟨vᵢ, vⱼ⟩] within a group and λ between two groups. All pairs
of micro-batches give these three, and those for e, by least squares. If each group lies whole in one
micro-batch, or in two halves, θ and κ cannot be separated. The part of norms proportional to Aᵢ² is known
without error.

For graded rewards rᵢ has no bound if Aᵢ is near 0; then only single completions determine φ.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..validation import Array

_TERMS = 3
"""θ, κ and λ."""
COLUMNS = 2 * _TERMS**2 + 6 * _TERMS + 5
"""The number of sums of a step."""
_ALIKE = 5e-3
"""The relative difference of advantages that rounding explains, even in half precision."""
_NOTHING = 1e-5
"""The ratio of an advantage to the largest below which it is a rounded 0."""
_KNOWN = 1e-6
"""The largest distance of the resolution of θ from 1."""
_HALF = _TERMS**2 + 2 * _TERMS
"""The index at which the sums for e start."""


def two_valued(advantages: Array, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each group's advantages have one value above 0 and one below, or are all 0, up to rounding,
    (B,).

    >>> two_valued(np.array([2.0, -1.0, -1.0, 1.0, 0.0, -1.0, 0.0, 0.0]), np.array([0, 0, 0, 1, 1, 1, 2, 2]))
    array([ True, False,  True])
    """
    scale = np.zeros(places.max() + 1)
    np.maximum.at(scale, places, np.abs(advantages))
    zero = np.bincount(places, advantages == 0)
    graded = (zero > 0) & (zero < np.bincount(places))
    for kind in (advantages > 0, advantages < 0):
        high, low = np.zeros(len(scale)), np.full(len(scale), np.inf)
        np.maximum.at(high, places[kind], np.abs(advantages[kind]))
        np.minimum.at(low, places[kind], np.abs(advantages[kind]))
        graded |= high - np.minimum(low, high) > _ALIKE * scale
    return ~graded


def shares_of(advantages: Array, places: NDArray[np.int64]) -> Array:
    """The others' variance divided by Aᵢ², for leave-one-out advantages up to a factor in groups of G > 2,
    (n,).

    An advantage of 0 leaves its completion's norm unknown, and has the share 0.

    >>> shares_of(np.array([2.0, 2.0, -4.0, 0.0, 0.0, 0.0]), np.array([0, 0, 0, 1, 1, 1]))
    array([2., 2., 0., 0., 0., 0.])
    """
    size = np.bincount(places)[places]
    squares = np.square(advantages * (size - 1) / size)
    spread = np.bincount(places, squares)[places] - squares * size / (size - 1)
    share = np.zeros(len(advantages))
    np.divide(spread.clip(min=0), advantages**2 * (size - 2), out=share, where=advantages != 0)
    return share


def rounded(advantages: Array) -> Array:
    """Advantages in which rounding errors of equal rewards' mean are set to 0, (n,).

    >>> rounded(np.array([1.0, -1.0, 3e-8]))
    array([ 1., -1.,  0.])
    """
    return np.where(np.abs(advantages) <= _NOTHING * np.abs(advantages).max(), 0.0, advantages)


def share_sums(
    products: Array, counts: Array, share: Array, advantages: Array, places: NDArray[np.int64]
) -> Array:
    """The sums of one step for E[rᵢ ‖vᵢ‖²] in :func:`shared`, (COLUMNS,); 0 if they do not determine it.

    Arguments:
        products: ⟨Hₖ, Hₗ⟩ of its micro-batches, (k, k).
        counts: completions of each group in each micro-batch, (k, B); all groups have one size.
        share: rᵢ of each completion, in the order of micro-batches, (n,).
        advantages: their advantages, (n,).
        places: group of each, (n,).
    """
    size, sizes, total = counts.sum(axis=0)[0], counts.sum(axis=1), len(places)
    squares, found = np.square(advantages), np.zeros(COLUMNS)
    if total == len(counts):
        # Each norm is known.
        found[[0, _HALF]], found[_TERMS**2] = total, share @ np.diagonal(products)
        found[-2:] = 1.0, total
        return found
    if size < 3 or not two_valued(advantages, places).all():
        return found
    batch = np.repeat(np.arange(len(counts)), sizes.astype(int))
    mean = (np.bincount(places, share) / size)[places]
    alone = np.eye(len(counts), dtype=bool)
    # The variance of a product grows with the number of its pairs.
    root = np.sqrt(np.outer(sizes, sizes))
    expected = np.diag(np.bincount(batch, squares))

    def weighed(weights: Array, design: Array) -> Array:
        own = np.bincount(batch, weights)[:, None] / root
        return np.concatenate([(own * each).ravel() @ design for each in (products, expected)])

    within, between = (
        np.stack([term.ravel() for term in (np.diag(own), *others)], axis=1) / root.reshape(-1, 1)
        for own, *others in (_within(counts, size, alone), _between(counts, alone))
    )
    apart = share - mean
    return np.concatenate([
        (within.T @ within).ravel(), weighed(apart, within),
        (between.T @ between).ravel(), weighed(mean, between),
        weighed(np.ones(len(share)), between),
        [share.sum(), apart @ squares, mean @ squares, squares.sum(), total],
    ])  # fmt: skip


def _within(counts: Array, size: float, alone: NDArray[np.bool_]) -> tuple[Array, Array, Array]:
    """The factors of θ, κ and λ for weights that sum to 0 in each group."""
    sizes, left = counts.sum(axis=1), counts * (size - counts)
    same = (counts * (size - 2 * counts)) @ counts.T / (size - 2)
    other = np.outer(left.sum(axis=1), sizes) - left @ counts.T
    other = (other - (counts * (sizes[:, None] - counts)) @ counts.T) / (size - 1)
    same[alone] = (2 * counts * (counts - 1) * (size - counts)).sum(axis=1) / (size - 2)
    other[alone] = (2 * left * (sizes[:, None] - counts)).sum(axis=1) / (size - 1)
    return left.sum(axis=1) / (size - 1), same, other


def _between(counts: Array, alone: NDArray[np.bool_]) -> tuple[Array, Array, Array]:
    """The factors of θ, κ and λ for weights that are equal within each group, with mean 0."""
    sizes, squares = counts.sum(axis=1), np.square(counts)
    same = squares @ counts.T
    other = np.outer(squares.sum(axis=1), sizes) + sizes[:, None] * (counts @ counts.T) - 2 * same
    same[alone] = (squares * (counts - 1)).sum(axis=1)
    other[alone] = 2 * (squares * (sizes[:, None] - counts)).sum(axis=1)
    return squares.sum(axis=1), same, other


def shared(sums: Array, alpha: Array, total: Array) -> Array:
    """E[rᵢ ‖vᵢ‖²] from sums of steps (..., COLUMNS) of ``total`` completions; NaN if no step determines it.

    Arguments:
        alpha: E‖vᵢ‖², (...,).
    """
    sizes = [_TERMS**2, _TERMS, _TERMS, _TERMS**2, *[_TERMS] * 4, 1, 1, 1, 1, 1]
    parts = np.split(sums, np.cumsum(sizes)[:-1], axis=-1)
    within, mine, expected, between, means, means_expected, ones, ones_expected = parts[:8]
    share, apart, mean, squares, shown = (part[..., 0] for part in parts[8:])
    with np.errstate(invalid="ignore", divide="ignore"):
        usual, level = (alpha * total / squares)[..., None], (share / total)[..., None]
        first = _solved(within, mine - usual * expected)
        second = _solved(
            between, means - level * ones - usual * (means_expected - level * ones_expected)
        )
        known = usual[..., 0] * (apart + mean - level[..., 0] * squares) / total
        found = first + second + known + level[..., 0] * alpha
        # Steps that determine it differ from steps that do not.
        return np.asarray(np.where(np.isclose(shown, total), found, np.nan))


def _solved(gram: Array, values: Array) -> Array:
    """The first coefficient of a least-squares fit; NaN if its regressor is in the span of the others."""
    gram = gram.reshape(*gram.shape[:-1], _TERMS, _TERMS)
    bad = np.asarray(~np.isfinite(gram).all(axis=(-2, -1)) | ~np.isfinite(values).all(axis=-1))
    scale = np.sqrt(np.maximum(np.diagonal(gram, axis1=-2, axis2=-1), np.finfo(float).tiny))
    gram = np.where(bad[..., None, None], 0.0, gram / (scale[..., None] * scale[..., None, :]))
    inverse = np.linalg.pinv(gram, rcond=1e-9, hermitian=True)
    told = np.asarray(np.abs((inverse @ gram)[..., 0, 0] - 1) < _KNOWN)
    fit = (inverse @ (values / scale)[..., None])[..., 0, 0] / scale[..., 0]
    return np.where(told & ~bad, fit, np.nan)
