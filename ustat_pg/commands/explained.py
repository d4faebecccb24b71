"""The command ``ustat-pg explain``: it prints an explanation as text or JSON, or plots it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..catalogue import catalogue, named, resolve_all
from ..explanations import (
    Differences,
    Explanation,
    RewardGradients,
    SchemeExplanation,
    explain,
    explain_rewards,
    explain_scheme,
)
from ..files.reading import read_json
from ..problems import load_problem
from ..sampling.plans import SCHEMES
from ..validation import InputError, nearest
from .plots import refuse_plot, save

Found = Explanation | Differences | SchemeExplanation | RewardGradients


def run(options: argparse.Namespace) -> None:
    """Print an explanation, as text or as one JSON object, and plot it if requested."""
    found = _asked(options)
    if len(found) > 1:
        _refuse_unread(options, "a script with several trainings", "plot")
    if options.json:
        shown = [each.to_dict() for _, each in found]
        print(json.dumps(shown if len(shown) > 1 else shown[0], allow_nan=False))
        return
    if options.plot is not None and isinstance(
        only := found[0][1], Explanation | SchemeExplanation
    ):
        path = Path(options.plot)
        refuse_plot(path)
        save(only.plot(), path)
    whole = [(place, _text(each, options.all)) for place, each in found]
    print("\n\n".join(f"{place}\n\n{text}" if len(whole) > 1 else text for place, text in whole))


def _text(found: Found, everything: bool) -> str:
    return (
        found.text(all=everything) if isinstance(found, Explanation | Differences) else str(found)
    )


def _asked(options: argparse.Namespace) -> list[tuple[str, Found]]:
    """The explanation of options, of two of them, of a way of sampling, or of several rewards; of a script
    that of each training, with its place.
    """
    size = options.group_size
    _refuse_others(options)
    if options.reward_rates is not None:
        others = ["pass_rate", "pass_rates", "problem", "plot", "against", "reward", "rate"]
        others += ["gradient_norms"]
        if given := [_flag(name) for name in others if getattr(options, name)]:
            raise InputError(
                f"{given[0]} is for one reward and --reward-rates is for several: give one of the two"
            )
        asked = {"group_size": size, "weights": options.weights}
        return [("", explain_rewards(options.reward_rates, options.estimator, **asked))]
    rates = [number for text in options.pass_rate for number in _numbers(text)]
    if options.pass_rates is not None:
        rates += _pass_rates(Path(options.pass_rates), options)
    else:
        _refuse_unread(options, "these options need a log", "group_by", "reward")
    if len(options.estimator) == 1 and options.estimator[0] in SCHEMES:
        unread = ("against", "group_size", "problem", "rate", "gradient_norms")
        _refuse_unread(options, f"{options.estimator[0]} is a way of sampling", *unread)
        return [("", explain_scheme(options.estimator[0], rates or None))]
    norms = options.gradient_norms
    prompts: dict[str, Any] = {
        "pass_rates": rates or None,
        "gradient_norms": None if norms is None else _numbers(norms, "gradient norms are"),
        "moments": None if options.problem is None else load_problem(options.problem).moments(),
    }
    if options.against is None and named(options.estimator) is None:
        meanings = resolve_all(options.estimator, size)
        return [(each.place, explain(each, rate=options.rate, **prompts)) for each in meanings]
    explanation = explain(options.estimator, group_size=size, rate=options.rate, **prompts)
    if options.against is None:
        return [("", explanation)]
    _refuse_unread(options, "--against compares two", "plot", "rate")
    if explanation.meaning is None or named(options.against) is not None:
        raise InputError(
            "--against compares options of trainers, and an estimator's name has no options"
        )
    return [("", Differences(explanation, explain(options.against, **prompts)))]


_SLIP = 0.88
"""The similarity from which on an option counts as a typing error of one of explain's."""


def _refuse_others(options: argparse.Namespace) -> None:
    """Raise an error for options of another command and for typing errors of explain's own, unless the
    trainer may have the same options.
    """
    first = "".join(options.estimator[:1]).partition(" ")[0].partition("==")[0]
    frameworks = [] if named(first) else [*catalogue().frameworks.values()]
    if first in catalogue().names:
        frameworks = [catalogue().names[first]]
    # A program may have options of any name.
    program = not (named(first) or first in catalogue().names or Path(first).exists())
    for word in options.estimator:
        flag = word.partition("=")[0]
        if not flag.startswith("--") or any(each.matching(flag) for each in frameworks):
            continue
        if owner := options.others.get(flag):
            raise InputError(f"explain has no option {flag} (it belongs to {owner}): leave it out")
        if not program and (near := nearest(flag, options.own, cutoff=_SLIP)):
            raise InputError(
                f"explain has no option {flag}: did you mean {near[0]}? If it is an option of your trainer, "
                "put the command in quotes"
            )


def _refuse_unread(options: argparse.Namespace, why: str, *names: str) -> None:
    """Raise an error for given options that nothing would read."""
    given = [_flag(name) for name in names if getattr(options, name)]
    if given:
        raise InputError(f"{why}: leave out {', '.join(given)}, which would be ignored")


def _flag(name: str) -> str:
    """The option as a user types it."""
    return f"--{name.replace('_', '-')}"


def _pass_rates(path: Path, options: argparse.Namespace) -> list[float]:
    """The pass rates in a JSON list, or of the prompts in a log."""
    if path.suffix == ".json" and isinstance(numbers := read_json(path), list):
        _refuse_unread(options, f"{path} is not a log", "group_by", "reward")
        if not numbers:
            raise InputError(f"{path}: it must hold one list of numbers")
        return numbers
    from ..llm.rollouts.rewards import summarise_rewards

    summary = summarise_rewards(path, group_by=options.group_by, reward=options.reward)
    return [*summary.pass_rates.values()]


def _numbers(text: str, what: str = "pass rate is") -> list[float]:
    """The numbers in a list with commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        most = "a number in [0, 1]" if what == "pass rate is" else "numbers with commas between"
        raise InputError(f"{what} {text!r}: it must be {most}") from None
