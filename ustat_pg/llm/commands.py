"""Every baseline's gradient error at every group size, as ``ustat-pg llm mse`` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..estimators import KL_KINDS
from .estimates import (
    BASELINES,
    TABLES,
    WEIGHTED,
    constants,
    curves,
    noise_to_signal,
    ordering,
    summary,
    zero_signal,
)
from .moments import means
from .pool import ScoredPool, TokenWeights
from .printing import constants_text, facts, finite, noise_table, percent, plain, reading
from .tables import binary

__all__ = ["GROUP_SIZES", "divergence", "errors_of_pool", "errors_text"]

GROUP_SIZES = (2, 4, 8, 16, 32, 64, 128)
"""Of tables, unless others are asked for."""

SIGNED = ("grpo", "std", "maxrl", "bayes:1,1", "vanilla")
"""Advantages whose sign is the reward's."""


def errors_of_pool(
    pool: ScoredPool, sizes: Sequence[int], greedy: NDArray[np.float64] | None = None
) -> dict[str, Any]:
    """Every baseline's gradient error at every group size; of an older policy's rollouts their noise.

    Arguments:
        pool: of the scores.
        sizes: group sizes, each at least 2.
        greedy: rewards of greedy completions, (P,), for ReMax.

    Returns:
        frames and numbers by the names that JSON has.
    """
    return _stale(pool, sizes) if pool.weighted else _own(pool, sizes, greedy)


def _own(
    pool: ScoredPool, sizes: Sequence[int], greedy: NDArray[np.float64] | None
) -> dict[str, Any]:
    """Errors, orders, noise over signal and constants of a model's own rollouts."""
    frame = curves(pool, sizes, [name for name in BASELINES if name not in WEIGHTED])
    if greedy is not None:
        own = curves(pool, sizes, ["constant"], constant=greedy)
        frame = pd.concat([frame, own.replace("constant", "remax")], ignore_index=True)
    inside = [size for size in sizes if size <= pool.rollouts]
    if inside and pool.gram is not None:
        # Groups are drawn from the pool for these: none is larger than it.
        frame = pd.concat([frame, curves(pool, inside, WEIGHTED)], ignore_index=True)
    tables = TABLES if binary(pool) else ()
    names = [name for name in ("grpo", *BASELINES, *tables) if name not in WEIGHTED]
    names += [] if greedy is None else ["constant"]
    noise = _noise(pool, sizes, list(dict.fromkeys(names)), constant=greedy)
    orders = [ordering(pool, size).assign(group_size=size) for size in sizes]
    known = constants(pool) if pool.size > 1 else None
    return {
        "on_policy_z": None if pool.on_policy_z is None else finite(pool.on_policy_z),
        "summary": summary(pool),
        "curves": frame,
        "zero_signal": zero_signal(pool, sizes),
        "noise_to_signal": None if noise is None else noise.replace("constant", "remax"),
        "noise_to_signal_by_length": _by_length(pool, sizes),
        "ordering": pd.concat(orders, ignore_index=True),
        "constants": None if known is None else known.frame(),
    }


def errors_text(pool: ScoredPool, found: dict[str, Any]) -> str:
    """The tables that a person reads of what :func:`errors_of_pool` found."""
    if pool.weighted:
        return _stale_text(pool, found)
    orders = [order for _, order in found["ordering"].groupby("group_size", sort=False)]
    parts = [
        facts(pool, found["summary"]),
        _errors_table(found["curves"], found["zero_signal"]),
        reading(orders),
    ]
    if found["noise_to_signal"] is not None:
        parts.append(f"\n{noise_table(found['noise_to_signal'])}")
    parts += _by_length_text(found)
    if found["constants"] is not None:
        parts.append(f"\n{constants_text(constants(pool))}")
    return "\n".join(parts)


def _errors_table(frame: pd.DataFrame, signal: pd.DataFrame) -> str:
    """Errors in a table, a line for each group size."""
    from tabulate import tabulate

    rows, names = [], list(dict.fromkeys(frame["baseline"]))
    for size, share in zip(signal["group_size"], signal["share"], strict=True):
        here = {r["baseline"]: r for r in frame[frame["group_size"] == size].to_dict("records")}
        cells = [
            f"{plain(here[name]['mse'])} ± {plain((here[name]['high'] - here[name]['low']) / 2, 2)}"
            if name in here
            else "-"
            for name in names
        ]
        rows.append([size, *cells, percent(share)])
    # Long names in two lines: the table fits a terminal.
    header = [name.replace("-", "-\n") for name in ("G", *names, "no signal")]
    table = tabulate(rows, header, disable_numparse=True, stralign="right")
    return f"{table}\n\nMSE of one group's gradient, mean over prompts, ± half a 95% interval over prompts."


def _noise(pool: ScoredPool, sizes: Sequence[int], names: Sequence[str], **how: Any) -> Any:
    """Noise over signal at the sizes that are smaller than the pool; None of one prompt or no size."""
    below = [size for size in sizes if size < pool.rollouts]
    return noise_to_signal(pool, below, names, **how) if below and pool.size > 1 else None


def _by_length(pool: ScoredPool, sizes: Sequence[int]) -> Any:
    """Noise over signal where a completion's tokens are averaged; None where nothing is known of it."""
    if pool.length_sums is None:
        return None
    return _noise(pool, sizes, SIGNED, aggregation="sequence-mean")


def _by_length_text(found: dict[str, Any]) -> list[str]:
    frame = found["noise_to_signal_by_length"]
    return (
        []
        if frame is None
        else [f"\nTokens of a completion averaged, 1/|o|:\n\n{noise_table(frame)}"]
    )


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


def _stale(pool: ScoredPool, sizes: Sequence[int]) -> dict[str, Any]:
    """Divergence, and noise over signal with ratio and clipping, of an older policy's rollouts."""
    assert pool.bound is not None
    return {
        "bound_share": float(pool.bound.sum() / pool.lengths.sum()),
        "divergence": divergence(pool),
        "noise_to_signal": _noise(pool, sizes, SIGNED),
        "noise_to_signal_by_length": _by_length(pool, sizes),
    }


def _stale_text(pool: ScoredPool, found: dict[str, Any]) -> str:
    cells = [
        f"{row['name']} {plain(row['value'])}"
        + (f" ± {plain(row['se'], 2)}" if np.isfinite(row["se"]) else "")
        for row in found["divergence"].to_dict("records")
    ]
    noise = found["noise_to_signal"]
    lines = [
        f"{pool.config.get('model', 'a pool')}: {pool.size} prompts, {pool.rollouts} rollouts of each by an "
        f"older policy; their mean reward {pool.rewards.mean():.3f}",
        f"{_weighting(pool)}: {percent(found['bound_share'])} of tokens are bound",
        f"KL of the older policy to this one, a completion ± standard error: {', '.join(cells)}\n",
        "no noise over signal: it takes two prompts, and groups smaller than the pool's"
        if noise is None
        else noise_table(noise),
    ]
    return "\n".join(lines + _by_length_text(found))


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
