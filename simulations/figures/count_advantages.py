"""The figure of Beyond 1 (count_advantages): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.engines import Estimator, GradientCell
from ustat_pg.predictions import MsePrediction, count_table, gradient_mse
from ustat_pg.problems import SoftmaxBandit

from ..count_advantages import ARCSINE, ORDER, wrong_weights
from ..evidence import Linear, Point
from ..evidence.figure import RATE_OF_SUCCESS, Axis, Figure, Line, Panel
from ..problems import Suite, mse_of
from ..shared.peers import telling, weight_in

CLIMBERS = ("grpo", "std", "others-std", "maxrl", "pass-at-k:2")


RATES = np.arange(1, 50) / 50


MEASURED = (3, 10, 17, 25, 33, 40, 47)
"""The pass rates at which groups are drawn, in units of 1/50."""


FIGURES = (
    Figure(
        "count_advantages",
        "What the estimators that people run climb",
        "The weight of a prompt's gradient against its pass rate, at two group sizes, on a logarithmic "
        "axis: level for grpo, raised at both ends where advantages are divided by a deviation, falling "
        "for MaxRL and pass@2; simulated points lie on the lines, and two wrong formulas, in dashed "
        "grey, miss them.",
        "weights",
        x=RATE_OF_SUCCESS,
        y=Axis("weight w(p) of a prompt's gradient", scale="log", limits=(0.035, 17)),
        lines=(
            Line(f"rival: {ARCSINE}", "rival: arcsine", "rival"),
            Line(f"rival: {ORDER}", "rival: MaxRL\nof order G", "second rival"),
            *CLIMBERS,
        ),
        by="group_size",
        panels=(Panel("G = {group_size:g}"),),
        names="ends",
        height=2.9,
    ),
    Figure(
        "count_advantages_noise",
        "Noise beside grpo's",
        "Noise-to-signal ratio over grpo's against the group size, for a hard and for an easy prompt: "
        "all are equal in groups of two; the one divided by the others' deviation first rises above "
        "grpo, the one divided by the group's own falls below it; simulated points lie on the lines.",
        "noise",
        y=Axis("noise-to-signal, over grpo's", ticks=(0, 0.5, 1, 1.5, 2), limits=(0, 2.1)),
        lines=CLIMBERS[:4],
        by="pass_rate",
        panels=(Panel("pass rate {pass_rate:g}"),),
        names="ends",
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    for group_size in (4, 16):
        yield from _weights(group_size)
    yield from _noise(suite)


def _weights(group_size: int) -> Iterator[Point]:
    """w(p) of five estimators and of two rivals, and the mean of groups drawn from two arms."""
    for name in CLIMBERS:
        weights = count_table(name, group_size).weight(RATES)
        for number, (rate, value) in enumerate(zip(RATES, weights, strict=True), 1):
            at = {"group_size": group_size, "pass_rate": float(rate)}
            drawn = _along(name, group_size, float(rate)) if number in MEASURED else None
            yield Point("weights", name, at, float(value), drawn)
        for rival, line in wrong_weights(RATES, group_size).get(name, {}).items():
            if rival in (ARCSINE, ORDER):
                for rate, value in zip(RATES, line, strict=True):
                    at = {"group_size": group_size, "pass_rate": float(rate)}
                    yield Point("weights", f"rival: {rival}", at, float(value))


def _along(name: str, group_size: int, rate: float) -> Linear:
    """E ĝ divided by g along a direction, at one prompt with two arms, one of them rewarded."""
    problem = SoftmaxBandit.bernoulli([rate, 1 - rate], [1, 0])
    place = telling(problem, [problem.gradient()])
    return weight_in(GradientCell(problem, group_size), Estimator(name), place.number)


def _noise(suite: Suite) -> Iterator[Point]:
    """tr Cov / ‖E ĝ‖² in units of grpo's value, at a hard and at an easy prompt."""
    for row in (0, 2):
        prompt = suite.uneven.problem.restrict([row])
        moments = prompt.moments()
        for group_size in (2, 3, 4, 6, 8, 12, 16, 24, 32):
            cell = GradientCell(prompt, group_size)
            unit = _noise_to_signal(gradient_mse(moments, "grpo", group_size))
            at = {"group_size": group_size, "pass_rate": round(float(moments.value[0]), 6)}
            for name in CLIMBERS[:4]:
                error = gradient_mse(moments, name, group_size)
                value = _noise_to_signal(error) / unit
                # The measured quantity is the MSE; the bias and the mean's length are the predicted ones.
                scale = value / (error.mse - error.squared_bias)
                measured = Linear(cell, ((mse_of(name), scale),), -scale * error.squared_bias)
                yield Point("noise", name, at, value, measured)


def _noise_to_signal(error: MsePrediction) -> float:
    """The ratio, for an estimator with a mean other than 0."""
    assert error.noise_to_signal is not None
    return error.noise_to_signal
