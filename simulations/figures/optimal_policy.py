"""The figure of Corollary 10 (optimal_policy): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

from ..evidence import LawShare, Pit, Point
from ..evidence.figure import Axis, Figure, Line, Panel
from ..optimal_policy import runs_on
from ..problems import Suite
from ..shared.runs import GRPO, ORACLE, VANILLA, constant

STEM = "optimal_policy"

LEVELS = (*(k / 32 for k in range(1, 32)), 2000 / 2048, 2030 / 2048)
"""The quantiles of the oracle's law at which figures show cdfs, on the edges of bins."""


FIGURES = (
    Figure(
        "optimal_policy",
        "Laws of the gap with and without the assumption",
        "Cumulative laws of the gap after training, simulated points on predicted lines: under the "
        "matrix form of Assumption 2 oracle and grpo lie above a constant and no baseline; under the "
        "norm form alone the law of a constant crosses the oracle's, and with unequal curvatures it "
        "lies above the oracle's everywhere.",
        STEM,
        x=Axis("gap / the oracle's mean gap", "gap", "log", ticks=(0.001, 0.01, 0.1, 1)),
        y=Axis("share of runs below", limits=(0, 1.02)),
        # The oracle comes first, so that the other lines are visible over it.
        lines=(
            *("oracle", "grpo", "vanilla"),
            *(Line(f"constant={b}", f"b = {b}", "pink") for b in (0.9, 0.2, 0.7)),
        ),
        by="problem",
        panels=(
            Panel("matrix form, G = {group_size:g}", "ordered"),
            Panel("norm form, G = {group_size:g}", "norm only"),
            Panel("norm form, uneven Λ, G = {group_size:g}", "uneven"),
        ),
        names="upper left",
        height=2.4,
    ),
)


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
                # Lines need more points than measured markers.
                share = LawShare(cell, pit, level) if number % 2 else None
                yield Point(STEM, estimator.label, at, float(law.cdf(place)), share)
