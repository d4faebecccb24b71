"""What the commands on language models take. Nothing heavy is imported here."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

__all__ = ["add_arguments", "mse_arguments", "sweep_arguments"]

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def add_arguments(command: Any) -> None:
    """What says which model, prompts and rollouts: ``mse`` and ``group-size`` take the same."""
    command.add_argument(
        "--model",
        metavar="M",
        help="a hub id, a local folder, or embedded:NAME (base, strong, ...)",
    )
    command.add_argument(
        "--prompts",
        metavar="P",
        help="arithmetic, gsm8k, math, embedded:NAME, each with options (math:source=FOLDER), or a "
        ".jsonl file; an embedded model has its own",
    )
    command.add_argument(
        "--verifier", metavar="MODULE:FUNCTION", help="of a .jsonl file, with TRL's signature"
    )
    command.add_argument("--limit", type=int, metavar="N", help="take the first N prompts")
    command.add_argument("--samples", type=int, metavar="N", help="rollouts a prompt (default: 64)")
    command.add_argument("--rollouts", type=Path, metavar="FILE", help="your own, .jsonl")
    command.add_argument("--scored", type=Path, metavar="FILE", help="a scored pool, .npz, alone")
    command.add_argument("--max-new-tokens", type=int, metavar="T", help="longest completion")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N (default: cpu)")
    command.add_argument("--dtype", help="of the weights: float32, bfloat16 (default: as stored)")
    command.add_argument("--lora", metavar="FOLDER_OR_RANK", help="an adapter, or a fresh one")
    command.add_argument("--pad-token", metavar="TOKEN", help="where the tokenizer has none")
    command.add_argument(
        "--parameters",
        action="append",
        metavar="PATTERN",
        help="score these alone; may be repeated",
    )
    command.add_argument(
        "--method", choices=("hooks", "loop"), default="hooks", help="loop knows every architecture"
    )
    command.add_argument("--autocast", action="store_true", help="forward pass in bfloat16")
    command.add_argument(
        "--memory", type=_bytes, metavar="SIZE", help="to hold besides the model, 1GiB for example"
    )
    command.add_argument("--batch", type=int, metavar="N", help="completions sampled at a time")
    command.add_argument("--backend", choices=("transformers", "vllm"), default="transformers")
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="keeps everything here, and goes on from what is there",
    )


def mse_arguments(command: argparse.ArgumentParser) -> None:
    """Those of ``llm mse`` alone."""
    command.add_argument(
        "--group-sizes", type=_sizes, metavar="G[,G...]", help="of the table (default: powers of 2)"
    )
    command.add_argument(
        "--check",
        type=_sizes,
        metavar="G[,G...]",
        help="sample gradients anew at these group sizes, and say what both ways cost",
    )
    command.add_argument(
        "--replications", type=int, default=16, metavar="R", help="of each group in --check"
    )
    command.add_argument(
        "--check-prompts", type=int, default=20, metavar="N", help="prompts that --check takes"
    )
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _sizes(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: whole numbers with commas between") from None


def _bytes(text: str) -> int:
    number = text.rstrip("KMGiBkmgb")
    unit = text[len(number) :].upper()
    try:
        return int(float(number) * UNITS[unit if unit.endswith("B") or not unit else f"{unit}B"])
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 800MB or 2GiB") from None


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
    command.add_argument("--group-sizes", type=_sizes, metavar="G[,G...]")
    command.add_argument("--budgets", type=_sizes, metavar="K[,K...]", help="outputs of a step, BG")
    command.add_argument("--seeds", type=_sizes, metavar="S[,S...]")
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
    command.add_argument("--checkpoints", type=_sizes, metavar="STEP[,STEP...]", help="evaluated")
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
    command.add_argument("--workers", type=int, default=1, metavar="N", help="runs at a time")
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="load everything but the weights, and say what a run needs",
    )
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="of the runs; results are joined there"
    )
    command.add_argument(
        "--results", action="store_true", help="run nothing: join what is in --out"
    )
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")
