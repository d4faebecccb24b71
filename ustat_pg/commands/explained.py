"""``ustat-pg explain``: an explanation as text, as JSON and as a picture."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..problems import load_problem
from ..reading import read_json
from ..sampling import SCHEMES
from ..validation import InputError
from . import differences, several_rewards
from .explain import explain
from .explanation import Explanation, as_json, as_text, curve, passed, wrapped
from .plots import new_axes, refuse_plot, save
from .schemes import explain_scheme


def run(options: argparse.Namespace) -> None:
    """Print an explanation, as text or as one JSON object, and draw it if that is asked."""
    if options.reward_rates is not None:
        found = several_rewards.of_options(options)
        lines = found.lines()
        print(json.dumps(asdict(found)) if options.json else "\n".join(map(wrapped, lines)))
        return
    rates = [number for text in options.pass_rate for number in _numbers(text)]
    if options.pass_rates is not None:
        rates += _pass_rates(Path(options.pass_rates), options)
    else:
        _refuse_unread(options, "there is no log to read", "group_by", "reward")
    if len(options.spec) == 1 and options.spec[0] in SCHEMES:
        unread = ("against", "name", "group_size", "problem", "plot")
        _refuse_unread(options, f"{options.spec[0]} is a way of sampling", *unread)
        scheme = explain_scheme(options.spec[0], rates or None)
        lines = scheme.lines(curve(scheme.weight, scheme.pass_rates))
        print(json.dumps(scheme.to_dict()) if options.json else "\n".join(map(wrapped, lines)))
        return
    prompts: dict[str, Any] = {
        "pass_rates": rates or None,
        "moments": None if options.problem is None else load_problem(options.problem).moments(),
    }
    explanation = explain(
        options.spec or None, name=options.name, group_size=options.group_size, **prompts
    )
    if options.against is not None:
        _refuse_unread(options, "--against compares two", "plot")
        other = explain(options.against, **prompts)
        if explanation.meaning is None:
            raise InputError("--against compares options of trainers: write SPEC, not --name")
        if options.json:
            print(json.dumps(differences.as_json(explanation, other), allow_nan=False))
        else:
            lines = differences.lines(explanation, other)
            for one in (explanation.meaning, other.meaning):
                lines += [] if one is None else passed(one)
            print("\n".join(map(wrapped, lines)))
        return
    if options.plot is not None:
        draw(explanation, Path(options.plot))
    if options.json:
        print(json.dumps(as_json(explanation), allow_nan=False))
    else:
        print(as_text(explanation))


def _refuse_unread(options: argparse.Namespace, why: str, *names: str) -> None:
    """Refuse options that are given and that nothing would read."""
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    if given:
        raise InputError(f"{why}: leave out {', '.join(given)}, which would be ignored")


def _pass_rates(path: Path, options: argparse.Namespace) -> list[float]:
    """The pass rates in a JSON list, or of the prompts of a log."""
    if path.suffix == ".json" and isinstance(numbers := read_json(path), list):
        _refuse_unread(options, f"{path} is no log", "group_by", "reward")
        if not numbers:
            raise InputError(f"{path}: it must hold one list of numbers")
        return numbers
    from ..llm.rewards import summarise_rewards

    summary = summarise_rewards(path, group_by=options.group_by, reward=options.reward)
    return [*summary.pass_rates.values()]


def _numbers(text: str) -> list[float]:
    """The numbers of a list with commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"pass rate is {text!r}: it must be a number in [0, 1]") from None


def draw(explanation: Explanation, path: Path) -> None:
    """Draw w over the pass rates into a picture."""
    if explanation.weight is None or explanation.mean_factor is None:
        raise InputError(f"{explanation.name} has no closed form here: there is nothing to draw")
    refuse_plot(path)
    axes = new_axes()
    axes.axhline(1.0, color="0.7", linewidth=1, label="expected reward: w = 1")
    curve = explanation.weight["pass_rate"], explanation.weight["w"]
    axes.plot(*curve, label=f"{explanation.name}, G = {explanation.group_size}")
    axes.plot(explanation.pass_rates, explanation.mean_factor, "o", markersize=4)
    bottom = min(0, *explanation.weight["w"])
    axes.set(xlabel="pass rate p", ylabel="weight w(p)", xlim=(0, 1), ylim=(bottom, None))
    axes.legend(frameon=False)
    save(axes, path)
