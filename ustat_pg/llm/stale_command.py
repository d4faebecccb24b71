"""What ``ustat-pg llm mse`` says of rollouts of an older policy, whose tokens are weighted by ratio."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import pandas as pd

from ..estimators import KL_KINDS
from .estimates import noise_to_signal
from .moments import means
from .printing import noise_table, percent, plain, records
from .scored import ScoredPool
from .stale import TokenWeights

__all__ = ["TABLES", "by_length", "divergence", "say_stale", "token_weights"]

TABLES = ("grpo", "std", "maxrl", "bayes:1,1", "vanilla")
"""Advantages whose sign is the reward's."""


def token_weights(options: argparse.Namespace) -> TokenWeights | None:
    """What the options say of tokens' weights; None where they say nothing."""
    if getattr(options, "ratio", None) is None:
        return None
    low, high = options.clip or (None, None)
    return TokenWeights(ratio=options.ratio, clip=low, clip_high=high, truncate=options.truncate)


def divergence(pool: ScoredPool) -> pd.DataFrame:
    """k1, k2 and k3 of KL(π_old ‖ π_θ), means over completions of the sum over tokens.

    Arguments:
        pool: weighted by token.

    Returns:
        a row for each: name, value, low, high (95%), se, by a jackknife over prompts.
    """
    assert pool.divergences is not None
    found = means(pool.divergences.mean(axis=1))
    low, high = found.interval()
    return pd.DataFrame(
        {"name": KL_KINDS, "value": found.full, "low": low, "high": high, "se": found.se}
    )


def by_length(pool: ScoredPool, sizes: list[int], names: tuple[str, ...] = TABLES) -> Any:
    """Noise over signal where a completion's tokens are averaged; None where nothing is known of it."""
    if pool.length_sums is None or pool.size < 2 or not sizes:
        return None
    return noise_to_signal(pool, sizes, names, aggregation="sequence-mean")


def say_stale(options: argparse.Namespace, pool: ScoredPool, sizes: list[int]) -> None:
    """Divergence, and noise over signal with ratio and clipping."""
    assert pool.bound is not None
    apart = divergence(pool)
    share = float(pool.bound.sum() / pool.lengths.sum())
    noise = noise_to_signal(pool, sizes, TABLES) if pool.size > 1 else None
    mean = by_length(pool, sizes)
    frames = {"noise_to_signal": noise, "noise_to_signal_by_length": mean}
    if options.out is not None:
        for name, frame in {"divergence": apart, **frames}.items():
            if frame is not None:
                frame.to_csv(options.out / f"{name}.csv", index=False)
    if options.json:
        found = {
            "prompts": pool.size,
            "rollouts": pool.rollouts,
            "config": pool.config,
            "bound_share": share,
            "divergence": records(apart),
            **{name: None if each is None else records(each) for name, each in frames.items()},
        }
        print(json.dumps(found, allow_nan=False))
        return
    print(
        f"{pool.config.get('model', 'a pool')}: {pool.size} prompts, {pool.rollouts} rollouts of each by an "
        f"older policy; their mean reward {pool.rewards.mean():.3f}"
    )
    print(f"{_weighting(pool)}: {percent(share)} of tokens are bound")
    cells = [
        f"{row['name']} {plain(row['value'])}"
        + (f" ± {plain(row['se'], 2)}" if np.isfinite(row["se"]) else "")
        for row in apart.to_dict("records")
    ]
    print(
        f"KL of the older policy to this one, a completion ± standard error: {', '.join(cells)}\n"
    )
    print("one prompt: no noise over signal" if noise is None else noise_table(noise))
    if mean is not None:
        print(f"\nTokens of a completion averaged, 1/|o|:\n\n{noise_table(mean)}")


def _weighting(pool: ScoredPool) -> str:
    """The weights of tokens, in words."""
    kept = TokenWeights(**pool.config["token_weights"])
    told = f"weights of tokens by ratio, {kept.ratio}"
    if kept.clip is not None:
        high = kept.clip if kept.clip_high is None else kept.clip_high
        told += f", clipped below {1 - kept.clip:g} and above {1 + high:g}"
    if kept.truncate is not None:
        told += f", truncated at {kept.truncate:g}"
    return told
