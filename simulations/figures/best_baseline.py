"""The figure of Beyond 2 (best_baseline): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.engines import GradientCell
from ustat_pg.predictions import best_table, gradient_mse

from ..best_baseline import splits
from ..evidence import Linear, Point
from ..evidence.figure import Axis, Figure, Line, Panel
from ..problems import Suite, mse_of

STEM = "best_baseline"

FIGURES = (
    Figure(
        "best_baseline",
        "The leave-one-out table of least error",
        "Two panels against the group size. On the left errors over the oracle's on the digits: grpo "
        "comes down to the oracle's from above, Bayes leave-one-out is at it, and the best table rises "
        "towards it from below. On the right the mean gap after whole training runs at one budget: with "
        "the best table it is least at the smallest group, below the least that grpo reaches in a "
        "larger one.",
        STEM,
        lines=(
            "grpo",
            Line("bayes", "Bayes leave-one-out, Beta(1, 1)", "bayes:1,1"),
            Line("best table", look="orange"),
        ),
        by="panel",
        panels=(
            Panel(
                "one step, digits",
                "error",
                y=Axis("error / the oracle's"),
                levels=(1,),
                names="upper right",
            ),
            Panel(
                "whole training runs, diabetes, K = 12",
                "gap",
                y=Axis("mean gap / grpo's least", scale="log"),
                levels=(1,),
                over="grpo",
            ),
        ),
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """The error relative to the oracle's against G, and the gap of whole runs against G at one budget."""
    entry = suite.digits
    moments = entry.problem.moments()
    for group_size in (2, 3, 4, 8, 16, 32):
        at = {"panel": "error", "group_size": group_size}
        unit = gradient_mse(moments, "oracle", group_size).mse
        cell = GradientCell(entry.problem, group_size)
        names = {"grpo": "grpo", "bayes": "bayes:1,1"}
        names["best table"] = best_table(moments, group_size).estimator
        for series, name in names.items():
            value = gradient_mse(moments, name, group_size).mse
            measured = Linear(cell, ((mse_of(name), 1 / unit),))
            yield Point(STEM, series, at, value / unit, measured)
    (entry_of_runs,) = suite.landscapes["diabetes"]
    grpo, best = splits(entry_of_runs, 12, 60)
    for series, of_sizes in (("grpo", grpo), ("best table", best)):
        for group_size, split in of_sizes.items():
            at = {"panel": "gap", "group_size": group_size}
            yield Point(STEM, series, at, split.predicted, split.gap)
