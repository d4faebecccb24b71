"""The exact covariance matrix of the gradient estimators (Theorem 2, mse; Proposition 3, minibatch).

The trace is the mean squared error of :mod:`ustat_pg.predictions.mse` minus the squared bias.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from ..moments.record import Moments, takes_problems
from ..registry import parse
from ..rounding import SUM
from ..validation import Array, InputError, integer
from .closed_forms import (
    baseline_square,
    grpo_error,
    memory_noise,
    minibatch_error,
    pair_noise,
    whole_group_share,
)
from .count_tables import CountTable, count_table, require_binary
from .mse import (
    Counts,
    baseline_values,
    each_size,
    prompt_share,
    reward_weights,
    with_closed_form,
)


@takes_problems
def gradient_covariance(
    moments: Moments,
    estimator: str,
    group_size: int | Counts,
    batch_size: int | Counts = 1,
    design: str = "iid",
    constant: float | None = None,
    critic: ArrayLike | None = None,
) -> Array:
    """The exact covariance matrix of a minibatch gradient, (..., d, d) (Theorem 2; Proposition 3).

    The trace is the MSE; for group-mean, the MSE minus the squared bias. Arguments and errors are those of
    :func:`gradient_mse`, with (...) the shape of the sizes; moments without matrices are an error too.
    Contexts are read one by one, so memory is the result plus a few d x d matrices.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.bernoulli([0.5, 0.5], [1, 0])
    >>> gradient_covariance(coin, "grpo", group_size=2).tolist()
    [[0.0625, -0.0625], [-0.0625, 0.0625]]
    >>> gradient_covariance(coin, "grpo", group_size=[2, 4]).shape
    (2, 2, 2)
    """

    def one(size: int, prompts: int) -> Array:
        return _gradient_covariance(moments, estimator, size, prompts, design, constant, critic)

    found, shape = each_size(one, group_size, batch_size)
    return np.stack(found).reshape(shape + found[0].shape)


def _gradient_covariance(
    moments: Moments,
    estimator: str,
    group_size: int,
    batch_size: int,
    design: str,
    constant: float | None,
    critic: ArrayLike | None,
) -> Array:
    size, prompts = integer("group size", group_size), integer("batch size", batch_size)
    record = with_closed_form(estimator, size)
    share = prompt_share(moments, prompts, design)
    values = baseline_values(moments, record, constant, critic)
    if record.closed_form:
        alone = _by_moments(moments, estimator, values - moments.value, size)
    else:
        alone = _by_table(moments, count_table(estimator, size, moments))
    between = within = mean = np.zeros(())
    for probability, (covariance, gradient) in zip(moments.context_probs, alone, strict=True):
        within = within + probability * covariance
        between = between + probability * np.outer(gradient, gradient)
        mean = mean + probability * gradient
    return np.asarray(minibatch_error(prompts, between - np.outer(mean, mean), within, share))


def _by_moments(
    moments: Moments, estimator: str, shifts: Array, size: int
) -> Iterator[tuple[Array, Array]]:
    """Covariance and mean of one prompt's estimate, of an estimator with a closed form, prompt by prompt."""
    record, carried = parse(estimator)
    length = whole_group_share(size) if record.whole_group else 1.0
    known = zip(shifts, moments.reward_variance, moments.matrices(), strict=True)
    for shift, variance, context in known:
        outer = np.outer(context.gradient, context.gradient)
        squares = context.squared_advantage, context.advantage, context.fisher
        single = baseline_square(*squares, shift) - outer
        alone = single / size
        pair = pair_noise(variance, context.fisher, outer)
        if record.of_pairs and size > 1:
            alone = grpo_error(size, single, pair)
        if "earlier" in record.needs:
            weights = reward_weights(size, **carried)
            noise = memory_noise(size, carried["memory"], *weights, pair, variance * context.fisher)
            alone = (single + noise) / size
        yield length**2 * alone, length * context.gradient


def _by_table(moments: Moments, table: CountTable) -> Iterator[tuple[Array, Array]]:
    """The same of an estimator that is a table by counts."""
    require_binary(moments, "a table by counts")
    seconds = table.second_moment_matrices(moments)
    for weight, (second, context) in zip(table.weight(moments.value), seconds, strict=True):
        gradient = weight * context.gradient
        yield second - np.outer(gradient, gradient), gradient


@takes_problems
def covariance_parts(
    moments: Moments, basis: ArrayLike | None = None
) -> tuple[Array, Array, Array]:
    """The matrices behind c1, c2 and c3 (Proposition 3, minibatch): Cov = (C1 + C2/G + C3/(G(G-1)))/B.

    C1 = Cov_X g(X), C2 = E Σ(X), C3 = E[σ² F + g gᵀ].

    Arguments:
        moments: moments with matrices.
        basis: U (d, r); if given, the parts are Uᵀ C U, in the directions of its columns.

    Returns:
        three matrices (d, d), or (r, r) with a basis.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> covariance_parts(coin.moments())[2].tolist()
    [[0.125, -0.125], [-0.125, 0.125]]
    """
    frame = None if basis is None else np.asarray(basis)
    gradients = []
    single = pair = np.zeros(())
    for probability, variance, known in zip(
        moments.context_probs, moments.reward_variance, moments.matrices(), strict=True
    ):
        gradient, squared, fisher = known.gradient, known.squared_advantage, known.fisher
        if frame is not None:
            gradient = frame.T @ gradient
            squared, fisher = (frame.T @ part @ frame for part in (squared, fisher))
        outer = np.outer(gradient, gradient)
        gradients.append(gradient)
        single = single + probability * (squared - outer)
        pair = pair + probability * pair_noise(variance, fisher, outer)
    # About their mean, so that gradients that are all alike leave nothing.
    spread = np.array(gradients) - moments.context_probs @ np.array(gradients)
    return (spread * moments.context_probs[:, None]).T @ spread, single, pair


def gap_group_size(first: ArrayLike, third: ArrayLike, curvatures: ArrayLike, c: float) -> float:
    """The G that minimises the asymptotic mean gap at a budget (Theorem 8, limit_law) [exact].

    With rates c/t, T E gap_T → tr(D Σ_g), D = diag(c² λ/(2(2cλ - 1))). At BG = K this is least at G* = 1 +
    √(tr D C3 / tr D C1). Directions of small curvature count more than in the MSE, so G* depends on c, unless
    Λ is a multiple of the identity; as c grows D/c tends to I/4 and G* to that of the MSE in these
    directions, 1 + √(tr C3 / tr C1).

    Arguments:
        first, third: C1 and C3 of :func:`covariance_parts` in the eigenbasis, (r, r).
        curvatures: λ > 0 of -∇²J on it, (r,).
        c: number with 2cλ > 1 for every λ.

    Returns:
        G*; infinite if tr D C1 = 0.

    >>> round(gap_group_size([[1, 0], [0, 0.02]], [[1, 0], [0, 8]], [0.2, 1], c=3), 2)
    2.61
    """
    bends = np.asarray(curvatures)
    if 2 * c * bends.min() <= 1:
        raise InputError(
            f"c is {c}: it must exceed 1/(2λ) = {1 / (2 * bends.min()):g}, λ the least curvature"
        )
    weights = c * bends / (2 * c * bends - 1)
    between, pair = (
        float(weights @ np.maximum(np.asarray(matrix).diagonal(), 0.0)) for matrix in (first, third)
    )
    return 1 + math.sqrt(pair / between) if between > SUM**2 * pair else math.inf
