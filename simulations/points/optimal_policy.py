"""The laws of the gap for several baselines, over the oracle's quantiles."""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.experiment import LawShare, Pit, Point

from ..optimal_policy import STEM, runs_on
from ..problems import Suite
from ..shared.runs import GRPO, ORACLE, VANILLA, constant

LEVELS = (*(k / 32 for k in range(1, 32)), 2000 / 2048, 2030 / 2048)
"""Quantiles of the oracle's law at which cdfs are shown, on the edges of bins."""


def curves(suite: Suite) -> Iterator[Point]:
    """The laws of the gap, as cdfs over the oracle's quantiles, for baselines on three problems."""
    for family, steps, group_size, others in (
        ("ordered", 120, 8, (GRPO, constant(0.9), VANILLA)),
        ("norm only", 40, 2, (constant(0.2),)),
        ("uneven", 1000, 2, (constant(0.7),)),
    ):
        runs = runs_on(family, suite.landscapes[family][0], steps, group_size)
        oracle, cell = runs.law(ORACLE), runs.training
        for estimator in (ORACLE, *others):
            law, pit = runs.law(estimator), Pit(estimator, runs.steps, runs.weights(ORACLE))
            for number, level in enumerate(LEVELS):
                place = float(oracle.ppf(level))
                at = {"problem": runs.entry.name, "group_size": runs.group_size}
                at["gap"] = place / float(oracle.mean())
                # Lines want more points than the eye does.
                share = LawShare(cell, pit, level) if number % 2 else None
                yield Point(STEM, estimator.label, at, float(law.cdf(place)), share)
