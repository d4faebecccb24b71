"""The estimators with an advantage that is a reward minus a baseline, Aᵢ = zᵢ - baselineᵢ.

REINFORCE, the constant baseline, the oracle, a critic and the minimum-variance baseline subtract a
function of the prompt; grpo (RLOO) subtracts the mean of the *other* rewards, and group-mean the mean of all
rewards; shrinkage baselines mix the others' mean with a prior mean, and memory baselines with earlier
rewards of the same prompt.

Each accepts finite rewards (..., G) of any array library and returns advantages of their shape; a baseline
from the other rewards needs G >= 2.
"""

from __future__ import annotations

from math import isfinite
from numbers import Real
from typing import Any

from ..validation import InputError, integer, number, positive
from .arrays import Array, beside, norms_of, rewards_of, sum_of_others

__all__ = [
    "bayes",
    "constant",
    "critic",
    "group_mean",
    "grpo",
    "memory",
    "minimum_variance",
    "norm_weighted",
    "oracle",
    "shrinkage",
    "shrunk_norm_weighted",
    "vanilla",
    "weighted_memory",
]


def _prompt_only(rewards: Array, baseline: Array, name: str) -> Array:
    """Subtract b(x): a number, or an array of the rewards' leading shape, in the rewards' type."""
    xp, rewards = rewards_of(rewards, name)
    if isinstance(baseline, Real):
        if not isfinite(baseline):
            raise InputError(f"the baseline of {name} is {baseline}: it must be finite")
        return rewards - float(baseline)
    baseline = beside(f"the baselines of {name}", baseline, rewards, xp)
    if baseline.ndim:
        leading = tuple(rewards.shape[:-1])
        if tuple(baseline.shape) != leading:
            raise InputError(
                f"the baseline of {name} has shape {tuple(baseline.shape)}: "
                f"it must be a number or have the rewards' leading shape {leading}"
            )
        baseline = xp.expand_dims(baseline, axis=-1)
    return rewards - xp.astype(baseline, rewards.dtype)


def vanilla(rewards: Array) -> Array:
    """REINFORCE: no baseline, Aᵢ = zᵢ (Williams 1992).

    >>> import numpy as np
    >>> vanilla(np.array([1.0, 0.0]))
    array([1., 0.])
    """
    xp, values = rewards_of(rewards, "vanilla")
    return xp.asarray(values, copy=True)


def grpo(rewards: Array) -> Array:
    """Leave-one-out mean: Aᵢ = zᵢ - (1/(G-1)) Σ_{j≠i} zⱼ (the paper's (4); RLOO).

    Lemma 1 (ustatistic): with these advantages the gradient is a U-statistic of order 2. They sum
    to zero, and the estimator is unbiased.

    >>> import numpy as np
    >>> grpo(np.array([1.0, 0.0, 0.0]))
    array([ 1. , -0.5, -0.5])
    """
    xp, rewards = rewards_of(rewards, "grpo")
    size = rewards.shape[-1]
    others = (xp.sum(rewards, axis=-1, keepdims=True) - rewards) / (size - 1)
    return rewards - others


def group_mean(rewards: Array) -> Array:
    """Full group mean: Aᵢ = zᵢ - (1/G) Σⱼ zⱼ, which is (G-1)/G times grpo.

    It is that of Dr. GRPO, and biased by that factor, which only rescales the learning rate.

    >>> import numpy as np
    >>> group_mean(np.array([1.0, 0.0]))
    array([ 0.5, -0.5])
    """
    xp, rewards = rewards_of(rewards, "group-mean")
    return rewards - xp.mean(rewards, axis=-1, keepdims=True)


def oracle(rewards: Array, *, value: Array) -> Array:
    """The true value function as baseline: Aᵢ = zᵢ - V(x).

    Arguments:
        rewards: (..., G).
        value: V(x), a number or (...).

    >>> import numpy as np
    >>> oracle(np.array([1.0, 0.0]), value=0.25)
    array([ 0.75, -0.25])
    """
    return _prompt_only(rewards, value, "oracle")


def constant(rewards: Array, *, constant: Array) -> Array:
    """One number for every prompt: Aᵢ = zᵢ - b.

    Arguments:
        rewards: (..., G).
        constant: b, a number.

    >>> import numpy as np
    >>> constant(np.array([1.0, 0.0]), constant=0.5)
    array([ 0.5, -0.5])
    """
    if not isinstance(constant, Real) and getattr(constant, "ndim", None) != 0:
        raise InputError("the constant must be one number for all prompts")
    return _prompt_only(rewards, constant, "constant")


def minimum_variance(rewards: Array, *, optimal_baseline: Array) -> Array:
    """The best baseline that depends on the prompt only: b*(x) = E[‖s‖² z|x] / E[‖s‖²|x]
    (Greensmith, Bartlett and Baxter 2004).

    Arguments:
        rewards: (..., G).
        optimal_baseline: b*(x), a number or (...).

    >>> import numpy as np
    >>> minimum_variance(np.array([1.0, 0.0]), optimal_baseline=0.128)
    array([ 0.872, -0.128])
    """
    return _prompt_only(rewards, optimal_baseline, "minimum-variance")


def critic(rewards: Array, *, predicted_value: Array) -> Array:
    """A learned value V_φ(x) as baseline: Aᵢ = zᵢ - V_φ(x) (A2C).

    Arguments:
        rewards: (..., G).
        predicted_value: V_φ(x), a number or (...).

    >>> import numpy as np
    >>> critic(np.array([1.0, 0.0]), predicted_value=np.array(0.3))
    array([ 0.7, -0.3])
    """
    return _prompt_only(rewards, predicted_value, "critic")


def norm_weighted(rewards: Array, *, squared_norms: Array) -> Array:
    """Leave-one-out mean weighted by squared score norms:
    Aᵢ = zᵢ - Σ_{j≠i} ‖sⱼ‖² zⱼ / Σ_{j≠i} ‖sⱼ‖².

    It is the practical form of the minimum-variance baseline (Corollary 5, optimality). It is unbiased, since
    it does not use output i. If all other scores are zero its baseline is defined as 0.

    Arguments:
        rewards: (..., G) with G >= 2.
        squared_norms: ‖sᵢ‖², (..., G). For a torch module use ``torch.func.vmap(torch.func.grad(...))`` of
            its log-probabilities; for a language model use :class:`ustat_pg.llm.scores.Scores`.

    >>> import numpy as np
    >>> norm_weighted(np.array([1.0, 0.0, 0.0]), squared_norms=np.array([1.0, 1.0, 3.0]))
    array([ 1.  , -0.25, -0.5 ])
    """
    return _norm_weighted("norm-weighted", rewards, squared_norms, 0.0, 0.0)


def shrunk_norm_weighted(
    rewards: Array, *, squared_norms: Array, prior_weight: float, mean_value: float
) -> Array:
    """Norm-weighted leave-one-out mean, shrunk towards the mean reward μ of other prompts:
    Aᵢ = zᵢ - (c μ + Σ_{j≠i} ‖sⱼ‖² zⱼ) / (c + Σ_{j≠i} ‖sⱼ‖²).

    It is unbiased if μ does not depend on this group. At c = 0 it is :func:`norm_weighted`; for large c it is
    the constant μ. A weight c of about the mean ‖s‖² keeps the gain of norms in large groups, and loses
    nothing in small ones (best_baseline).

    Arguments:
        rewards: (..., G) with G >= 1.
        squared_norms: ‖sᵢ‖², (..., G).
        prior_weight: c >= 0, in the units of ‖s‖².
        mean_value: μ, the mean reward of other prompts or earlier steps.

    >>> import numpy as np
    >>> shrunk_norm_weighted(
    ...     np.array([1.0, 0.0]), squared_norms=np.array([1.0, 3.0]), prior_weight=1.0, mean_value=0.5
    ... )
    array([ 0.875, -0.75 ])
    """
    weight = number("prior weight", prior_weight, minimum=0.0)
    mean = number("mean value", mean_value)
    return _norm_weighted("shrunk-norm-weighted", rewards, squared_norms, weight, mean)


def _norm_weighted(
    name: str, rewards: Array, squared_norms: Array, prior_weight: float, prior_mean: float
) -> Array:
    """Rewards minus a leave-one-out mean by norms, which includes a prior reward with its own weight."""
    xp, rewards = rewards_of(rewards, name)
    squared_norms = norms_of(squared_norms, rewards, xp)
    # The wider of the two types is used, because norms may exceed the range of the rewards' type.
    wide = xp.result_type(rewards.dtype, squared_norms.dtype)
    norms = xp.astype(squared_norms, wide)
    weight = prior_weight + sum_of_others(xp, norms)
    weighted = prior_weight * prior_mean + sum_of_others(xp, norms * xp.astype(rewards, wide))
    empty = weight == 0
    one, zero = xp.ones_like(weight), xp.zeros_like(weight)
    baseline = xp.where(empty, zero, weighted / xp.where(empty, one, weight))
    return rewards - xp.astype(baseline, rewards.dtype)


def shrinkage(rewards: Array, *, amount: float, mean_value: float) -> Array:
    """Leave-one-out mean shrunk towards the mean reward μ of other prompts:
    Aᵢ = zᵢ - (1-λ) (1/(G-1)) Σ_{j≠i} zⱼ - λ μ (Zeng et al. 2025, with a free λ).

    It is unbiased if μ and λ do not depend on this group. λ = 0 is grpo, λ = 1 the constant μ
    (best_baseline).

    Arguments:
        rewards: (..., G) with G >= 2.
        amount: λ in [0, 1].
        mean_value: μ, the mean reward of other prompts or earlier steps.

    >>> import numpy as np
    >>> shrinkage(np.array([1.0, 0.0, 0.0]), amount=0.5, mean_value=0.5)
    array([ 0.75, -0.5 , -0.5 ])
    """
    share = number("amount of shrinkage", amount, minimum=0.0, maximum=1.0)
    mean = number("mean value", mean_value)
    xp, rewards = rewards_of(rewards, "shrinkage")
    others = (xp.sum(rewards, axis=-1, keepdims=True) - rewards) / (rewards.shape[-1] - 1)
    return rewards - (1 - share) * others - share * mean


def bayes(rewards: Array, *, successes: float, failures: float) -> Array:
    """Bayes leave-one-out: the mean of the others' rewards and of a + b prior rewards, of which a are 1,
    Aᵢ = zᵢ - (a + Σ_{j≠i} zⱼ) / (a + b + G-1).

    It is the posterior mean of a pass rate with the law Beta(a, b) over prompts. With equal norms it is the
    leave-one-out baseline with the least error (best_baseline). It is unbiased, since it does not use output
    i.

    Arguments:
        rewards: (..., G) with G >= 1; from 0 to 1 for this meaning of a and b.
        successes: a > 0.
        failures: b > 0.

    >>> import numpy as np
    >>> bayes(np.array([1.0, 0.0, 0.0]), successes=1, failures=1)
    array([ 0.75, -0.5 , -0.5 ])
    """
    a, b = positive("successes", successes), positive("failures", failures)
    xp, rewards = rewards_of(rewards, "bayes")
    others = xp.sum(rewards, axis=-1, keepdims=True) - rewards
    return rewards - (others + a) / (rewards.shape[-1] - 1 + a + b)


def memory(rewards: Array, *, earlier: Array, memory: int) -> Array:
    """Memory: the mean of the others' rewards and of n earlier rewards of the same prompt,
    Aᵢ = zᵢ - (Σ_{j≠i} zⱼ + Σₘ zₘ) / (G-1+n).

    It is unbiased, since it does not use output i, also in groups of one and if the policy has changed since
    (reward_memory).

    Arguments:
        rewards: (..., G) with G >= 1.
        earlier: the earlier rewards of each prompt, (..., n).
        memory: n >= 1.

    >>> import numpy as np
    >>> memory(np.array([1.0]), earlier=np.array([1.0, 0.0, 0.0, 0.0]), memory=4)
    array([0.75])
    """
    xp, rewards, past = _with_earlier("memory", rewards, earlier, memory)
    total = sum_of_others(xp, rewards) + xp.sum(past, axis=-1, keepdims=True)
    return rewards - total / (rewards.shape[-1] - 1 + memory)


def weighted_memory(rewards: Array, *, earlier: Array, memory: int, weight: float) -> Array:
    """Weighted memory: Aᵢ = zᵢ - (1-λ) (1/(G-1)) Σ_{j≠i} zⱼ - λ (1/n) Σₘ zₘ with n earlier rewards.

    λ = n/(G-1+n) is :func:`memory`. If the policy has changed since, a smaller λ has a smaller error:
    :func:`ustat_pg.predictions.best_memory_weight` (reward_memory).

    Arguments:
        rewards: (..., G) with G >= 2.
        earlier: the earlier rewards of each prompt, (..., n).
        memory: n >= 1.
        weight: λ in [0, 1].

    >>> import numpy as np
    >>> weighted_memory(np.array([1.0, 0.0]), earlier=np.array([1.0]), memory=1, weight=0.5)
    array([ 0.5, -1. ])
    """
    share = number("weight", weight, minimum=0.0, maximum=1.0)
    xp, rewards, past = _with_earlier("weighted-memory", rewards, earlier, memory)
    others = sum_of_others(xp, rewards) / (rewards.shape[-1] - 1)
    return rewards - (1 - share) * others - share * xp.mean(past, axis=-1, keepdims=True)


def _with_earlier(
    name: str, rewards: Array, earlier: Array, memory: int
) -> tuple[Any, Array, Array]:
    """The rewards' namespace, the rewards, and the earlier rewards in their type."""
    number_of = integer("memory", memory)
    xp, rewards = rewards_of(rewards, name)
    past = beside("earlier rewards", earlier, rewards, xp)
    if tuple(past.shape) != (*rewards.shape[:-1], number_of):
        raise InputError(
            f"earlier rewards have shape {tuple(past.shape)}: {name} needs "
            f"{(*rewards.shape[:-1], number_of)}, n of each prompt"
        )
    return xp, rewards, xp.astype(past, rewards.dtype)
