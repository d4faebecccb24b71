"""What a scored pool says of its prompts, one by one and in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from ..validation import InputError, finite_array, integer
from .moments import means, prompt_moments, share_interval
from .score_weights import leave_one_out
from .scored import ScoredPool

__all__ = ["prompt_table", "sizes_of", "summary", "zero_signal"]

Array = NDArray[np.float64]

_TIE = 1e-12


def prompt_table(pool: ScoredPool) -> pd.DataFrame:
    """A row for each prompt: its moments, b*, corr(‖s‖², z), and whether oracle beats vanilla.

    b* = E[‖s‖² z]/E‖s‖² is a ratio (biased by order 1/N; V where all scores are 0), the correlation is
    NaN where rewards or norms are all equal. Whether the oracle beats vanilla is the sign of an unbiased
    estimate of the difference, 1 or 0 and not a proof; it is NaN where all rewards are equal, which
    says nothing of it.
    """
    found = prompt_moments(pool)
    norms = pool.squared_norms
    moving = found.fisher_trace > 0
    best = np.where(
        moving, found.norm_reward / np.where(moving, found.fisher_trace, 1.0), found.value
    )
    apart = norms - norms.mean(axis=1, keepdims=True)
    centred = leave_one_out(pool.rewards)
    width = np.sqrt((apart**2).sum(axis=1) * (centred**2).sum(axis=1))
    varied = (np.ptp(norms, axis=1) > _TIE * norms.max(axis=1)) & (np.ptp(pool.rewards, axis=1) > 0)
    product = (apart * centred).sum(axis=1)
    correlation = np.where(varied, product / np.where(varied, width, 1.0), np.nan)
    gain = found.norm_squared_reward - found.norm_squared_advantage
    return pd.DataFrame(
        {
            "prompt": pool.prompts,
            "value": found.value,
            "reward_variance": found.reward_variance,
            "fisher_trace": found.fisher_trace,
            "gradient_sq": found.gradient_sq,
            "norm_squared_advantage": found.norm_squared_advantage,
            "variance_trace": found.variance_trace,
            "optimal_baseline": best,
            "correlation": correlation,
            "oracle_beats_vanilla": np.where(
                np.ptp(pool.rewards, axis=1) > 0,
                gain > _TIE * np.abs(found.norm_squared_reward),
                np.nan,
            ),
        }
    )


def summary(pool: ScoredPool) -> pd.DataFrame:
    """What the pool says in a few numbers, with 95% intervals.

    pass_rate E V; reward_variance E σ²; fisher_trace E tr F; gradient_sq E‖g(X)‖²; correlation of ‖s‖²
    and z within prompts, E cov / √(E var E var); optimal_baseline, E[‖s‖² z]/E tr F, the best constant of
    all prompts; best_less_value, E[‖s‖² a]/E tr F, that less the value so weighted (0 under
    Assumption 2); mixed, the share of prompts whose rewards are not all equal; oracle_beats_vanilla, its
    share of the mixed prompts by :func:`prompt_table`, drawn towards a half by sampling errors.

    Returns:
        a row for each: name, value, low, high, se, biased.
    """
    found, table = prompt_moments(pool), prompt_table(pool)
    norms, count = pool.squared_norms, pool.rollouts
    apart = norms - norms.mean(axis=1, keepdims=True)
    columns = np.column_stack(
        [
            found.value,
            found.reward_variance,
            found.fisher_trace,
            found.gradient_sq,
            found.norm_reward,
            table["oracle_beats_vanilla"].fillna(0.0),
            table["oracle_beats_vanilla"].notna().astype(float),
            found.norm_advantage,
            (apart**2).sum(axis=1) / (count - 1),
        ]
    )

    def quantities(given: Array) -> Array:
        parts = np.moveaxis(given, -1, 0)
        value, variance, trace, gradient, reward, better, mixed, product, spread = parts
        width = np.sqrt(np.maximum(spread * variance, 0.0))
        wide, moving = width > 0, trace > 0
        correlation = np.where(wide, product / np.where(wide, width, 1.0), np.nan)
        below = np.where(moving, trace, 1.0)
        best, gap = np.where(moving, reward / below, value), np.where(moving, product / below, 0.0)
        share = np.where(mixed > 0, better / np.where(mixed > 0, mixed, 1.0), np.nan)
        columns = [value, variance, trace, gradient, correlation, best, gap, mixed, share]
        return np.stack(columns, axis=-1)

    known = means(columns, pool.looks).apply(quantities)
    low, high = known.interval()
    shares = share_interval(known)
    names: dict[str, Any] = {
        "pass_rate": False,
        "reward_variance": False,
        "fisher_trace": False,
        "gradient_sq": False,
        "correlation": True,
        "optimal_baseline": True,
        "best_less_value": True,
        "mixed": False,
        "oracle_beats_vanilla": True,
    }
    mixed = list(names).index("mixed")
    low[mixed], high[mixed] = (ends[mixed] for ends in shares)
    return pd.DataFrame(
        {
            "name": list(names),
            "value": known.full,
            "low": low,
            "high": high,
            "se": known.se,
            "biased": list(names.values()),
        }
    )


def zero_signal(rewards: ScoredPool | ArrayLike, group_sizes: Sequence[int]) -> pd.DataFrame:
    """The share of groups whose rewards are all equal, so that they teach nothing.

    Σ_v C(n_v, G)/C(N, G) for prompts with n_v rewards equal to v: unbiased, and it never rises with G.
    Of groups larger than N nothing is unbiased, and no share is given: it is at most that at G = N,
    whose upper end is ``high`` there.

    Arguments:
        rewards: a scored pool, or rewards alone (P, N).
        group_sizes: G >= 1.

    Returns:
        a row for each group size: group_size, share, low, high, se, biased (whether G > N: share
        and se are NaN).

    >>> zero_signal([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]], [2, 4, 8]).share.tolist()
    [0.75, 0.5, nan]
    """
    sizes = sizes_of(group_sizes)
    looks = rewards.looks if isinstance(rewards, ScoredPool) else 1
    table = (
        rewards.rewards if isinstance(rewards, ScoredPool) else finite_array("rewards", rewards, 2)
    )
    count = table.shape[1]
    # n of the value of each rollout; summing over rollouts counts a value n times.
    same = (table[:, :, None] == table[:, None, :]).sum(axis=2).astype(np.float64)
    shares = np.empty((len(table), len(sizes)))
    for place, size in enumerate(np.minimum(sizes, count)):
        enough = same >= size
        many = np.where(enough, same, size)
        log = gammaln(many + 1) - gammaln(many - size + 1)
        log -= gammaln(count + 1) - gammaln(count - size + 1)
        shares[:, place] = np.where(enough, np.exp(log) / same, 0.0).sum(axis=1)
    found = means(shares, looks)
    low, high = share_interval(found)
    beyond = np.array(sizes) > count
    return pd.DataFrame(
        {
            "group_size": sizes,
            "share": np.where(beyond, np.nan, found.full),
            "low": np.where(beyond, 0.0, low),
            "high": high,
            "se": np.where(beyond, np.nan, found.se),
            "biased": beyond,
        }
    )


def sizes_of(group_sizes: Sequence[int]) -> list[int]:
    """Group sizes as whole numbers.

    Raises:
        InputError: none, or one that is not a positive whole number.
    """
    sizes = [
        integer("group size", size) for size in np.atleast_1d(np.asarray(group_sizes)).tolist()
    ]
    if not sizes:
        raise InputError("no group sizes are given: at least one is needed")
    return sizes
