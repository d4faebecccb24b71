"""The exact covariance matrix of the gradient estimators (Theorem 2, mse; Proposition 3, minibatch).

Its trace is the mean squared error of :mod:`ustat_pg.predictions.mse`, less the squared bias.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..moments import Moments, takes_problems
from ..validation import integer
from .count_tables import CountTable, count_table, require_binary
from .mse import Counts, baseline_values, each_size, prompt_factor, with_closed_form

Array = NDArray[np.float64]


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

    Its trace is the MSE, less the squared bias for group-mean. Arguments and errors as for
    :func:`gradient_mse`, where (...) is the shape of the sizes; moments without matrices are refused too.
    Contexts are read one by one, so that memory is a few d x d matrices beside what is returned.

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
    factor = prompt_factor(moments, prompts, design)
    values = baseline_values(moments, record, constant, critic)
    if not record.closed_form:
        return _table_covariance(moments, count_table(estimator, size, moments), factor, prompts)
    between = within = mean = np.zeros(())
    shifts = values - moments.value
    for probability, shift, variance, context in zip(
        moments.context_probs, shifts, moments.reward_variance, moments.matrices(), strict=True
    ):
        outer = np.outer(context.gradient, context.gradient)
        single = (
            context.squared_advantage
            - 2 * shift * context.advantage
            + shift**2 * context.fisher
            - outer
        ) / size
        if record.of_pairs and size > 1:
            single = single + (variance * context.fisher + outer) / (size * (size - 1))
        within = within + probability * single
        between = between + probability * outer
        mean = mean + probability * context.gradient
    covariance = factor * (between - np.outer(mean, mean)) + within / prompts
    return covariance * ((size - 1) / size) ** 2 if record.whole_group else covariance


def _table_covariance(moments: Moments, table: CountTable, factor: float, batch_size: int) -> Array:
    """The covariance of an estimator that is a table by counts, (d, d)."""
    require_binary(moments, "a table by counts")
    between = within = mean = np.zeros(())
    of_contexts = table.second_moment_matrices(moments)
    factors = table.weight(moments.value)
    for probability, weight, (second, context) in zip(
        moments.context_probs, factors, of_contexts, strict=True
    ):
        outer = weight**2 * np.outer(context.gradient, context.gradient)
        within = within + probability * (second - outer)
        between = between + probability * outer
        mean = mean + probability * weight * context.gradient
    return factor * (between - np.outer(mean, mean)) + within / batch_size
