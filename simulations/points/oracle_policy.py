"""The limit weights of grpo and of the oracle against G, and the mean gaps of runs."""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.engines import Gap, GradientCell
from ustat_pg.experiment import Linear, Point, mean_of
from ustat_pg.predictions import limit_weights

from ..oracle_policy import OFFSET, STEM, gaps, pairs, runs_at
from ..problems import Suite
from ..shared.runs import GRPO, ORACLE, at_optimum, covariance_of
from ..shared.weights import axes, constants, difference, scale, weight_terms


def curves(suite: Suite) -> Iterator[Point]:
    """The limit weights against G, their difference, and G(G-1) times it, beside mean gaps of runs."""
    for entry in (suite.landscapes["triple"][0], suite.landscapes["quarrel"][0]):
        landscape, constant, c = entry.problem, float(constants(entry)[0]), scale(entry)
        problem, axis = at_optimum(landscape), axes(entry)[:, 0]
        for group_size in (2, 3, 4, 6, 8, 12, 16, 24, 32):
            at = {"problem": entry.name, "group_size": group_size}
            for estimator in (GRPO, ORACLE):
                noise = covariance_of(landscape, estimator.baseline, group_size)
                (weight,) = limit_weights(landscape.curvatures, noise, c)
                terms = tuple(weight_terms(landscape, estimator, axis, c))
                measured = Linear(GradientCell(problem, group_size), terms)
                yield Point(STEM, estimator.baseline, at, float(weight), measured)
            for series, times in (("difference", 1), ("scaled difference", pairs(group_size))):
                measured = difference(entry, group_size, times=times)
                value = constant * times / pairs(group_size)
                yield Point(STEM, series, at, value, measured, enumerate=True)
            if group_size not in (2, 4, 8):
                continue
            runs = runs_at(entry, group_size, 200)
            for series, times in (("runs", 1), ("scaled runs", pairs(group_size))):
                measured = gaps(runs, times)
                yield Point(STEM, series, at, None, measured, enumerate=True)
            for estimator in (GRPO, ORACLE):
                gap = Gap(estimator, 200, 200 + OFFSET)
                measured = mean_of(runs.training, gap)
                yield Point(STEM, f"{estimator.baseline} runs", at, None, measured)
