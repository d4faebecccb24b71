"""The command ``ustat-pg predict --plan``: what a plan of sampling climbs, its noise, and its outputs."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..display.shown import rows
from ..engines import GroupSize, PlanCell, enumerate_mse, of_plan
from ..predictions import plan_mse
from ..predictions.adaptive import ROWS, unbiased_plan
from ..problems import SoftmaxBandit
from ..sampling.plans import SCHEMES, Plan
from ..validation import InputError


def printed_plan(problem: SoftmaxBandit, options: argparse.Namespace) -> str:
    """Print a prediction under a plan, and the unbiased estimator, as rows or as one JSON object."""
    plan, scheme = Plan.parse(options.plan).text, SCHEMES.get(options.plan)
    if options.design != "iid" or options.covariance:
        raise InputError("a plan takes independent prompts: leave out --design and --covariance")
    name = options.estimator or (scheme.estimator if scheme else "sequential")
    if options.enumerate:
        values = _enumerated(problem, plan, name, options.batch_size)
        return json.dumps(values) if options.json else rows(values, ROWS)
    prediction = plan_mse(problem, plan, name, options.batch_size)
    unbiased = unbiased_plan(problem, plan, options.batch_size)
    if options.json:
        beside = None if unbiased is None else unbiased.to_dict()
        return json.dumps(prediction.to_dict() | {"sequential": beside})
    if name == "sequential" or unbiased is None or unbiased.critical_budget is None:
        return str(prediction)
    text = "the same for the unbiased estimator"
    return f"{prediction}\n{text:42} {unbiased.critical_budget:.6g}"


def _enumerated(problem: SoftmaxBandit, plan: str, name: str, batch_size: int) -> dict[str, Any]:
    """The error and size, by enumeration of every group in the drawn order, also for graded rewards."""
    cell = PlanCell.of(problem, plan)
    (size,) = cell.measure("exact", [GroupSize()]).mean
    found = enumerate_mse(problem, cell.weighed(of_plan(name)), cell.group_size)
    bias = found.squared_bias
    return {
        "plan": plan,
        "estimator": name,
        "expected_size": float(size),
        "mse": (found.mse - bias) / batch_size + bias,
        "squared_bias": bias,
    }
