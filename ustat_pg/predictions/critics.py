"""The cost of errors in a learned value, and the critic that is as good as a group (Corollary 5,
optimality).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..moments.record import Moments, takes_problems
from ..registry import record_of
from ..validation import Array, InputError, finite_array, integer, number
from .closed_forms import baseline_square, pair_noise
from .mse import baseline_values


@takes_problems
def critic_excess(
    moments: Moments,
    critic: ArrayLike,
    group_size: int,
    batch_size: int = 1,
    variance: ArrayLike | None = None,
) -> float:
    """The MSE of a critic minus that of the oracle: E[tr F (e² + v) - 2 e E(‖s‖² a | X)] / (B G), e = V_φ -
    V.

    It is the cost of an error e(x) of the learned value (A2C). The last term is 0 under Assumption 2
    (Corollary 5, optimality); without the assumption a critic may be better than V. For random values, such
    as values learned from earlier rewards, e is the mean error and v the variance.

    Arguments:
        moments: moments of the problem.
        critic: V_φ(x), or its mean if it is random, (X,).
        group_size, batch_size: G and B.
        variance: v(x) >= 0, (X,), of values that are independent of the outputs they are subtracted from
            (default: 0). See :func:`learned_values`.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> critic_excess(coin.moments(), [1.0], group_size=2)
    0.0625
    """
    size, prompts = integer("group size", group_size), integer("batch size", batch_size)
    error = baseline_values(moments, record_of("critic"), None, critic) - moments.value
    spread = np.zeros(len(moments))
    if variance is not None:
        spread = finite_array("variance of predicted values", variance, 1)
        if len(spread) != len(moments) or spread.min() < 0:
            raise InputError(
                f"the variance of predicted values is {spread.tolist()}: it must be at least 0, one "
                f"per context ({len(moments)})"
            )
    known = moments.norm_advantage, moments.fisher_trace
    excess = baseline_square(moments.fisher_trace * spread, *known, error)
    return float(moments.context_probs @ excess) / (size * prompts)


@takes_problems
def learned_values(
    moments: Moments, rollouts: int, step_size: float | None = None, start: float = 0.0
) -> tuple[Array, Array]:
    """The mean and variance of a V_φ(x) that is learned from rewards of earlier outputs, prompt by prompt.

    The mean of n rewards has mean V and variance σ²/n. A running average V_φ ← V_φ + α (z - V_φ) from
    V_φ = b has mean V + (1-α)ⁿ (b - V) and variance σ² (1 - (1-α)²ⁿ) α/(2-α): it forgets its start, and is
    then as precise as the mean of 2/α - 1 rewards. With :func:`critic_excess` the mean of n rewards costs
    E[σ² tr F] / (n B G) (A2C; Corollary 5, optimality).

    Arguments:
        moments: moments of the problem at the parameters of the earlier outputs.
        rollouts: n >= 1, the number of rewards of each prompt.
        step_size: α, in (0, 1] (default: the plain mean).
        start: b, the start of a running average; the mean has no start.

    Returns:
        mean and variance, (X,) each.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> mean, variance = learned_values(coin.moments(), rollouts=4)
    >>> float(mean[0]), float(variance[0])
    (0.5, 0.0625)
    """
    count = integer("rollouts", rollouts)
    first = number("start", start)
    if step_size is None:
        return moments.value.copy(), moments.reward_variance / count
    step = number("step size", step_size, above=0.0, maximum=1.0)
    kept = (1 - step) ** count
    return (
        moments.value + kept * (first - moments.value),
        moments.reward_variance * (1 - kept**2) * step / (2 - step),
    )


@takes_problems
def critic_error_at_par(moments: Moments, group_size: int) -> float:
    """The root mean square error of an unbiased critic that costs as much as not knowing the value: √(E[σ² tr
    F + ‖g‖²] / ((G-1) E tr F)).

    A critic with a larger error has a larger MSE than grpo. If ‖g‖² is small and σ² is the same everywhere,
    it is σ/√(G-1), the standard error of the mean of the G - 1 other rewards. The squared error is weighted
    by tr F(x); the result is NaN if tr F is 0.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0, 0.0]] * 2], [[[0.5, 0.5]] * 2])
    >>> critic_error_at_par(coin.moments(), group_size=5)
    0.25
    """
    size = integer("group size", group_size, 2)
    noise = pair_noise(moments.reward_variance, moments.fisher_trace, moments.gradient_sq)
    trace = float(moments.context_probs @ moments.fisher_trace)
    square = float(moments.context_probs @ noise) / (size - 1)
    return (square / trace) ** 0.5 if trace > 0 else float("nan")


@takes_problems
def critic_rollouts_at_par(moments: Moments, group_size: int) -> float:
    """The number of earlier rewards per prompt that give as good a baseline as the group's other outputs:
    (G-1) E[σ² tr F] / E[σ² tr F + ‖g‖²].

    The mean of more rewards, at these parameters, gives a smaller MSE than grpo. The number is at most G - 1,
    and at least half of that (‖g‖² <= σ² tr F), so the mean of G - 1 earlier rewards is never worse than that
    of the G - 1 others. It is NaN if σ² tr F is 0 everywhere.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0, 0.0]] * 2], [[[0.5, 0.5]] * 2])
    >>> critic_rollouts_at_par(coin.moments(), group_size=5)
    4.0
    """
    size = integer("group size", group_size, 2)
    noise = moments.context_probs @ (moments.reward_variance * moments.fisher_trace)
    squares = moments.context_probs @ moments.gradient_sq
    return float((size - 1) * noise / (noise + squares)) if noise > 0 else float("nan")
