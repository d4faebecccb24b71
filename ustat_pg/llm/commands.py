"""``ustat-pg llm mse``: every baseline's gradient error at every group size."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..estimators import KL_KINDS
from ..validation import InputError, integer
from .arguments import refuse_ignored, source
from .asked_pool import make_folder, on_policy_z, scored_pool, shown_progress
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
from .printing import (
    noise_table,
    percent,
    plain,
    reading,
    records,
    say_constants,
    say_facts,
)
from .tables import binary

__all__ = ["divergence", "mse"]

Told = tuple[dict[str, Any], Callable[[], None]]
"""What was found, frames and what stands beside them, by the names that JSON has; what prints it."""

GROUP_SIZES = (2, 4, 8, 16, 32, 64, 128)
"""Of tables, unless others are asked for."""

SIGNED = ("grpo", "std", "maxrl", "bayes:1,1", "vanilla")
"""Advantages whose sign is the reward's."""


def mse(options: argparse.Namespace) -> None:
    """Every baseline's gradient MSE at every group size; of an older policy's rollouts their noise."""
    if options.ratio is not None and options.remax:
        raise InputError(
            "--ratio is of rollouts of an older policy: leave out --remax, which samples anew"
        )
    for size in options.group_sizes or ():
        integer("group size", size, 2)
    refuse_ignored(options, source(options), "out")
    make_folder(options.out)
    with shown_progress() as progress:
        pool, made_of = scored_pool(options, progress)
    sizes = options.group_sizes or [size for size in GROUP_SIZES if size <= pool.rollouts]
    greedy = _greedy(pool, made_of) if options.remax else None
    found, say = _stale(pool, sizes) if pool.weighted else _own(pool, sizes, greedy)
    frames = {name: each for name, each in found.items() if isinstance(each, pd.DataFrame)}
    if options.out is not None:
        for name, frame in frames.items():
            frame.to_csv(options.out / f"{name}.csv", index=False)
    if options.json:
        config = {name: own for name, own in pool.config.items() if name != "made_of"}
        told = {"prompts": pool.size, "rollouts": pool.rollouts, "config": config}
        told |= {name: records(each) if name in frames else each for name, each in found.items()}
        print(json.dumps(told, allow_nan=False))
        return
    say()
    if options.out is not None:
        kept = (f"{name}.csv" for name in frames)
        print(f"\nKept in {options.out}: rollouts.jsonl, scored.npz,\n{', '.join(kept)}")


def _own(pool: ScoredPool, sizes: list[int], greedy: NDArray[np.float64] | None) -> Told:
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
    found = {
        "on_policy_z": on_policy_z(pool),
        "summary": summary(pool),
        "curves": frame,
        "zero_signal": zero_signal(pool, sizes),
        "noise_to_signal": None if noise is None else noise.replace("constant", "remax"),
        "noise_to_signal_by_length": _by_length(pool, sizes),
        "ordering": pd.concat(orders, ignore_index=True),
        "constants": None if known is None else known.frame(),
    }

    def say() -> None:
        say_facts(pool, found["summary"])
        _say_errors(frame, found["zero_signal"])
        print(reading(orders))
        if noise is not None:
            print(f"\n{noise_table(found['noise_to_signal'])}")
        _say_by_length(found)
        if known is not None:
            print()
            say_constants(known)

    return found, say


def _say_errors(frame: pd.DataFrame, signal: pd.DataFrame) -> None:
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
    print(tabulate(rows, header, disable_numparse=True, stralign="right"))
    print("\nMSE of one group's gradient, mean over prompts, ± half a 95% interval over prompts.")


def _greedy(pool: ScoredPool, made_of: Any) -> NDArray[np.float64]:
    """Rewards of greedy completions of the pool's prompts."""
    from .rollouts import greedy_rewards

    model, task = made_of
    if task is None:
        raise InputError("--remax completes prompts anew: it needs the task, --prompts")
    return greedy_rewards(model, task, pool.prompts)


def _noise(pool: ScoredPool, sizes: list[int], names: Sequence[str], **how: Any) -> Any:
    """Noise over signal at the sizes that are smaller than the pool; None of one prompt or no size."""
    below = [size for size in sizes if size < pool.rollouts]
    return noise_to_signal(pool, below, names, **how) if below and pool.size > 1 else None


def _by_length(pool: ScoredPool, sizes: list[int]) -> Any:
    """Noise over signal where a completion's tokens are averaged; None where nothing is known of it."""
    if pool.length_sums is None:
        return None
    return _noise(pool, sizes, SIGNED, aggregation="sequence-mean")


def _say_by_length(found: dict[str, Any]) -> None:
    if found["noise_to_signal_by_length"] is not None:
        table = noise_table(found["noise_to_signal_by_length"])
        print(f"\nTokens of a completion averaged, 1/|o|:\n\n{table}")


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


def _stale(pool: ScoredPool, sizes: list[int]) -> Told:
    """Divergence, and noise over signal with ratio and clipping, of an older policy's rollouts."""
    assert pool.bound is not None
    found = {
        "bound_share": float(pool.bound.sum() / pool.lengths.sum()),
        "divergence": divergence(pool),
        "noise_to_signal": _noise(pool, sizes, SIGNED),
        "noise_to_signal_by_length": _by_length(pool, sizes),
    }
    return found, partial(_say_stale, pool, found)


def _say_stale(pool: ScoredPool, found: dict[str, Any]) -> None:
    print(
        f"{pool.config.get('model', 'a pool')}: {pool.size} prompts, {pool.rollouts} rollouts of each by an "
        f"older policy; their mean reward {pool.rewards.mean():.3f}"
    )
    print(f"{_weighting(pool)}: {percent(found['bound_share'])} of tokens are bound")
    cells = [
        f"{row['name']} {plain(row['value'])}"
        + (f" ± {plain(row['se'], 2)}" if np.isfinite(row["se"]) else "")
        for row in found["divergence"].to_dict("records")
    ]
    print(
        f"KL of the older policy to this one, a completion ± standard error: {', '.join(cells)}\n"
    )
    noise = found["noise_to_signal"]
    if noise is None:
        print("no noise over signal: it takes two prompts, and groups smaller than the pool's")
    else:
        print(noise_table(noise))
    _say_by_length(found)


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
