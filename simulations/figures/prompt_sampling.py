"""The figure of Beyond 8 (prompt_sampling): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.engines import GradientCell, SquaredError
from ustat_pg.predictions import sampled_error
from ustat_pg.problems import SoftmaxBandit

from ..evidence import Linear, Point
from ..evidence.figure import Axis, Figure, Line
from ..problems import Suite
from ..problems.entry import Entry
from ..prompt_sampling import weighted
from ..shared.runs import GRPO

STEM = "prompt_sampling"

SIZE = 4
"""The group size of the figure."""

RATES = {"pass rate 0.5": 0.5, "pass rate 0.1": 0.1, "pass rate 0.02": 0.02}
"""The pass rate of the first prompt; the second one's is 1/2."""

FIGURES = (
    Figure(
        "prompt_sampling",
        "Which prompts to draw",
        "Outputs times variance over that of the data's law, against how often the first of two prompts is "
        "drawn. With equal pass rates the least is at one half; the lower the first prompt's pass rate, the "
        "further left and the lower the least is. Every curve rises steeply at both ends, and simulated "
        "points lie on the curves.",
        STEM,
        x=Axis("chance of drawing the first prompt", "drawn", limits=(0, 1)),
        y=Axis("outputs × variance over the data's law", limits=(0, 3)),
        lines=(
            Line("pass rate 0.5", "p = 0.5", "blue"),
            Line("pass rate 0.1", "p = 0.1", "orange"),
            Line("pass rate 0.02", "p = 0.02", "green"),
        ),
        names="upper center",
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """The cost against the law, for two prompts of equal weight; the weights leave the gradient unbiased."""
    for name, rate in RATES.items():
        problem = SoftmaxBandit.bernoulli([[rate, 1 - rate], [0.5, 0.5]], [[1, 0], [1, 0]])
        entry = Entry(name, "made-up", problem)
        base = sampled_error(problem, [0.5, 0.5], SIZE).cost
        for drawn in np.linspace(0.04, 0.96, 24).tolist():
            law = np.array([drawn, 1 - drawn])
            cost = sampled_error(problem, law, SIZE).cost / base
            cell = GradientCell(weighted(entry, law).problem, SIZE)
            measured = Linear(cell, ((SquaredError(GRPO), SIZE / base),))
            yield Point(STEM, name, {"drawn": drawn}, cost, measured if cost < 3 else None)
