"""``ustat-pg llm mse``: every baseline's gradient error at every group size."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from ..validation import InputError, integer
from .arguments import refuse_ignored, source
from .asked_pool import make_folder, on_policy_z, scored_pool, shown_progress
from .printing import (
    noise_table,
    percent,
    plain,
    reading,
    records,
    say_constants,
    say_facts,
)
from .scored import ScoredPool

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["mse"]


GROUP_SIZES = (2, 4, 8, 16, 32, 64, 128)
"""Of tables, unless others are asked for."""


def mse(options: argparse.Namespace) -> None:
    """Every baseline's gradient MSE at every group size."""
    import pandas as pd

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
    from .stale_command import by_length, say_stale
    from .tables import binary

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
    below = [size for size in sizes if size < pool.rollouts]
    if pool.weighted:
        say_stale(options, pool, below)
        return
    greedy = _greedy(pool, made_of) if options.remax else None
    frame = curves(pool, sizes, [name for name in BASELINES if name not in WEIGHTED])
    if greedy is not None:
        own = curves(pool, sizes, ["constant"], constant=greedy)
        frame = pd.concat([frame, own.replace("constant", "remax")], ignore_index=True)
    inside = [size for size in sizes if size <= pool.rollouts]
    if inside and pool.gram is not None:
        # Groups are drawn from the pool for these: none is larger than it.
        frame = pd.concat([frame, curves(pool, inside, WEIGHTED)], ignore_index=True)
    facts, signal = summary(pool), zero_signal(pool, sizes)
    known = constants(pool) if pool.size > 1 else None
    orders = [ordering(pool, size).assign(group_size=size) for size in sizes]
    noise, mean = None, by_length(pool, below)
    if below and pool.size > 1:
        tables = TABLES if binary(pool) else ()
        names = [name for name in ("grpo", *BASELINES, *tables) if name not in WEIGHTED]
        names += [] if greedy is None else ["constant"]
        noise = noise_to_signal(pool, below, list(dict.fromkeys(names)), constant=greedy)
        noise = noise.replace("constant", "remax")
    if options.out is not None:
        frame.to_csv(options.out / "curves.csv", index=False)
        if noise is not None:
            noise.to_csv(options.out / "noise_to_signal.csv", index=False)
        if mean is not None:
            mean.to_csv(options.out / "noise_to_signal_by_length.csv", index=False)
        facts.to_csv(options.out / "summary.csv", index=False)
    if options.json:
        print(
            json.dumps(
                {
                    "prompts": pool.size,
                    "rollouts": pool.rollouts,
                    "config": {name: own for name, own in pool.config.items() if name != "made_of"},
                    "on_policy_z": on_policy_z(pool),
                    "summary": records(facts),
                    "curves": records(frame),
                    "zero_signal": records(signal),
                    "noise_to_signal": None if noise is None else records(noise),
                    "noise_to_signal_by_length": None if mean is None else records(mean),
                    "ordering": [row for order in orders for row in records(order)],
                    "constants": None if known is None else records(known.frame()),
                },
                allow_nan=False,
            )
        )
        return
    from tabulate import tabulate

    say_facts(pool, facts)
    rows, names = [], list(dict.fromkeys(frame["baseline"]))
    for size, share in zip(sizes, signal["share"], strict=True):
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
    print(reading(orders))
    if noise is not None:
        print(f"\n{noise_table(noise)}")
    if mean is not None:
        print(f"\nTokens of a completion averaged, 1/|o|:\n\n{noise_table(mean)}")
    if known is not None:
        print()
        say_constants(known)
    if options.out is not None:
        more = "" if noise is None else ", noise_to_signal.csv"
        print(f"\nKept in {options.out}: rollouts.jsonl, scored.npz, curves.csv, summary.csv{more}")


def _greedy(pool: ScoredPool, made_of: Any) -> NDArray[np.float64]:
    """Rewards of greedy completions of the pool's prompts."""
    from .pipeline import greedy_rewards

    model, task = made_of
    if task is None:
        raise InputError("--remax completes prompts anew: it needs the task, --prompts")
    return greedy_rewards(model, task, pool.prompts)
