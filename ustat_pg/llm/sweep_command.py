"""``ustat-pg llm sweep``: training runs over a grid of group sizes, and what they have found."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import shlex
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..validation import InputError
from .arguments import setting, sizes
from .grid import PRESETS, Sweep, dry_run
from .printing import percent, records
from .runs import GRID, NEEDED, Run
from .training import Training

__all__ = ["sweep", "sweep_arguments"]


def sweep_arguments(command: argparse.ArgumentParser) -> None:
    """Those of ``llm sweep``: one for each field of a run, and what to do with them."""
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings in YAML: what follows, any further argument of TRL's configuration, and "
        "grid: with lists for some of trainer, budget, group_size and seed. Options change them",
    )
    command.add_argument(
        "--preset",
        choices=sorted(path.stem for path in PRESETS.glob("*.yaml")),
        help="the paper's full-size runs, likewise",
    )
    told = "\n".join(inspect.getdoc(part) or "" for part in (Training, Run))
    helps = dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", told, flags=re.MULTILINE))
    for entry in fields(Run):
        if entry.name == "options":
            continue
        grid, kind = entry.name in GRID, str(entry.type)
        what: dict[str, Any] = {"metavar": "VALUE[,VALUE...]" if grid else "VALUE"}
        if entry.name == "trainer":
            # A table's name has commas of its own, before numbers.
            what["type"] = lambda text: re.split(r",(?=[a-z])", text)
        elif grid or kind.startswith("tuple[int"):
            what["type"] = sizes
        elif kind.startswith("tuple"):
            what["type"] = shlex.split
        elif kind == "bool":
            what = {"action": "store_true", "default": None}
        elif kind.startswith(("int", "float")):
            what["type"] = int if kind.startswith("int") else float
        text = re.sub(r":\w+:`~?[\w.]*?(\w+)`|``", r"\1", " ".join(helps[entry.name].split()))
        command.add_argument(
            _flag(entry.name), dest=entry.name, help=text.replace("%", "%%").rstrip("."), **what
        )
    command.add_argument(
        "--trl",
        type=setting,
        action="append",
        metavar="NAME=VALUE",
        help="a further argument of TRL's configuration, report_to=wandb for example; may be repeated",
    )
    command.add_argument("--workers", type=int, metavar="N", help="runs at a time (default: 1)")
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="run nothing: print the runs, and what TRL and the prompts have against them",
    )
    command.add_argument(
        "--print",
        action="store_true",
        help="run nothing: print the shell command of each run that is not finished, for the machines "
        "of a cluster; --results joins what they leave",
    )
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="of the runs; results are joined there"
    )
    command.add_argument(
        "--results", action="store_true", help="run nothing: join what is in --out"
    )
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _flag(name: str) -> str:
    """The flag of a field of a run."""
    return f"--{'prompts' if name == 'task' else name.replace('_', '-')}" + "s" * (name in GRID)


def sweep(options: argparse.Namespace) -> int:
    """Training runs over a grid of group sizes; returns the exit code, 3 where a run failed."""
    from .results import results

    if options.out is None and not options.dry_run:
        raise InputError("where to: --out names the folder of the runs")
    failed = 0
    if options.results:
        _refuse_grid(options)
    else:
        made = _sweep_of(options)
        if options.dry_run:
            told, problems = dry_run(made.plan())
            print("\n".join([*told, *(f"problem: {each}" for each in problems)]))
            return 3 if problems else 0
        if options.print:
            print("\n".join(made.commands(options.out)))
            return 0
        say = None if options.json else print
        outcomes = made.run(options.out, options.workers or 1, say=say)
        failed = sum(outcome.status == "failed" for outcome in outcomes)
    _say_sweep(results(options.out), options)
    return 3 if failed else 0


def _refuse_grid(options: argparse.Namespace) -> None:
    """Refuse what says which runs to make, where --results makes none; it is named."""
    ignored = [
        _flag(name)
        for name, value in vars(options).items()
        if name not in ("out", "json", "results", "command", "part") and value not in (None, False)
    ]
    if ignored:
        raise InputError(f"--results makes no run: leave out {', '.join(ignored)}")


def _sweep_of(options: argparse.Namespace) -> Sweep:
    """The sweep that the options name."""
    from .models import machine_device

    if options.config is not None and options.preset is not None:
        raise InputError("--config and --preset are both given: name one of the two")
    given = {
        entry.name: value
        for entry in fields(Run)
        if (value := getattr(options, entry.name, None)) is not None
    }
    given = dict(options.trl or ()) | given
    file = options.config or (options.preset and PRESETS / f"{options.preset}.yaml")
    if file is None and (missing := [_flag(name) for name in NEEDED if name not in given]):
        raise InputError(f"a sweep needs {', '.join(missing)}, or --config")
    made = Sweep.read(file, given) if file else Sweep.of(given)
    if "device" not in made.base:
        made.base["device"] = machine_device()
    return made


def _say_sweep(frame: Any, options: argparse.Namespace) -> None:
    from tabulate import tabulate

    from .results import differences, draw, figure5, table2

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
