"""The group size with a memory of earlier rewards, from a scored pool (reward_memory)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...inference import ratio
from ...predictions import MemoryAdvice, memory_group_size
from ...predictions.closed_forms import budget_noise, memory_budget_noise
from ...predictions.group_size import feasible_sizes
from ...validation import Array
from .constants import constant_means, constants
from .moments import prompt_moments
from .scored import ScoredPool


def memory_pool_advice(pool: ScoredPool, memory: int, budget: int) -> MemoryAdvice:
    """The group size of a pool with n earlier rewards of each prompt in the baseline.

    The intervals are those of ratios of means over the pool's prompts, at the group sizes that are best for
    the estimates.

    Arguments:
        pool: a pool of at least two prompts.
        memory: n >= 1.
        budget: K = BG.

    Raises:
        InputError: an argument is invalid, or no group has a signal.
    """
    estimates, means = constants(pool), constant_means(pool)
    known = estimates.predictions()
    spread = max(float(means.full[0] + means.full[4]), 0.0)
    trace = float(prompt_moments(pool).by_prompt(pool).fisher_trace.mean())
    found = memory_group_size(known, memory, budget, spread=spread, fisher_trace=trace)
    plain = min(
        feasible_sizes(budget).tolist(),
        key=lambda size: budget_noise(size, known.c1, known.c2, known.c3),
    )

    def beside_plain(size: int) -> tuple[float, float]:
        def noises(columns: Array) -> Array:
            c1, c2, c3, _, signal = (columns[..., place] for place in range(5))
            with_memory = memory_budget_noise(size, memory, c1, c2, c3, c1 + signal)
            return np.stack([with_memory, budget_noise(plain, c1, c2, c3)], axis=-1)

        return ratio(means.apply(noises)).interval

    low, high = estimates.g_star.interval
    return replace(
        found,
        g_star_interval=(max(1.0, low - memory), max(1.0, high - memory)),
        ratio_interval=beside_plain(found.group_size),
        ratio_at_one_interval=beside_plain(1),
    )
