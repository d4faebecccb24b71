"""The tables of ``ustat-pg llm mse``: every estimator's gradient error at every group size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ...display.shown import Shown, plain
from ...estimators import KL_KINDS
from ...inference import means
from ..pool.constants import ConstantsEstimate, constants
from ..pool.estimates import (
    OF_POOLS,
    TABLES,
    WEIGHTED,
    Dominant,
    curves,
    dominant,
    frac_reward_zero_std,
    noise_to_signal,
    ordering,
    summary,
)
from ..pool.metrics import Metrics, metrics
from ..pool.printing import errors_table, facts, finite, noise_table, reading, stale_facts
from ..pool.scored import ScoredPool
from ..pool.tables import binary

GROUP_SIZES = (2, 4, 8, 16, 32, 64, 128)
"""Default group sizes of tables."""

SIGNED = ("grpo", "std", "maxrl", "bayes:1,1", "vanilla")
"""Estimators with advantages of the reward's sign."""


@dataclass(frozen=True)
class PoolErrors(Shown):
    """Every estimator's gradient error at every group size.

    Arguments:
        pool: the scored pool.
        numbers: single numbers by their names in JSON; None if a number does not exist.
        tables: frames by name; None if the pool does not have one.
        constants: c1, c2, c3 and G*; None for one prompt, and for an older policy's rollouts.
        dominant: the prompt that contributes most of E‖g(X)‖², if there is one.
        metrics: the constants in other metrics, if the pool was scored for an optimizer.
    """

    pool: ScoredPool
    numbers: dict[str, float | None]
    tables: dict[str, pd.DataFrame | None]
    constants: ConstantsEstimate | None = None
    dominant: Dominant | None = None
    metrics: Metrics | None = None

    def to_dict(self) -> dict[str, Any]:
        """The errors as a dict for JSON."""
        config = {name: value for name, value in self.pool.config.items() if name != "made_of"}
        counts = {"prompts": self.pool.distinct, "groups": self.pool.size}
        facts = {**counts, "rollouts": self.pool.rollouts, "config": config}
        known = {} if self.constants is None else self.constants.not_known
        rest = {**self.numbers, **self.tables, "not_known": known, "dominant": self.dominant}
        found = {name: plain(each) for name, each in (facts | rest).items()}
        return found | ({} if self.metrics is None else self.metrics.to_dict())

    def __str__(self) -> str:
        pool, tables = self.pool, self.tables
        noise, by_length = tables["noise_to_signal"], tables["noise_to_signal_by_length"]
        if pool.weighted:
            parts = [
                stale_facts(pool, self.numbers["bound_share"], tables["divergence"]),
                "noise over signal is not known: it needs two prompts, and groups smaller than the pool's"
                if noise is None
                else noise_table(noise),
            ]
        else:
            parts = [
                facts(pool, tables["summary"]),
                errors_table(tables["curves"], tables["frac_reward_zero_std"]),
                reading(tables["ordering"]),
            ]
            parts += [] if noise is None else [f"\n{noise_table(noise)}"]
        if by_length is not None:
            parts.append(
                f"\nWith the tokens of a completion averaged, 1/|o|:\n\n{noise_table(by_length)}"
            )
        if self.constants is not None:
            parts.append(f"\n{self.constants}")
        if self.metrics is not None:
            parts.append(f"\n{self.metrics}\n")
        if self.dominant is not None:
            parts.append(str(self.dominant))
        return "\n".join(parts)


def errors_of_pool(pool: ScoredPool, sizes: Sequence[int] | None = None) -> PoolErrors:
    """Every estimator's gradient error at every group size, or the noise of an older policy's rollouts.

    Group sizes are at least 2 (default: powers of 2 up to the pool's rollouts).
    """
    sizes = sizes or [size for size in GROUP_SIZES if size <= pool.rollouts]
    by_length = None
    if binary(pool):
        by_length = _noise(pool, sizes, SIGNED, aggregation="sequence-mean")
    if pool.weighted:
        assert pool.bound is not None
        share = float(pool.bound.sum() / pool.lengths.sum())
        frames = {"divergence": divergence(pool), "noise_to_signal": _noise(pool, sizes, SIGNED)}
        return PoolErrors(
            pool, {"bound_share": share}, {**frames, "noise_to_signal_by_length": by_length}
        )
    estimate = constants(pool) if pool.distinct > 1 else None
    parts = [curves(pool, sizes, [name for name in OF_POOLS if name not in WEIGHTED])]
    inside = [size for size in sizes if size <= pool.rollouts]
    if inside:
        # These draw groups from the pool, so no group can be larger than the pool.
        parts.append(curves(pool, inside, WEIGHTED))
    tables = TABLES if binary(pool) else ()
    names = dict.fromkeys(name for name in ("grpo", *OF_POOLS, *tables) if name not in WEIGHTED)
    return PoolErrors(
        pool,
        {"on_policy_z": None if pool.on_policy_z is None else finite(pool.on_policy_z)},
        {
            "summary": summary(pool),
            "curves": pd.concat(parts, ignore_index=True),
            "frac_reward_zero_std": frac_reward_zero_std(pool, sizes),
            "noise_to_signal": _noise(pool, sizes, list(names)),
            "noise_to_signal_by_length": by_length,
            "ordering": pd.concat(
                [ordering(pool, size).assign(group_size=size) for size in sizes], ignore_index=True
            ),
            "constants": None if estimate is None else estimate.to_frame(),
        },
        estimate,
        *((None, None) if estimate is None else (dominant(pool), metrics(pool))),
    )


def _noise(
    pool: ScoredPool, sizes: Sequence[int], names: Sequence[str], **how: Any
) -> pd.DataFrame | None:
    """Noise over signal at the sizes smaller than the pool; None if there is one prompt or no such size."""
    below = [size for size in sizes if size < pool.rollouts]
    return noise_to_signal(pool, below, names, **how) if below and pool.distinct > 1 else None


def divergence(pool: ScoredPool) -> pd.DataFrame:
    """The mean k1, k2 and k3 of KL(π_old ‖ π_θ) of a completion, summed over tokens, with 95% intervals."""
    assert pool.divergences is not None
    averages = means(pool.by_prompt(pool.divergences.mean(axis=1)))
    low, high = averages.interval()
    return pd.DataFrame(
        {"name": KL_KINDS, "value": averages.full, "low": low, "high": high, "se": averages.se}
    )
