"""The options of the commands on language models; this module imports nothing slow.

The namespace has only the options that are given; the called function has the defaults.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from .parser import Parser, Subject

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}

_SCORED = Subject("--scored FILE", "--scored does not need a model")
_OWN = Subject("--model M --rollouts FILE", "your own rollouts are not sampled again")
_SAMPLED = Subject(
    "--model M",
    "--model does not allow a PROBLEM, and allows options of a log only with --rollouts",
)
_PROBLEM = Subject("PROBLEM", "a problem file is not a language model: give one of the two")
MSE = {"scored": _SCORED, "rollouts": _OWN, "model": _SAMPLED}
"""The subjects of ``llm mse``."""
ADVISE = MSE | {"problem": _PROBLEM}
"""The subjects of ``advise``."""


def advise_arguments(command: Parser) -> None:
    """Add the options of ``advise``."""
    add = command.options(*ADVISE)
    text = "a .json or .npz file, or ustat:NAME"
    command.options("problem")("problem", nargs="?", metavar="PROBLEM", help=text)
    text = "outputs per step, B prompts times G; with costs, the largest cost of a step"
    add("--budget", type=quantity, needed=True, metavar="K", help=text)
    _subject(command)
    models = command.options("model", "rollouts")
    models(
        "--out", type=Path, metavar="DIR", help="folder for all results; a rerun continues from it"
    )
    models(
        "--until",
        type=_until,
        metavar="all|SHARE",
        help="add prompts until the error at the advised G exceeds the least error by at most this share, or "
        "all prompts are used (default: 5%%, if neither --limit nor rollouts fix the number)",
    )
    costs = command.options(*ADVISE, group=command.add_argument_group("costs"))
    costs("--prompt-cost", type=float, metavar="Q", help="cost of each prompt (default: 0)")
    text = "cost of each output (default: 1 if only --prompt-cost is given)"
    costs("--output-cost", type=float, metavar="R", help=text)
    text = "draw the prompts of a pool and of a step without replacement from N (default: independently)"
    costs("--population", type=int, metavar="N", help=text)
    text = "compare with the options that a trainer uses now, 'trl scale_rewards=group' or run.yaml"
    add("--estimator", metavar="OPTIONS", help=text)
    form = command.options(*ADVISE, group=command.add_mutually_exclusive_group())
    _form(form, "json", "one JSON object on stdout")
    _form(form, "csv", "print only the table of group sizes, as CSV")
    text = "plot the error, relative to the least, against G"
    add("--plot", type=Path, metavar="FILE", help=text)
    text = "also say which group size is best with N earlier rewards of each prompt in the baseline"
    add("--remember", type=int, metavar="N", help=text)
    add("--adaptive", action="store_true", help="also compare groups in two stages with fixed ones")
    text = "also compare a law of prompts with the data's, at the advised G"
    add("--draw", action="store_true", help=text)
    text = "write that law as CSV: prompt, probability, weight (with --draw)"
    add("--law", type=Path, metavar="FILE", help=text)
    text = "cost of a second stage, in outputs (with --adaptive)"
    costs("--stage-cost", type=float, metavar="N", help=text)


def mse_arguments(command: Parser) -> None:
    """Add the options of ``llm mse``."""
    add, logs = command.options(*MSE), command.options("rollouts")
    add("--group-sizes", type=sizes, metavar="G[,G...]", help="group sizes (default: powers of 2)")
    _subject(command)
    add("--out", type=Path, metavar="DIR", help="folder for all results; a rerun continues from it")
    text = "weight tokens by the ratio to the older policy that drew them, computed from log_probs"
    logs("--ratio", choices=("none", "token", "prefix", "sequence", "gspo"), help=text)
    logs("--clip", type=_clip, metavar="E[,E_HIGH]", help="clip ratios as PPO does")
    logs("--truncate", type=float, metavar="C", help="bound ratios as CISPO does")
    _form(add, "json", "one JSON object on stdout")


def _subject(command: Parser) -> None:
    """Add the options that choose the model, the prompts, the rollouts and their scores."""
    add, logs = command.options("model", "rollouts"), command.options("rollouts")
    text = "smollm2, a .gguf file, a local folder, embedded:NAME (base, strong, ...) or a hub id"
    add("--model", needed=True, metavar="M", help=text)
    add(
        "--prompts",
        metavar="P",
        help="gsm8k, math, reasoning-gym:NAME, embedded:NAME, each with options "
        "(math:source=FOLDER, reasoning-gym:chain_sum,max_terms=2), smollm2:ask and other "
        "settings, or a .jsonl file (default for an embedded model: its own prompts)",
    )
    add("--shots", type=int, metavar="K", help="worked examples in each prompt of reasoning-gym")
    text = "verifier for a .jsonl file, a function with TRL's signature"
    add("--verifier", metavar="MODULE:FUNCTION", help=text)
    add("--limit", type=int, metavar="N", help="take N prompts, drawn by --seed (default: all)")
    add("--seed", type=int, metavar="S", help="seed of prompts and rollouts (default: 0)")
    text = "your own rollouts (.jsonl), or a trainer's log"
    logs("--rollouts", type=Path, metavar="FILE", help=text)
    text = "columns of a log that define a group (default: prompt and step)"
    logs("--group-by", nargs="+", metavar="COLUMN", help=text)
    logs("--reward", metavar="COLUMN", help="reward column of a log that has several")
    draw = command.options("model", group=command.add_argument_group("sampling"))
    draw("--samples", type=int, metavar="N", help="rollouts per prompt (default: 64)")
    draw("--max-new-tokens", type=int, metavar="T", help="longest completion")
    draw("--batch", type=int, metavar="N", help="number of completions sampled at a time")
    group = command.add_argument_group("model and scores")
    score = command.options("model", "rollouts", group=group)
    score("--device", help="cpu, cuda, cuda:N (default: the machine's accelerator)")
    score("--dtype", help="type of the weights, float32 or bfloat16 (default: the stored type)")
    score("--lora", metavar="FOLDER_OR_RANK", help="a LoRA adapter, or the rank of a new one")
    score("--pad-token", metavar="TOKEN", help="pad token, if the tokenizer has none")
    text = "score only these parameters; may be repeated"
    score("--parameters", action="append", metavar="PATTERN", help=text)
    text = "way to compute scores; loop works for every architecture (default: hooks)"
    score("--method", choices=("hooks", "loop"), help=text)
    score("--autocast", action="store_true", help="forward pass in bfloat16")
    text = "metric of the noise: plain for gradient steps, adam for Adam's, which shows both (default: plain)"
    command.options(*MSE, group=group)("--metric", choices=("plain", "adam", "floored"), help=text)
    text = "state of Adam, a checkpoint's folder, its optimizer.pt or v by name (default: the model's folder)"
    score("--optimizer", type=Path, metavar="FILE", help=text)
    text = "bytes of RAM, or of GPU memory, beside the model, such as 1GiB (default: most that are free)"
    score("--memory", type=_bytes, metavar="SIZE", help=text)
    text = "a scored pool (.npz); no model is needed"
    command.options("scored")("--scored", type=Path, metavar="FILE", help=text)
    text = "accept rollouts even if they seem to come from another policy"
    command.options(*MSE)("--off-policy", action="store_true", help=text)


def _form(add: Any, name: str, help: str) -> None:
    add(f"--{name}", dest="form", action="store_const", const=name, help=help)


def add_rewards(commands: Any) -> None:
    """Add the command ``rewards``, which needs no model."""
    command = commands.add_parser(
        "rewards",
        help="say from logged rewards why a loss is 0 or a reward is flat",
        description="Say from rewards or a trainer's log why a loss is 0 or a reward is flat: "
        "groups of equal rewards, truncated outputs, a constant part of the reward, or nearly "
        "equal rewards; nothing is said if none of these is found. Print pass rates, and the "
        "share of groups of equal rewards at each group size.",
    )
    add = command.add_argument
    text = ".json, .jsonl, .csv, .tsv, each as it is or .gz, .parquet, or a folder of them"
    add("file", metavar="FILE", type=Path, help=text)
    text = "another log: print the difference of the mean rewards, and the gap that both could have shown"
    add("--against", metavar="FILE", type=Path, help=text)
    text = "wait, and print again whenever the file has grown, until interrupted"
    add("--follow", action="store_true", help=text)
    text = "columns of a log that define a group (default: prompt and step)"
    add("--group-by", nargs="+", default=(), metavar="COLUMN", help=text)
    text = "reward column of a log that has several, or a sum, correct+0.5*format"
    add("--reward", metavar="COLUMN", help=text)
    add("--group-sizes", type=sizes, metavar="G[,G...]", help="group sizes (default: powers of 2)")
    text = "ε that your trainer adds to a group's deviation (default: that of each framework)"
    add("--epsilon", type=float, metavar="E", help=text)
    text = "also give a law of prompts by pass rates, and what it saves if scores have equal norms"
    add("--draw", action="store_true", help=text)
    text = "write that law as CSV: prompt, probability, weight (with --draw)"
    add("--law", type=Path, metavar="FILE", help=text)
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object on stdout")
    form.add_argument("--csv", action="store_true", help="print the table of group sizes as CSV")


def quantity(text: str) -> int | float:
    """A number, an int if it is whole: people write budgets as 1024, 1e6 and 0.5."""
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
