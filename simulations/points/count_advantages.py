"""What figures draw of the estimators that people run: the weight that they give to a prompt by its pass
rate, and their noise beside grpo's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.engines import Estimator, GradientCell, Projection
from ustat_pg.experiment import Linear, Point
from ustat_pg.predictions import MsePrediction, count_table, gradient_mse

from ..count_advantages import ARCSINE, ORDER, telling, wrong_weights
from ..problems import Suite, mse_of, two_valued

CLIMBERS = ("grpo", "std", "others-std", "maxrl", "pass-at-k:2")
NOISY = ("grpo", "std", "others-std", "maxrl")
RATES = np.arange(1, 50) / 50
MEASURED = (3, 10, 17, 25, 33, 40, 47)
"""Numerators of the pass rates, in fiftieths, at which groups are drawn."""


def curves(suite: Suite) -> Iterator[Point]:
    """Both figures, from problems of their own."""
    for group_size in (4, 16):
        yield from _weights(group_size)
    yield from _noise(suite)


def _weights(group_size: int) -> Iterator[Point]:
    """w(p) of five estimators; what two rivals say; the mean of groups drawn from two arms."""
    for name in CLIMBERS:
        drawn = dict(zip(MEASURED, _along(name, group_size), strict=True))
        for number, (rate, value) in enumerate(
            zip(RATES, count_table(name, group_size).weight(RATES), strict=True), 1
        ):
            at = {"group_size": group_size, "pass_rate": float(rate)}
            yield Point("weights", name, at, float(value), drawn.get(number))
        for rival, line in wrong_weights(RATES, group_size).get(name, {}).items():
            if rival in (ARCSINE, ORDER):
                for rate, value in zip(RATES, line, strict=True):
                    at = {"group_size": group_size, "pass_rate": float(rate)}
                    yield Point("weights", f"rival: {rival}", at, float(value))


def _along(name: str, group_size: int) -> Iterator[Linear]:
    """E ĝ over g along a direction, at one prompt with two arms, of which one is rewarded."""
    for number in MEASURED:
        rate = number / 50
        problem = two_valued([rate, 1 - rate], [1, 0])
        place, unit = telling(problem, problem.gradient()[None])
        error = Projection(Estimator(name), place)
        cell = GradientCell(problem, group_size)
        yield Linear(cell, ((error, 1 / float(problem.gradient() @ unit)),), 1.0)


def _noise(suite: Suite) -> Iterator[Point]:
    """tr Cov over ‖E ĝ‖² in units of grpo's, at a hard prompt and at an easy one."""
    for row in (0, 2):
        prompt = suite.uneven.problem.restrict([row])
        moments = prompt.moments()
        for group_size in (2, 3, 4, 6, 8, 12, 16, 24, 32):
            cell = GradientCell(prompt, group_size)
            unit = _noise_to_signal(gradient_mse(moments, "grpo", group_size))
            at = {"group_size": group_size, "pass_rate": round(float(moments.value[0]), 6)}
            for name in NOISY:
                found = gradient_mse(moments, name, group_size)
                value = _noise_to_signal(found) / unit
                # What is measured is the MSE; the bias and the mean's length are those predicted.
                variance = found.mse - found.squared_bias
                scale = value / variance
                measured = Linear(cell, ((mse_of(name), scale),), -scale * found.squared_bias)
                yield Point("noise", name, at, value, measured)


def _noise_to_signal(found: MsePrediction) -> float:
    """The ratio, of an estimator whose mean is not 0."""
    assert found.noise_to_signal is not None
    return found.noise_to_signal
