"""The limit of the estimator normalised by the group's standard deviation, as the group grows (Lemma 11,
normalised).

It tends to the U-statistic with kernel h/σ(x), the leave-one-out estimate divided by the reward's true
deviation. This is only consistency: at the scale √G the two differ, because the deviation is estimated from
the same group. With a = z - V and the delta method,

    lim G E‖ĝ_std - ĝ_grpo/σ‖² = ‖g‖² (E a⁴ - σ⁴)/(4 σ⁶)
    lim G E‖ĝ_std - g/σ‖²      = tr Cov( s a/σ - g a²/(2σ³) )

At finite G and with rewards 0 and 1 both are exact: :mod:`ustat_pg.predictions.count_tables`. With other
    rewards the second is computed by a sum over outcomes.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, xlogy

from ..moments.record import Moments, takes_problems
from ..validation import Array, InputError, finite_array, integer, probabilities
from .closed_forms import normalised_gap, normalised_noise
from .count_tables import require_binary

_MOST_GROUPS = 1_000_000
"""The largest number of different groups in a sum over groups."""


def _require_spread(moments: Moments, what: str) -> None:
    require_binary(moments, what)
    if not (moments.reward_variance > 0).all():
        raise InputError(
            "a prompt that is always or never solved has deviation 0, which cannot be divided by"
        )


@takes_problems
def normalised_distance(moments: Moments) -> Array:
    """The limit of G E‖ĝ_std - ĝ_grpo/σ‖² at each prompt, ‖g‖² (1-2p)²/(4 σ⁴), (X,), for rewards 0 and 1.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> normalised_distance(coin.moments())
    array([0.])
    """
    _require_spread(moments, "the distance")
    return np.asarray(normalised_gap(moments.gradient_sq, moments.value))


@takes_problems
def normalised_limit(moments: Moments) -> Array:
    """The limit of G E‖ĝ_std - g/σ‖² at each prompt, tr Σ/σ² - (3/4) ‖g‖² (1-2p)²/σ⁴, (X,), for rewards 0 and
    1.

    Arguments and errors are those of :func:`normalised_distance`.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> arms = SoftmaxBandit.linear([1.0], [[[1.0], [0.0]]], [-2.1972245773362196], [[[1.0], [0.0]]],
    ...                             [[[1.0], [1.0]]])
    >>> normalised_limit(arms.moments()).round(6)
    array([0.16])
    """
    _require_spread(moments, "the limit")
    single = moments.norm_squared_advantage - moments.gradient_sq
    return np.asarray(normalised_noise(single, moments.gradient_sq, moments.value))


def normalised_limit_of(probs: ArrayLike, rewards: ArrayLike, scores: ArrayLike) -> float:
    """The limit of G E‖ĝ_std - g/σ‖² at one prompt with any rewards, tr Cov(s a/σ - g a²/(2σ³)).

    It may exceed tr Cov(s a)/σ²: if rewards are nearly always in the middle of their range, a group gives a
    poor estimate of their deviation.

    Arguments:
        probs: probabilities of the outcomes of one rollout, (M,).
        rewards: rewards of the outcomes, (M,).
        scores: ∇ log π of the outcomes, (M, d); their mean is 0.

    >>> features = np.array([[1.0], [-1.0], [0.0]])
    >>> probs = np.array([0.495, 0.495, 0.01])
    >>> round(normalised_limit_of(probs, [0.6, 0.4, 0.0], features - probs @ features), 3)
    0.865
    """
    chances, advantage, matrix, deviation = _outcomes(probs, rewards, scores)
    gradient = (chances * advantage) @ matrix
    influence = matrix * (advantage / deviation)[:, None]
    influence = influence - np.outer(advantage**2, gradient) / (2 * deviation**3)
    centred = influence - chances @ influence
    return float(chances @ (centred**2).sum(axis=1))


def normalised_error_of(
    probs: ArrayLike, rewards: ArrayLike, scores: ArrayLike, group_size: int
) -> float:
    """G E‖ĝ_std - g/σ‖² at one prompt and a finite G, with any rewards: a sum over the counts of outcomes in
    a group. It tends to :func:`normalised_limit_of`.

    Arguments:
        probs, rewards, scores: as for :func:`normalised_limit_of`.
        group_size: G.

    Raises:
        InputError: as there; also if the group is empty, or if there are more than a million different
            groups.

    >>> features = np.array([[1.0], [-1.0], [0.0]])
    >>> probs = np.array([0.495, 0.495, 0.01])
    >>> round(normalised_error_of(probs, [0.6, 0.4, 0.0], features - probs @ features, 8), 3)
    0.275
    """
    chances, advantage, matrix, deviation = _outcomes(probs, rewards, scores)
    size, outcomes = integer("group size", group_size), len(chances)
    places = size + outcomes - 1
    if comb(places, size) > _MOST_GROUPS:
        raise InputError(
            f"groups of {size} of {outcomes} outcomes turn out in {comb(places, size):.1e} ways: at "
            f"most {_MOST_GROUPS:.0e} are added up; take a smaller group"
        )
    # Each group is a way to put outcomes - 1 bars between size stars.
    bars = np.array(list(combinations(range(places), outcomes - 1)), dtype=np.int64)
    ends = np.pad(bars.reshape(-1, outcomes - 1), ((0, 0), (1, 1)), constant_values=(-1, places))
    counts = np.diff(ends, axis=1) - 1
    chance = np.exp(gammaln(size + 1) + (xlogy(counts, chances) - gammaln(counts + 1)).sum(axis=1))
    centred = advantage - (counts @ advantage)[:, None] / size
    spread = np.sqrt((counts * centred**2).sum(axis=1) / size)
    errors = np.where(counts > 0, advantage, np.nan)
    silent = np.nanmin(errors, axis=1) == np.nanmax(errors, axis=1)
    weights = (
        np.where(silent[:, None], 0.0, counts * centred) / np.where(silent, 1.0, spread)[:, None]
    )
    error = weights @ matrix / size - (chances * advantage) @ matrix / deviation
    return size * float(chance @ (error**2).sum(axis=1))


def _outcomes(
    probs: ArrayLike, rewards: ArrayLike, scores: ArrayLike
) -> tuple[Array, Array, Array, float]:
    """Probabilities, advantages and scores of a prompt's outcomes, and the deviation of its rewards."""
    chances, values = probabilities("probs", probs, 1), finite_array("rewards", rewards, 1)
    matrix = finite_array("scores", scores, 2)
    if not len(chances) == len(values) == len(matrix):
        raise InputError(
            f"{len(chances)} probabilities, {len(values)} rewards and {len(matrix)} scores: one of "
            "each is needed for each outcome"
        )
    advantage = values - chances @ values
    square = float(chances @ advantage**2)
    if not square > 0:
        raise InputError("rewards without variance have deviation 0, which cannot be divided by")
    return chances, advantage, matrix, square**0.5
