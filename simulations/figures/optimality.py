"""The figure of Corollary 5 (optimality): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.engines import GradientCell
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import SoftmaxBandit

from ..evidence import Point, Ratio, mean_of
from ..evidence.figure import Axis, Figure, Panel
from ..problems import Suite, mse_of

FIGURES = (
    Figure(
        "optimality_map",
        "The map of Assumption 2",
        "Mean squared error of five baselines against the correlation of the squared score norm and "
        "the reward: the oracle has the least error of all only where the correlation is 0, touches "
        "the minimum-variance baseline there, and exceeds it on both sides.",
        "map",
        x=Axis(
            "correlation of squared score norm and reward",
            "correlation",
            ticks=(-1, -0.5, 0, 0.5, 1),
            limits=(-1.04, 1.04),
        ),
        y=Axis("mean squared error at G = 8", limits=(0, None)),
        lines=("vanilla", "grpo", "norm-weighted", "oracle", "minimum-variance"),
        panels=(Panel(uprights=(0,), notes=(("Assumption 2", 0.04, 0.02),)),),
        names="outside upper center",
        height=2.75,
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """The region in (pass rate, G) where grpo is better than no baseline, and the map of Assumption 2."""
    yield from _frontier()
    yield from _map()


def _frontier() -> Iterator[Point]:
    """MSE_grpo / MSE_vanilla for 64 equal arms, some of them rewarded; every third point is measured."""
    arms = 64
    group_sizes = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
    rewarded = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 19, 22, 26, 30, 36, 42, 48, 54, 60)
    for i, count in enumerate(rewarded):
        problem = SoftmaxBandit.bernoulli([1 / arms] * arms, [1] * count + [0] * (arms - count))
        moments = problem.moments()
        for j, group_size in enumerate(group_sizes):
            prediction = gradient_mse(moments, "grpo", group_size)
            functional = None
            if i % 3 == 0 and j % 3 == 0:
                cell = GradientCell(problem, group_size)
                functional = Ratio(
                    mean_of(cell, mse_of("grpo")),
                    mean_of(cell, mse_of("vanilla")),
                    prediction.vanilla_mse,
                )
            at = {"pass_rate": count / arms, "group_size": group_size}
            yield Point(
                "frontier", "ratio", at, prediction.mse / prediction.vanilla_mse, functional
            )


def _map() -> Iterator[Point]:
    """MSE against the correlation ρ of ‖s‖² and reward: two norms, with success chances (1 ∓ ρ)/2."""
    group_size = 8
    for correlation in np.linspace(-1, 1, 21).round(2).tolist():
        chances = [(1 - correlation) / 2, *[(1 + correlation) / 2] * 4]
        problem = SoftmaxBandit.bernoulli([0.5, 0.125, 0.125, 0.125, 0.125], chances)
        moments, cell = problem.moments(), GradientCell(problem, group_size)
        at = {"correlation": correlation, "group_size": group_size}
        for estimator in ("vanilla", "grpo", "oracle", "minimum-variance"):
            value = gradient_mse(moments, estimator, group_size).mse
            yield Point("map", estimator, at, value, mean_of(cell, mse_of(estimator)), True)
        # It has no closed form; its curve is enumerated.
        functional = mean_of(cell, mse_of("norm-weighted"))
        yield Point("map", "norm-weighted", at, None, functional, True)
