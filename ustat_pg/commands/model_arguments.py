"""The options of the commands on language models. Nothing heavy is imported here.

An option that is not given is not in the namespace: the function that is called has its default.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..validation import InputError

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}

_SAMPLED, _OWN, _SCORED, _PROBLEM = "model", "rollouts", "scored", "problem"
_WHY = {
    _SAMPLED: "--model without --rollouts takes fewer options",
    _OWN: "rollouts of your own are not sampled again",
    _SCORED: "--scored takes no model",
    _PROBLEM: "a problem file is not a language model: name one of the two",
}
"""Subjects of a command, and why each takes no other options."""
_USAGE = {
    _SAMPLED: "--model M",
    _OWN: "--model M --rollouts FILE",
    _SCORED: "--scored FILE",
    _PROBLEM: "PROBLEM",
}


def source(words: Sequence[str]) -> str:
    """The subject of a command: a model, rollouts, a scored pool or a problem."""
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    if "--scored" in flags:
        return _SCORED
    if "--rollouts" in flags:
        return _OWN
    return _SAMPLED if flags & {"--model", "--prompts"} else _PROBLEM


def refuse_unknown(words: Sequence[str], unknown: Sequence[str]) -> None:
    """Refuse words that a command does not take of its subject.

    Arguments:
        words: of the command.
        unknown: those that its parser left.
    """
    flags = [word for word in unknown if word.startswith("--")]
    if flags:
        why = _WHY[source(words)]
        raise InputError(f"{why}: leave out {', '.join(flags)}, which would be ignored")
    if unknown:
        raise InputError(f"{' '.join(unknown)}: {_WHY[_PROBLEM]}")


def advise_arguments(command: argparse.ArgumentParser, subject: str) -> None:
    """Add the options that ``advise`` takes of its subject, from :func:`source`."""
    command.usage = f"ustat-pg advise {_USAGE[subject]} --budget K [options]"
    if subject == _PROBLEM:
        command.add_argument(
            "problem", metavar="PROBLEM", help="a .json or .npz file, or ustat:NAME"
        )
    add = command.add_argument
    text = "outputs per step, B prompts times G; with costs, the most that a step may cost"
    add("--budget", type=quantity, required=True, metavar="K", help=text)
    if subject != _PROBLEM:
        _subject(command, subject)
    if subject in (_SAMPLED, _OWN):
        add("--out", type=Path, metavar="DIR", help="keep everything here and continue from it")
        add(
            "--until",
            type=_until,
            metavar="all|SHARE",
            help="take more prompts until the advised G costs at most this share over the least error, or "
            "all prompts are used (default: 5%%, if neither --limit nor rollouts set their number)",
        )
    costs = command.add_argument_group("costs").add_argument
    costs("--prompt-cost", type=float, metavar="Q", help="cost of each prompt (default: 0)")
    text = "cost of each output (default: 1 if only --prompt-cost is given)"
    costs("--output-cost", type=float, metavar="R", help=text)
    text = "prompts, of a pool and of a step, are drawn without replacement from N (default: independently)"
    costs("--population", type=int, metavar="N", help=text)
    text = (
        "a trainer's options in use, 'trl scale_rewards=group' or run.yaml, to compare others with"
    )
    add("--estimator", metavar="OPTIONS", help=text)
    form = command.add_mutually_exclusive_group()
    _form(form, "json", "one JSON object on stdout")
    _form(form, "csv", "the table of group sizes alone, as CSV")
    add(
        "--plot", type=Path, metavar="FILE", help="plot the error, relative to the least, against G"
    )
    add("--adaptive", action="store_true", help="compare groups in two stages with fixed ones too")
    costs(
        "--stage-cost",
        type=float,
        metavar="N",
        help="cost of a second stage, in outputs; with --adaptive",
    )


def mse_arguments(command: argparse.ArgumentParser, subject: str) -> None:
    """Add the options that ``llm mse`` takes of its subject; a model where no word names one yet."""
    subject = _SAMPLED if subject == _PROBLEM else subject
    command.usage = f"ustat-pg llm mse {_USAGE[subject]} [options]"
    add = command.add_argument
    add("--group-sizes", type=sizes, metavar="G[,G...]", help="group sizes (default: powers of 2)")
    _subject(command, subject)
    add("--out", type=Path, metavar="DIR", help="keep everything here and continue from it")
    if subject == _OWN:
        text = "weight tokens by the ratio to the older policy that drew them, from log_probs"
        add("--ratio", choices=("none", "token", "prefix", "sequence", "gspo"), help=text)
        add("--clip", type=_clip, metavar="E[,E_HIGH]", help="clip ratios as PPO does")
        add("--truncate", type=float, metavar="C", help="bound ratios as CISPO does")
    _form(command, "json", "one JSON object on stdout")


def _subject(command: argparse.ArgumentParser, subject: str) -> None:
    """Add the options that say which model, prompts and rollouts, and how they are scored."""
    add = command.add_argument
    text = "accept rollouts that another policy seems to have drawn"
    doubt = partial(add, "--off-policy", action="store_true", help=text)
    if subject == _SCORED:
        add(
            "--scored",
            type=Path,
            required=True,
            metavar="FILE",
            help="a scored pool, .npz, without a model",
        )
        doubt()
        return
    text = "smollm2, a .gguf file, a local folder, embedded:NAME (base, strong, ...) or a hub id"
    add("--model", required=True, metavar="M", help=text)
    add(
        "--prompts",
        metavar="P",
        help="gsm8k, math, reasoning-gym:NAME, embedded:NAME, each with options (math:source=FOLDER, "
        "reasoning-gym:chain_sum,max_terms=2), smollm2:ask and other settings, or a .jsonl file; an "
        "embedded model has its own",
    )
    add("--shots", type=int, metavar="K", help="worked examples in each prompt of reasoning-gym")
    add(
        "--verifier",
        metavar="MODULE:FUNCTION",
        help="verifier for a .jsonl file, with TRL's signature",
    )
    add("--limit", type=int, metavar="N", help="take N prompts, drawn by --seed (default: all)")
    add("--seed", type=int, metavar="S", help="seed of prompts and rollouts (default: 0)")
    if subject == _OWN:
        add(
            "--rollouts",
            type=Path,
            metavar="FILE",
            help="your own rollouts, .jsonl, or a trainer's log",
        )
        text = "columns of a log that define a group (default: prompt and step)"
        add("--group-by", nargs="+", metavar="COLUMN", help=text)
        add("--reward", metavar="COLUMN", help="reward column of a log that has several")
    else:
        draw = command.add_argument_group("sampling").add_argument
        draw("--samples", type=int, metavar="N", help="rollouts a prompt (default: 64)")
        draw("--max-new-tokens", type=int, metavar="T", help="longest completion")
        draw("--batch", type=int, metavar="N", help="completions sampled at a time")
    score = command.add_argument_group("model and scores").add_argument
    score("--device", help="cpu, cuda, cuda:N (default: the machine's accelerator)")
    score("--dtype", help="type of the weights: float32, bfloat16 (default: as stored)")
    score("--lora", metavar="FOLDER_OR_RANK", help="an adapter, or a fresh one")
    score("--pad-token", metavar="TOKEN", help="pad token, if the tokenizer has none")
    text = "score only these parameters; may be repeated"
    score("--parameters", action="append", metavar="PATTERN", help=text)
    text = "loop works for every architecture (default: hooks)"
    score("--method", choices=("hooks", "loop"), help=text)
    score("--autocast", action="store_true", help="forward pass in bfloat16")
    text = "memory to use besides the model, such as 1GiB (default: most of the free memory)"
    score("--memory", type=_bytes, metavar="SIZE", help=text)
    doubt()


def _form(command: Any, name: str, help: str) -> None:
    command.add_argument(f"--{name}", dest="form", action="store_const", const=name, help=help)


def add_rewards(commands: Any) -> None:
    """Add the command of rewards without a model."""
    command = commands.add_parser(
        "rewards",
        help="why a loss is 0 or a reward flat, and pass rates, from logged rewards",
        description="Why a loss is 0 or a reward flat, from rewards or a trainer's log: groups of equal "
        "rewards, truncated outputs, a constant part of the reward, nearly equal rewards; nothing if none of "
        "these is found. Pass rates, and the share of groups of equal rewards at each group size.",
    )
    add = command.add_argument
    text = ".json, .jsonl, .csv, .tsv, each as it is or .gz, .parquet, or a folder of them"
    add("file", metavar="FILE", type=Path, help=text)
    text = "go on, and print again whenever the file has grown, until interrupted"
    add("--follow", action="store_true", help=text)
    text = "columns of a log that define a group (default: prompt and step)"
    add("--group-by", nargs="+", default=(), metavar="COLUMN", help=text)
    text = "reward column of a log that has several, or a sum, correct+0.5*format"
    add("--reward", metavar="COLUMN", help=text)
    add("--group-sizes", type=sizes, metavar="G[,G...]", help="group sizes (default: powers of 2)")
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


def sizes(text: str) -> list[int]:
    """Whole numbers with commas between."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: whole numbers with commas between") from None


def _until(text: str) -> str | float:
    if text == "all":
        return text
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share < math.inf or (share > 1 and not text.endswith("%")):
        raise argparse.ArgumentTypeError(
            f"{text!r}: write all, or a positive share such as 5% or 0.05"
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
        size = float(number) * _UNITS[unit if unit.endswith("B") or not unit else f"{unit}B"]
        if not 1 <= size < 2**63:
            raise ValueError
        return int(size)
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write 800MB or 2GiB") from None
