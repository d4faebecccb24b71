"""The figure of Lemma 1 (ustatistic): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.engines import GradientCell
from ustat_pg.predictions import gradient_mse

from ..evidence import Point, mean_of
from ..evidence.figure import Axis, Figure, Line, Panel
from ..problems import Suite, mse_of
from ..problems.bandits import prompts
from ..ustatistic import SECOND

FIGURES = (
    Figure(
        "ustatistic",
        "The two parts of grpo's error",
        "Two lines fall with the group size on logarithmic axes: the first part of grpo's error, "
        "which is the oracle's error, as 1/G, and the second part faster, as 1/(G(G-1)); their sum "
        "is grpo's error and tends to the first part.",
        "parts",
        y=Axis("mean squared error", scale="log"),
        lines=(
            "grpo",
            Line("first", "first part =\nthe oracle, 1/G", "oracle"),
            Line("second", "second part,\n1/(G(G-1))", "orange"),
        ),
        by="problem",
        panels=(
            Panel("one prompt, 4 arms", "balanced"),
            Panel("one of the handwritten digits", "digits"),
        ),
        names="ends",
        height=2.2,
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """The two parts of grpo's error against G: one part is also the oracle's, the other is not."""
    for entry, _ in suite.shown:
        problem = prompts(entry, 1)[0].problem
        moments = problem.moments()
        for group_size in suite.curve_sizes:
            predicted = gradient_mse(moments, "grpo", group_size)
            cell = GradientCell(problem, group_size)
            at = {"problem": entry.name, "group_size": group_size}
            for part, value, quantity in (
                ("first", predicted.first_order_term, mse_of("oracle")),
                ("second", predicted.second_order_term, SECOND),
                ("grpo", predicted.mse, mse_of("grpo")),
            ):
                yield Point("parts", part, at, value, mean_of(cell, quantity))


curves_on_networks = curves
