"""Problems from real data: any labelled table is a contextual bandit.

A context is a row, an arm is a label to predict, and the reward is 1 if the label is right and 0 if not. The
policy is a linear softmax in the row's features, trained to a chosen strength, so pass rates look like those
of a partly trained model.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from ..validation import InputError, finite_array
from .softmax_bandit import SoftmaxBandit


def labelled_problem(
    features: ArrayLike, labels: ArrayLike, pass_rate: float = 0.6
) -> SoftmaxBandit:
    """A labelled table as a bandit, with a policy of a given mean pass rate.

    The weights are those of a logistic regression on the table itself, times the factor that gives
    the pass rate; an intercept is a feature that is 1 in every row.

    Arguments:
        features: one row per context, (X, m).
        labels: (X,), any values; their K distinct values are the arms, in sorted order.
        pass_rate: mean of π(right label | row), above 1/K.

    Raises:
        InputError: there are fewer than two labels, lengths differ, or the pass rate is out of reach.

    >>> table = labelled_problem([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1], pass_rate=0.8)
    >>> round(table.objective(), 6)
    0.8
    """
    # Importing scikit-learn takes most of a second, and few callers need it.
    from scipy.optimize import brentq
    from sklearn.linear_model import LogisticRegression

    table = finite_array("features", features, 2)
    names, arms = np.unique(np.asarray(labels), return_inverse=True)
    if arms.ndim != 1 or len(arms) != len(table):
        raise InputError(
            f"labels have shape {np.shape(labels)}: one per row ({len(table)}) is needed"
        )
    if len(names) < 2:
        raise InputError("labels have only one value: a choice needs at least two")
    # One thread is used, because several would only wait for each other on a table of this size.
    with threadpool_limits(1):
        fit = LogisticRegression(C=0.1, max_iter=5000, tol=1e-6).fit(table, arms)
    weights = np.column_stack([fit.coef_, fit.intercept_])
    if len(names) == 2:
        weights = np.concatenate([-weights / 2, weights / 2])
    design = np.column_stack([table, np.ones(len(table))])
    rewards = np.zeros((len(table), len(names), 1))
    rewards[np.arange(len(table)), arms] = 1.0
    uniform = np.full(len(table), 1 / len(table))

    def problem(theta: NDArray[np.float64]) -> SoftmaxBandit:
        return SoftmaxBandit.shared_linear(uniform, design, theta, rewards, np.ones_like(rewards))

    strongest, fitted = 50.0, problem(weights)

    def rate(strength: float) -> float:
        return fitted.objective(strength * weights)

    low, high = rate(0.0), rate(strongest)
    if not low < pass_rate < high:
        raise InputError(
            f"pass_rate is {pass_rate}: this table allows more than {low:.4g} and less than {high:.4g}"
        )
    strength = brentq(lambda factor: rate(factor) - pass_rate, 0.0, strongest, xtol=1e-12)
    # Rounding makes the problem independent of the last bits of a solver's result.
    return problem(np.round(strength * weights, 6))


@lru_cache(maxsize=2)
def digits_problem(pass_rate: float = 0.6) -> SoftmaxBandit:
    """scikit-learn's handwritten digits: 1,797 contexts, 10 arms, d = 650.

    >>> bandit = digits_problem()
    >>> bandit.contexts, bandit.arms, bandit.d
    (1797, 10, 650)
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    return labelled_problem(data.data / 16.0, data.target, pass_rate)
