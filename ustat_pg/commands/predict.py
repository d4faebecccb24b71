"""The command ``ustat-pg predict``: the exact MSE of a gradient estimator on a problem, and its parts."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..files.reading import read_json
from ..moments.record import Moments
from ..predictions import MsePrediction, best_table, gradient_covariance, gradient_mse
from ..predictions.count_tables import centred, is_binary
from ..problems import SoftmaxBandit, holds_turns, load_problem
from ..registry import parse
from ..validation import InputError


def run(options: argparse.Namespace) -> None:
    """Print a prediction, as rows or as one JSON object."""
    if holds_turns(options.problem):
        print(_over_turns(options))
        return
    problem = load_problem(options.problem)
    rates = _verifier_rates(options)
    if options.plan is not None:
        from .plans import printed_plan

        print(printed_plan(problem, options))
        return
    moments = problem.moments()
    arguments: dict[str, Any] = {
        "estimator": centred(options.estimator or "grpo", moments),
        "group_size": options.group_size,
        "batch_size": options.batch_size,
        "design": options.design,
        "constant": options.constant,
        "critic": None if options.critic is None else numbers_in(options.critic),
    }
    record = parse(arguments["estimator"])[0]
    closed = record.closed_form or (record.by_count and is_binary(moments))
    if not closed and not options.enumerate:
        raise InputError(f"{record.name} has no closed form for these rewards: try --enumerate")
    if not closed:
        if options.covariance:
            raise InputError(f"{record.name} is enumerated here, but its covariance is not")
        prediction = _enumerated(problem, moments, arguments)
    else:
        prediction = gradient_mse(moments, **arguments)
    covariance = gradient_covariance(moments, **arguments) if options.covariance else None
    sizes = options.group_size, options.batch_size
    effect = None
    if rates is not None:
        from ..predictions import verifier_effect

        effect = verifier_effect(moments, *rates, arguments["estimator"], *sizes)
    if options.json:
        found = {} if covariance is None else {"covariance": covariance.tolist()}
        beside = {} if effect is None else {"verifier": effect.to_dict()}
        print(json.dumps(prediction.to_dict() | found | beside))
        return
    print(prediction)
    if effect is not None:
        print(f"\n{effect}")
    if covariance is not None:
        print("covariance")
        for row in covariance:
            print(" ".join(f"{value: .6e}" for value in row))


def _over_turns(options: argparse.Namespace) -> str:
    """Print a comparison of the schemes over turns on a problem with turns."""
    from ..comparison import compare_turns

    for name in ("plan", "estimator", "constant", "critic", "verifier_rates"):
        if getattr(options, name) is not None:
            raise InputError(
                f"{name} is given, but the command compares schemes on a problem with turns"
            )
    frame = compare_turns(options.problem, options.group_size)
    if options.json:
        return json.dumps(frame.astype(object).where(frame.notna(), None).to_dict("records"))
    numbers = frame.drop(columns="climbs").to_string(index=False, na_rep="", float_format="%.4g")
    said = [f"{row.scheme}: it climbs {row.climbs}" for row in frame.itertuples()]
    return "\n".join([numbers, "", *said])


def _enumerated(
    problem: SoftmaxBandit, moments: Moments, arguments: dict[str, Any]
) -> MsePrediction:
    """The record of a closed form, computed by enumeration of every outcome."""
    from ..engines.enumeration import enumerate_mse

    if arguments["constant"] is not None or arguments["critic"] is not None:
        raise InputError("a constant and predicted values belong to estimators with a closed form")
    name, *sizes = (arguments[key] for key in ("estimator", "group_size", "batch_size", "design"))
    if parse(name)[0].name == "best":
        name = best_table(moments, arguments["group_size"]).estimator
    known = gradient_mse(moments, "oracle", *sizes)
    found = vars(enumerate_mse(problem, name, *sizes))
    return replace(known, **{key: value for key, value in found.items() if key != "mean"})


def _verifier_rates(options: argparse.Namespace) -> tuple[float, float] | None:
    """The rates at which a verifier accepts right and wrong answers, if they are given."""
    if (text := options.verifier_rates) is None:
        return None
    unread = {
        "--plan": options.plan is not None,
        "--design": options.design != "iid",
        "--constant": options.constant is not None,
        "--critic": options.critic is not None,
        "--enumerate": options.enumerate,
        "--covariance": options.covariance,
    }
    if given := [name for name, is_given in unread.items() if is_given]:
        raise InputError(f"--verifier-rates does not use {', '.join(given)}: leave it out")
    try:
        right, wrong = map(float, text.split(","))
    except ValueError:
        raise InputError(
            f"--verifier-rates is {text!r}: write the shares of right and of wrong answers that are "
            "accepted, as .95,.05"
        ) from None
    return right, wrong


def numbers_in(path: str) -> Any:
    """A list of numbers from a JSON file.

    Raises:
        InputError: the file cannot be read, or contains something else.
    """
    values = read_json(Path(path))
    if not isinstance(values, list):
        raise InputError(f"{path}: it must hold one list of numbers")
    return values
