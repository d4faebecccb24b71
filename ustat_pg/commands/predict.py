"""``ustat-pg predict``: the exact MSE of a gradient estimator on a problem, and what it is made of."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..baselines import parse
from ..moments import Moments
from ..predictions import MsePrediction, best_table, gradient_covariance, gradient_mse
from ..predictions.count_tables import is_binary
from ..predictions.mse import prompt_factor
from ..problems import SoftmaxBandit, load_problem
from ..reading import read_json
from ..validation import InputError

if TYPE_CHECKING:
    from ..engines import Estimator, GradientCell

Array = NDArray[np.float64]


def run(options: argparse.Namespace) -> None:
    """Print a prediction, as rows or as one JSON object."""
    problem = load_problem(options.problem)
    if options.plan is not None:
        from .plans import printed_plan

        print(printed_plan(problem, options))
        return
    moments = problem.moments()
    arguments: dict[str, Any] = {
        "baseline": centred(options.baseline or "grpo", moments),
        "group_size": options.group_size,
        "batch_size": options.batch_size,
        "design": options.design,
        "constant": options.constant,
        "critic": None if options.critic is None else numbers_in(options.critic),
    }
    record = parse(arguments["baseline"])[0]
    closed = record.closed_form or (record.by_count and is_binary(moments))
    if not closed and not options.enumerate:
        raise InputError(f"{record.name} has no closed form for these rewards: try --enumerate")
    if not closed:
        if options.covariance:
            raise InputError(f"{record.name} is enumerated here: its covariance is not")
        prediction = enumerated_mse(problem, **arguments)
    else:
        prediction = gradient_mse(moments, **arguments)
    covariance = gradient_covariance(moments, **arguments) if options.covariance else None
    if options.json:
        found = {} if covariance is None else {"covariance": covariance.tolist()}
        print(json.dumps(prediction.to_dict() | found))
        return
    print(prediction)
    if covariance is not None:
        print("covariance")
        for row in covariance:
            print(" ".join(f"{value: .6e}" for value in row))


def centred(name: str, moments: Moments) -> str:
    """The baseline's name, with the problem's mean reward where shrinkage is given no centre."""
    if isinstance(name, str) and re.fullmatch("shrinkage:[^,]+", name):
        return f"{name},{float(moments.context_probs @ moments.value)!r}"
    return name


def enumerated_mse(
    problem: SoftmaxBandit,
    baseline: str,
    group_size: int,
    batch_size: int = 1,
    design: str = "iid",
    constant: float | None = None,
    critic: Any = None,
) -> MsePrediction:
    """The record of :func:`~ustat_pg.predictions.gradient_mse` with every outcome enumerated.

    The factor of a prompt is ⟨E ĝ, g⟩/‖g‖² there: an estimator may turn the gradient as well.

    Arguments:
        problem: what the policy is trained on.
        baseline: any that the engines run, and best.
        group_size, batch_size, design: as there.
        constant, critic: refused: the baselines that take them have closed forms.

    Raises:
        InputError: any of these is not as said, or there are too many outcomes.

    >>> from ustat_pg.problems import random_problem
    >>> enumerated_mse(random_problem(0), "norm-weighted", 3).squared_bias
    0.0
    """
    from ..engines import Estimator, GradientCell, SquaredError

    moments = problem.moments()
    known = gradient_mse(moments, "oracle", group_size, batch_size, design)
    if constant is not None or critic is not None:
        raise InputError("a constant and predicted values belong to baselines with a closed form")
    if parse(baseline)[0].name == "best":
        baseline = best_table(moments, group_size).spec
    estimator = Estimator(baseline)
    # One prompt is enough where they are independent: B of them have a B-th of its variance.
    together = 1 if design == "iid" else batch_size
    cell = GradientCell(problem, group_size, together, design)
    mse = float(cell.measure("exact", [SquaredError(estimator)]).mean[0])
    one_known = _given_one_output(GradientCell(problem, group_size), estimator)
    policy, probs = problem.policy, moments.context_probs
    means = np.zeros((len(probs), problem.d))
    factors, first = np.ones(len(probs)), 0.0
    for x in map(int, np.flatnonzero(probs > 0)):
        chances, given = one_known[x]
        means[x] = policy.combine(x, given.sum(axis=0) / probs[x])
        likely = chances > 0
        off = policy.combine(x, given[likely] / chances[likely, None]) - means[x]
        first += group_size * float(chances[likely] @ (off**2).sum(axis=1))
        gradient = policy.combine(x, policy.probs[x] * problem.mean_rewards[x])
        if moments.gradient_sq[x] > 0:
            factors[x] = means[x] @ gradient / moments.gradient_sq[x]
    mean, target = probs @ means, problem.gradient()
    square, length = float(mean @ mean), float(target @ target)
    bias = float(np.sum((mean - target) ** 2))
    if bias <= _ROUNDING * max(square, length):
        bias = 0.0
    variance = (mse - bias) * together / batch_size
    spread = float(probs @ (means**2).sum(axis=1)) - square
    prompt_term = prompt_factor(moments, batch_size, design) * max(spread, 0.0)
    first /= batch_size
    second = variance - prompt_term - first
    return replace(
        known,
        mse=variance + bias,
        prompt_term=prompt_term,
        first_order_term=first,
        # Below this share of the whole it is what rounding leaves of 0.
        second_order_term=second if second > 1e-12 * mse else 0.0,
        squared_bias=bias,
        mean_factor=factors,
        noise_to_signal=variance / square if square > 0 else None,
        cosine=float(mean @ target) / (square * length) ** 0.5 if square * length > 0 else None,
    )


def _given_one_output(cell: GradientCell, estimator: Estimator) -> list[tuple[Array, Array]]:
    """What each score is weighted with where one output of the group is known, context by context.

    Returns:
        P(x, o), (O,), and E[Σᵢ Aᵢ 1{arm i = k}/G; x, o], (O, K), for the outputs o of context x: arms,
        each with its reward. The known one may stand at any place of the group.
    """
    from ..engines.gradients.exact import minibatches

    problem, size, arms = cell.problem, cell.group_size, cell.problem.arms
    values = np.unique(problem.outcomes.rewards)

    def keys(arms: Any, rewards: Array) -> Any:
        return arms * len(values) + np.searchsorted(values, rewards)

    known = [
        np.unique(keys(problem.outcomes.arms[x, :count], problem.outcomes.rewards[x, :count]))
        for x, count in enumerate(problem.outcomes.counts)
    ]
    result = [(np.zeros(len(outputs)), np.zeros((len(outputs), arms))) for outputs in known]
    for draws, chance in minibatches(cell):
        x, own = draws.contexts[0, 0], draws.arms[:, 0]
        chances, given = result[x]
        outputs = np.searchsorted(known[x], keys(own, draws.rewards[:, 0]))
        pairs = outputs[:, :, None] * arms + own[:, None]
        weights = chance[:, None] * estimator.advantages(problem, draws)[:, 0] / size**2
        weights = np.broadcast_to(weights[:, None], pairs.shape)
        given += np.bincount(pairs.ravel(), weights.ravel(), given.size).reshape(given.shape)
        shares = np.repeat(chance / size, size)
        chances += np.bincount(outputs.ravel(), shares, len(chances))
    return result


_ROUNDING = 1e-24
"""A squared bias below this share of the squared gradient is what rounding leaves of 0."""


def numbers_in(path: str) -> Any:
    """A list from a JSON file.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    values = read_json(Path(path))
    if not isinstance(values, list):
        raise InputError(f"{path}: it must hold one list of numbers")
    return values
