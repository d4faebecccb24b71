"""The figure of Beyond 5 (survivors): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.predictions import survivor_mse
from ustat_pg.problems import SoftmaxBandit, survivor_moments

from ..engines import SurvivorCell
from ..evidence import Point
from ..evidence.figure import RATE_OF_SUCCESS, Axis, Figure, Line
from ..problems import Suite
from ..shared.peers import weight_in
from ..shared.runs import GRPO
from ..survivors import doubled
from .adaptive_groups import RATES, SIMULATED

STEM = "survivors"

FIGURE_CHANCES = {
    "failures half lost": (1.0, 0.5),
    "all half lost": (0.5, 0.5),
    "successes half lost": (0.5, 1.0),
}
"""The survival probabilities of a success and of a failure in the figure."""


FIGURES = (
    Figure(
        "survivors",
        "What survivors climb",
        "The weight of a prompt's gradient against its pass rate in groups of four: level where half of all "
        "outputs are lost, falling from hard to easy prompts where failures are lost, rising where successes "
        "are; simulated points lie on the lines.",
        STEM,
        x=RATE_OF_SUCCESS,
        y=Axis("weight w(p) of a prompt's gradient", limits=(0, None)),
        lines=(
            Line("failures half lost", "half of the\nfailures lost", "orange"),
            Line("all half lost", "half of\nall lost", "blue"),
            Line("successes half lost", "half of the\nsuccesses lost", "green"),
        ),
        names="ends",
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """The weight of a prompt against its pass rate if survival depends on the reward, for groups of 4."""
    for name, chances in FIGURE_CHANCES.items():
        for p in RATES.tolist():
            problem = SoftmaxBandit.bernoulli([p, 1 - p], [1, 0])
            survival = np.where(problem.reward_values > 0.5, *chances)
            twice, fates = doubled(problem, survival)
            mean = survivor_mse(survivor_moments(problem, survival), 4).mean
            gradient = problem.gradient()
            cell = SurvivorCell(twice, 4, survives=fates)
            drawn = weight_in(cell, GRPO) if p in SIMULATED else None
            weight = float(mean @ gradient) / float(gradient @ gradient)
            yield Point(STEM, name, {"pass_rate": p}, weight, drawn)
