"""Options of ``ustat-pg llm sweep``."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ..validation import InputError
from .arguments import setting, sizes

__all__ = ["refuse_grid", "sweep_arguments"]


def sweep_arguments(command: argparse.ArgumentParser) -> None:
    """Those of ``llm sweep``."""
    command.add_argument(
        "--preset",
        choices=("figure5", "table2"),
        help="the paper's full-size runs; the options below change them",
    )
    command.add_argument("--model", metavar="M", help="a hub id, a local folder, or embedded:NAME")
    command.add_argument(
        "--prompts", dest="task", metavar="P", help="trained on; an embedded model has its own"
    )
    command.add_argument(
        "--evaluation", metavar="P", help="held-out prompts, a task of their own; or"
    )
    command.add_argument(
        "--held-out", type=int, metavar="N", help="the last N of the task's prompts"
    )
    command.add_argument("--verifier", metavar="MODULE:FUNCTION", help="of a .jsonl task")
    command.add_argument("--group-sizes", type=sizes, metavar="G[,G...]")
    command.add_argument("--budgets", type=sizes, metavar="K[,K...]", help="outputs of a step, BG")
    command.add_argument("--seeds", type=sizes, metavar="S[,S...]")
    command.add_argument(
        "--trainers",
        # A table's name has commas of its own, before numbers.
        type=lambda text: re.split(r",(?=[a-z])", text),
        metavar="NAME[,NAME...]",
        help="rloo (default, the step of the theory), norm-weighted, ..., running-table, or a table by "
        "counts such as bayes:1,1",
    )
    command.add_argument("--steps", type=int, metavar="T")
    command.add_argument("--learning-rate", type=float, metavar="ETA")
    command.add_argument("--optimizer", help="sgd (default) or adamw")
    command.add_argument("--checkpoints", type=sizes, metavar="STEP[,STEP...]", help="evaluated")
    command.add_argument("--samples", type=int, metavar="N", help="answers to each held-out prompt")
    command.add_argument(
        "--greedy", action="store_true", default=None, help="greedy answers instead"
    )
    command.add_argument("--max-new-tokens", type=int, metavar="T")
    command.add_argument("--micro-batch", type=int, metavar="N", help="completions at a time")
    command.add_argument("--processes", type=int, metavar="N", help="of a run: accelerate launch")
    command.add_argument("--device", help="cpu or cuda")
    command.add_argument("--dtype", help="of the weights")
    command.add_argument("--bf16", action="store_true", default=None)
    command.add_argument(
        "--save-every", type=int, metavar="STEPS", help="a checkpoint to resume from"
    )
    command.add_argument(
        "--trl",
        dest="options",
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
        "--out", type=Path, metavar="DIR", help="of the runs; results are joined there"
    )
    command.add_argument(
        "--results", action="store_true", help="run nothing: join what is in --out"
    )
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")


def refuse_grid(options: argparse.Namespace) -> None:
    """Refuse what says which runs to make, where --results makes none.

    Raises:
        InputError: such options are given; they are named.
    """
    read = ("out", "json", "results")
    words = {"task": "prompts", "options": "trl"}
    ignored = [
        f"--{words.get(name, name).replace('_', '-')}"
        for name, value in vars(options).items()
        if name not in (*read, "command", "part") and value not in (None, False)
    ]
    if ignored:
        raise InputError(f"--results makes no run: leave out {', '.join(ignored)}")
