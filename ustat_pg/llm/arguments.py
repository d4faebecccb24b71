"""What the commands on language models take. Nothing heavy is imported here."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from ..validation import InputError

__all__ = [
    "OPTIONS",
    "add_rewards",
    "advise_arguments",
    "mse_arguments",
    "refuse_unknown",
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
    """A row of the table below; argparse is told of what is not None.

    What is not given has the default of the function that is called.
    """
    told = {"type": type, "metavar": metavar, "help": help, "default": argparse.SUPPRESS, **more}
    return name, read_by, {key: value for key, value in told.items() if value is not None}


_SAMPLED, _OWN, _SCORED, _PROBLEM = "model", "rollouts", "scored", "problem"
_ANY_MODEL = _SAMPLED, _OWN
OPTIONS = (
    _option(
        "model",
        _ANY_MODEL,
        "a hub id, a local folder, or embedded:NAME (base, strong, ...)",
        "M",
        required=True,
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
    _option("scored", (_SCORED,), "a scored pool, .npz, alone", "FILE", Path, required=True),
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
    _option("seed", _ANY_MODEL, "of prompts and rollouts (default: 0)", "S", int),
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
        "out",
        (*_ANY_MODEL, _SCORED),
        "keeps everything here, and goes on from what is there",
        "DIR",
        Path,
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
    _option("clip", (_OWN,), "as PPO does, by the sign of the advantage", "E[,E_HIGH]", _clip),
    _option("truncate", (_OWN,), "as CISPO does, the most that a weight may be", "C", float),
    _option("remax", _ANY_MODEL, "ReMax too: a greedy answer a prompt", action="store_true"),
)
"""Every option that not everything reads: its name, what reads it, and argparse's words for it."""
_COSTS = ("prompt-cost", "output-cost", "population")
_MSE = ("remax", "by-length", "ratio", "clip", "truncate")

_WHY = {
    _SAMPLED: "a model that samples has no use for all of this",
    _OWN: "rollouts of your own are not sampled again",
    _SCORED: "a scored pool serves alone",
    _PROBLEM: "a problem in a file is no language model: name one of the two",
}
"""What may be asked of, and why it takes no other options."""


def source(words: Sequence[str]) -> str:
    """What the words of a command ask of: a key of the table's second column."""
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    if "--scored" in given:
        return _SCORED
    if "--rollouts" in given:
        return _OWN
    return _SAMPLED if given & {"--model", "--prompts"} else _PROBLEM


def refuse_unknown(words: Sequence[str], unknown: Sequence[str]) -> None:
    """Refuse words that a command does not take of what it is asked of.

    Arguments:
        words: of the command.
        unknown: those that its parser left.

    Raises:
        InputError: there is one; options are named.
    """
    flags = [word for word in unknown if word.startswith("--")]
    if flags:
        why = _WHY[source(words)]
        raise InputError(f"{why}: leave out {', '.join(flags)}, which would be ignored")
    if unknown:
        raise InputError(f"{' '.join(unknown)}: {_WHY[_PROBLEM]}")


def _add(command: Any, asked_of: str, names: Collection[str]) -> None:
    """Those options of the table that are read."""
    for name, read_by, settings in OPTIONS:
        if name in names and asked_of in read_by:
            command.add_argument(f"--{name}", **settings)


def advise_arguments(command: argparse.ArgumentParser, asked_of: str) -> None:
    """Those of ``advise``, of what it is asked of alone.

    Arguments:
        command: the parser.
        asked_of: from :func:`source`.
    """
    if asked_of == _PROBLEM:
        command.add_argument(
            "problem", metavar="PROBLEM", help="a .json or .npz file, or ustat:NAME"
        )
    command.add_argument(
        "--budget",
        type=quantity,
        required=True,
        metavar="K",
        help="outputs per step, B prompts times G; with costs, what a step may cost",
    )
    left_out = (*_MSE, "out") if asked_of == _SCORED else _MSE
    _add(command, asked_of, [name for name, *_ in OPTIONS if name not in left_out])
    form = command.add_mutually_exclusive_group()
    _form(form, "json", "one JSON object on stdout")
    _form(form, "csv", "the table of group sizes alone, as CSV")
    command.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the error over the least against G"
    )


def _form(command: Any, name: str, help: str) -> None:
    command.add_argument(f"--{name}", dest="form", action="store_const", const=name, help=help)


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


def mse_arguments(command: argparse.ArgumentParser, asked_of: str) -> None:
    """Those of ``llm mse``, of what it is asked of alone.

    Arguments:
        command: the parser.
        asked_of: from :func:`source`; a problem stands for a model that is not named yet.
    """
    command.add_argument(
        "--group-sizes", type=sizes, metavar="G[,G...]", help="of the table (default: powers of 2)"
    )
    asked_of = _SAMPLED if asked_of == _PROBLEM else asked_of
    _add(command, asked_of, [name for name, *_ in OPTIONS if name not in (*_COSTS, "until")])
    _form(command, "json", "one JSON object on stdout")


def sizes(text: str) -> list[int]:
    """Whole numbers with commas between."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: whole numbers with commas between") from None
