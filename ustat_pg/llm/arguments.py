"""What the commands on language models take. Nothing heavy is imported here."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from ..validation import InputError

__all__ = [
    "OPTIONS",
    "add_arguments",
    "add_rewards",
    "advise_arguments",
    "mse_arguments",
    "refuse_ignored",
    "setting",
    "sizes",
    "source",
]

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def setting(text: str) -> tuple[str, Any]:
    """A name and a value, in JSON's words where it is one."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: it must be NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _until(text: str) -> str | float:
    if text in ("flat", "all"):
        return text
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write flat, all, or a positive share such as 5% or 0.05"
        )
    return share


def _clip(text: str) -> tuple[float, float | None]:
    low, comma, high = text.partition(",")
    try:
        return float(low), float(high) if comma else None
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write 0.2, or 0.2,0.28") from None


def _bytes(text: str) -> int:
    number = text.rstrip("KMGiBkmgb")
    unit = text[len(number) :].upper()
    try:
        return int(float(number) * UNITS[unit if unit.endswith("B") or not unit else f"{unit}B"])
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 800MB or 2GiB") from None


def _option(
    name: str,
    read_by: tuple[str, ...],
    help: str,
    metavar: str | None = None,
    type: Callable[[str], Any] | None = None,
    **more: Any,
) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """A row of the table below; argparse is told of what is not None."""
    told = {"type": type, "metavar": metavar, "help": help, **more}
    return name, read_by, {key: value for key, value in told.items() if value is not None}


_SAMPLED, _OWN, _SCORED, _PROBLEM = "model", "rollouts", "scored", "problem"
_ANY_MODEL = _SAMPLED, _OWN
OPTIONS = (
    _option(
        "model", _ANY_MODEL, "a hub id, a local folder, or embedded:NAME (base, strong, ...)", "M"
    ),
    _option(
        "prompts",
        _ANY_MODEL,
        "arithmetic, gsm8k, math, embedded:NAME, each with options (math:source=FOLDER), "
        "or a .jsonl file; an embedded model has its own",
        "P",
    ),
    _option("verifier", _ANY_MODEL, "of a .jsonl file, with TRL's signature", "MODULE:FUNCTION"),
    _option(
        "rollouts",
        (_OWN,),
        "your own rollouts, .jsonl, or a trainer's log (.parquet, .csv, .jsonl, a folder)",
        "FILE",
        Path,
    ),
    _option(
        "group-by",
        (_OWN,),
        "of a log: what a group's completions share (default: prompt and step)",
        "COLUMN",
        nargs="+",
    ),
    _option("reward", (_OWN,), "of a log: the rewards, where it has several", "COLUMN"),
    _option("scored", (_SCORED,), "a scored pool, .npz, alone", "FILE", Path),
    _option("limit", _ANY_MODEL, "take N prompts, drawn by --seed (default: all)", "N", int),
    _option(
        "until",
        _ANY_MODEL,
        "take more and more prompts until every G in the interval of G* is within 5%% of the "
        "least error (flat), or the advised G at most so far above it (5%%, the default where neither "
        "--limit nor rollouts say how many); all takes every prompt",
        "flat|all|SHARE",
        _until,
    ),
    _option("samples", (_SAMPLED,), "rollouts a prompt (default: 64)", "N", int),
    _option("max-new-tokens", (_SAMPLED,), "longest completion", "T", int),
    _option("seed", (_SAMPLED, "limit", "until"), "of prompts and rollouts (default: 0)", "S", int),
    _option("device", _ANY_MODEL, "cpu, cuda, cuda:N (default: the machine's accelerator)"),
    _option("dtype", _ANY_MODEL, "of the weights: float32, bfloat16 (default: as stored)"),
    _option("lora", _ANY_MODEL, "an adapter, or a fresh one", "FOLDER_OR_RANK"),
    _option("pad-token", _ANY_MODEL, "where the tokenizer has none", "TOKEN"),
    _option(
        "parameters", _ANY_MODEL, "score these alone; may be repeated", "PATTERN", action="append"
    ),
    _option(
        "method",
        _ANY_MODEL,
        "loop knows every architecture (default: hooks)",
        choices=("hooks", "loop"),
    ),
    _option("autocast", _ANY_MODEL, "forward pass in bfloat16", action="store_true"),
    _option(
        "memory",
        _ANY_MODEL,
        "to hold besides the model, 1GiB for example (default: most of what is free)",
        "SIZE",
        _bytes,
    ),
    _option(
        "off-policy",
        (*_ANY_MODEL, _SCORED),
        "go on with rollouts that another policy seems to have drawn",
        action="store_true",
    ),
    _option("batch", (_SAMPLED,), "completions sampled at a time", "N", int),
    _option(
        "backend",
        (_SAMPLED,),
        "what samples (default: transformers)",
        choices=("transformers", "vllm"),
    ),
    _option(
        "vllm",
        (_SAMPLED,),
        "an argument of vllm.LLM, gpu_memory_utilization=0.8 for example; may be repeated",
        "NAME=VALUE",
        setting,
        action="append",
    ),
    _option(
        "out", _ANY_MODEL, "keeps everything here, and goes on from what is there", "DIR", Path
    ),
    _option(
        "prompt-cost", (*_ANY_MODEL, _SCORED, _PROBLEM), "of each prompt (default: 0)", "Q", float
    ),
    _option(
        "output-cost",
        (*_ANY_MODEL, _SCORED, _PROBLEM),
        "of each output (1 where only the prompt's is given)",
        "R",
        float,
    ),
    _option(
        "population",
        (*_ANY_MODEL, _SCORED, _PROBLEM),
        "prompts are drawn without replacement from N (default: independently)",
        "N",
        int,
    ),
    _option(
        "by-length",
        _ANY_MODEL,
        "the noise of losses that average a completion's tokens (1/|o|), too",
        action="store_true",
    ),
    _option(
        "ratio",
        (_OWN,),
        "weight tokens by the ratio to the older policy that drew these rollouts, from log_probs",
        choices=("none", "token", "prefix", "sequence", "gspo"),
    ),
    _option("clip", ("ratio",), "as PPO does, by the sign of the advantage", "E[,E_HIGH]", _clip),
    _option("truncate", ("ratio",), "as CISPO does, the most that a weight may be", "C", float),
    _option("remax", _ANY_MODEL, "ReMax too: a greedy answer a prompt", action="store_true"),
)
"""Every option that not everything reads: its name, what reads it, and argparse's words for it."""
_COSTS = ("prompt-cost", "output-cost", "population")
_RATIO = ("clip", "truncate")
_MSE = ("remax", "by-length", "ratio", *_RATIO)
_ADVISE = ("until",)

_SOURCES = {
    _SAMPLED: "a model that samples has no use for all of this",
    _OWN: "rollouts of your own are not sampled again",
    _SCORED: "a scored pool serves alone",
    _PROBLEM: "a problem in a file is no language model: name one of the two",
}
"""What may be asked of, and why it does not read the other options."""


def source(options: argparse.Namespace) -> str:
    """What a command is asked of: a key of the table's second column."""
    if getattr(options, "problem", None) is not None:
        return _PROBLEM
    if options.scored is not None:
        return _SCORED
    if options.rollouts is not None:
        return _OWN
    return _SAMPLED


def refuse_ignored(options: argparse.Namespace, asked_of: str, *more: str) -> None:
    """Refuse options that would change nothing.

    Arguments:
        options: of the command.
        asked_of: from :func:`source`.
        more: options that the command reads whatever it is asked of.

    Raises:
        InputError: options that are given and not read; they are named.
    """

    def given(name: str) -> bool:
        return getattr(options, name.replace("-", "_"), None) not in (None, False)

    facts = {asked_of}
    if asked_of in _ANY_MODEL:
        facts |= {name for name in ("limit", "until", "ratio") if given(name)}
    ignored = [
        f"--{name}"
        for name, read_by, _ in OPTIONS
        if given(name) and name not in more and not facts & set(read_by)
    ]
    if ignored:
        because = _SOURCES[asked_of]
        if set(ignored) <= {f"--{name}" for name in _RATIO}:
            because = "without --ratio"
        raise InputError(f"{because}: leave out {', '.join(ignored)}, which would be ignored")


def add_arguments(command: Any, *names: str, shown: Collection[str] | None = None) -> None:
    """What says which model, prompts and rollouts: ``mse`` and ``advise`` take the same.

    Arguments:
        command: a parser or a group of one.
        names: those of :data:`OPTIONS` to add; all but those of one command where none is.
        shown: those that the help shows; None for all.
    """
    for name, _, settings in OPTIONS:
        if name in names or (not names and name not in (*_COSTS, *_MSE, *_ADVISE)):
            hidden = shown is not None and name not in shown
            command.add_argument(
                f"--{name}", **settings | ({"help": argparse.SUPPRESS} if hidden else {})
            )


def advise_arguments(command: argparse.ArgumentParser, everything: bool) -> None:
    """Those of ``advise``, of which the first help shows six.

    Arguments:
        command: the parser.
        everything: whether the help shows all.
    """
    shown = None if everything else ("model", "prompts", "rollouts", "scored")
    command.add_argument("--help-all", action="help", help="all options, and exit")
    command.add_argument(
        "problem", metavar="PROBLEM", nargs="?", help="a .json or .npz file, or ustat:NAME"
    )
    command.add_argument(
        "--budget",
        type=quantity,
        required=True,
        metavar="K",
        help="outputs per step, B prompts times G; with costs, what a step may cost",
    )
    add_arguments(command, *_COSTS, shown=shown)
    models = command.add_argument_group("for a language model")
    add_arguments(models, shown=shown)
    add_arguments(models, *_ADVISE, shown=shown)
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object on stdout")
    csv = "the table of group sizes alone, as CSV" if everything else argparse.SUPPRESS
    form.add_argument("--csv", action="store_true", help=csv)
    plot = "draw the error over the least against G" if everything else argparse.SUPPRESS
    command.add_argument("--plot", type=Path, metavar="FILE", help=plot)


def add_rewards(commands: Any) -> None:
    """The command of rewards without a model."""
    command = commands.add_parser(
        "rewards",
        help="pass rates, and groups without signal, of logged rewards",
        description="Pass rates and the share of groups whose rewards are all equal, at each group size, "
        "of rewards or of a trainer's log.",
    )
    command.add_argument(
        "file", metavar="FILE", type=Path, help=".json, .jsonl, .csv, .parquet, or a folder of them"
    )
    command.add_argument(
        "--group-by",
        nargs="+",
        default=(),
        metavar="COLUMN",
        help="of a log: what a group's completions share (default: prompt and step)",
    )
    command.add_argument(
        "--reward", metavar="COLUMN", help="of a log: the rewards, where it has several"
    )
    command.add_argument(
        "--group-sizes", type=sizes, metavar="G[,G...]", help="(default: powers of 2)"
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object on stdout")
    form.add_argument("--csv", action="store_true", help="the table of group sizes, as CSV")


def quantity(text: str) -> int | float:
    """A number, whole where it can be: 1024, 1e6 and 0.5 are all budgets that people write."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    return int(number) if number.is_integer() else number


def mse_arguments(command: argparse.ArgumentParser) -> None:
    """Those of ``llm mse`` alone."""
    command.add_argument(
        "--group-sizes", type=sizes, metavar="G[,G...]", help="of the table (default: powers of 2)"
    )
    add_arguments(command, *_MSE)
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")


def sizes(text: str) -> list[int]:
    """Whole numbers with commas between."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: whole numbers with commas between") from None
