"""``ustat-pg llm sweep``: training runs over a grid of group sizes, and what they have found."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from dataclasses import fields
from typing import Any

from ..validation import InputError
from .printing import percent, records
from .sweep_arguments import refuse_grid

__all__ = ["sweep"]

_NEEDED = ("model", "group_sizes", "budgets", "steps", "learning_rate")


def sweep(options: argparse.Namespace) -> int:
    """Training runs over a grid of group sizes; returns the exit code, 3 where a run failed."""
    from .sweep import dry_run, results

    if options.out is None and not options.dry_run:
        raise InputError("where to: --out names the folder of the runs")
    failed = 0
    if options.results:
        refuse_grid(options)
    else:
        plan = _grid(options)
        if options.dry_run:
            told, problems = dry_run(plan.plan())
            print("\n".join([*told, *(f"problem: {each}" for each in problems)]))
            return 3 if problems else 0
        say = None if options.json else print
        outcomes = plan.run(options.out, options.workers or 1, say=say)
        failed = sum(outcome.status == "failed" for outcome in outcomes)
    _say_sweep(results(options.out), options)
    return 3 if failed else 0


def _grid(options: argparse.Namespace) -> Any:
    """The sweep that the options name."""
    from .models import machine_device
    from .paper_runs import gsm8k_sweep, math_sweep
    from .sweep import Sweep

    given: dict[str, Any] = {
        entry.name: tuple(value) if isinstance(value, list) else value
        for entry in fields(Sweep)
        if (value := getattr(options, entry.name, None)) is not None
    }
    if options.options:
        given["options"] = dict(options.options)
    if options.preset is not None:
        return {"figure5": gsm8k_sweep, "table2": math_sweep}[options.preset](**given)
    missing = [f"--{name.replace('_', '-')}" for name in _NEEDED if name not in given]
    if missing:
        raise InputError(f"a sweep needs {', '.join(missing)} (or --preset)")
    if "task" not in given:
        if not given["model"].startswith("embedded:"):
            raise InputError(f"which prompts: --prompts, {given['model']} has none of its own")
        given["task"] = given["model"]
    return Sweep(**{"checkpoints": (), "device": machine_device(), **given})


def _say_sweep(frame: Any, options: argparse.Namespace) -> None:
    from tabulate import tabulate

    from .sweep import differences, draw, figure5, table2

    tables = {
        "results": frame,
        "table2": table2(frame),
        "figure5": figure5(frame),
        "differences": differences(frame),
    }
    for name, table in tables.items():
        table.to_csv(options.out / f"{name}.csv", index=False)
    made = [f"{name}.csv" for name in tables]
    # A picture is for those who have what draws it.
    with suppress(InputError):
        draw(tables["figure5"], options.out / "figure5.svg")
        made.append("figure5.svg")
    if options.json:
        named = {"runs" if name == "results" else name: records(t) for name, t in tables.items()}
        print(json.dumps(named, allow_nan=False))
        return
    last = tables["table2"]
    states = frame.drop_duplicates("key")["status"].value_counts()
    print(", ".join(f"{count} runs {status}" for status, count in states.items()))
    gaps = tables["differences"].set_index(["trainer", "K", "G"])
    rows = []
    for row in last.to_dict("records"):
        place = (row["trainer"], row["K"], row["G"])
        less = "the best"
        if place in gaps.index:
            gap = gaps.loc[place]
            less = f"{gap['difference']:+.1%}"
            if gap["runs"] > 1:
                less += f" [{gap['low']:+.1%}, {gap['high']:+.1%}]"
        rows.append([*place, row["runs"], percent(row["accuracy"]), less, percent(row["paper"])])
    header = ["trainer", "K", "G", "runs", "final accuracy", "less the best", "the paper's"]
    if last["paper"].isna().all():
        header, rows = header[:-1], [row[:-1] for row in rows]
    print(tabulate(rows, header, disable_numparse=True))
    print("Less the best of its K: over pairs of runs with one seed, with 95% intervals.")
    for row in frame[frame["status"] == "failed"].drop_duplicates("key").to_dict("records"):
        print(
            f"failed: {row['trainer']} K={row['K']} G={row['G']} seed={row['seed']}: {row['message']}"
        )
    print(f"Joined in {options.out}: {', '.join(made)}")
