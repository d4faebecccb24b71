"""The figure of Theorem 2 (mse): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.engines import GradientCell
from ustat_pg.predictions import gradient_mse

from ..evidence import Point, mean_of
from ..evidence.figure import Axis, Figure, Panel
from ..problems import Suite, mse_of

MEASURED = (2, 4, 8, 16, 32)
"""The group sizes at which figures show measured points for a minibatch."""


FIGURES = (
    Figure(
        "mse",
        "Gradient error against group size",
        "Mean squared error of the gradient against the group size, on logarithmic axes, without a "
        "baseline, for grpo, the oracle and the minimum-variance baseline: simulated points lie on "
        "the predicted lines, and grpo comes down to the oracle as the group grows.",
        "mse",
        y=Axis("mean squared error", scale="log"),
        lines=("vanilla", "grpo", "minimum-variance", "oracle"),
        by="problem",
        panels=(
            Panel("one prompt, 4 arms", "balanced"),
            Panel("handwritten digits, B = {batch_size:g}", "digits"),
        ),
        names="ends",
        height=2.2,
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """MSE against G for no baseline, grpo, the oracle and the minimum-variance baseline."""
    for entry, batch in suite.shown:
        moments = entry.problem.moments()
        for group_size in suite.curve_sizes:
            cell = GradientCell(entry.problem, group_size, batch)
            at = {"problem": entry.name, "group_size": group_size, "batch_size": batch}
            for estimator in ("vanilla", "grpo", "oracle", "minimum-variance"):
                value = gradient_mse(moments, estimator, group_size, batch).mse
                # Large minibatches are measured at a few sizes; the line covers all sizes.
                measured = batch == 1 or group_size in MEASURED
                drawn = mean_of(cell, mse_of(estimator)) if measured else None
                yield Point("mse", estimator, at, value, drawn)


curves_on_networks = curves
