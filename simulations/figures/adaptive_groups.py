"""The figure of Beyond 4 (adaptive_groups): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.engines import PlanCell, of_plan
from ustat_pg.predictions import plan_weight
from ustat_pg.problems import SoftmaxBandit

from ..adaptive_groups import TWO_STAGES
from ..evidence import Point
from ..evidence.figure import RATE_OF_SUCCESS, Axis, Figure, Line
from ..problems import Suite
from ..shared.peers import weight_in

STEM = "adaptive_groups"

RATES, SIMULATED = np.arange(2, 99) / 100, np.arange(1, 10) / 10
"""The pass rates in the figure, and those that are simulated."""


PUBLISHED = {
    "drawn again if silent": ("8, retry silent", "std"),
    "Pilot-Commit": ("16+48 if 0.125..0.75, drop early", "std"),
    "Reinforce-Ada": ("8,16,24,32 until 2 successes and 2 failures", "balanced:4"),
    "RLOO, 3+2 if mixed": (TWO_STAGES, "grpo"),
    "sequential, 3+2 if mixed": (TWO_STAGES, "sequential"),
}
"""The schemes in the figure, each with its plan and estimator."""


FIGURES = (
    Figure(
        "adaptive_groups",
        "What groups sized by their rewards climb",
        "The weight of a prompt's gradient against its pass rate, on a logarithmic axis: level at 1 for the "
        "sequential estimator; for leave-one-out over what two stages drew highest at one half, .825, and "
        ".62 at the ends; rising towards both ends for two published schemes, and falling for a third.",
        STEM,
        x=RATE_OF_SUCCESS,
        y=Axis("weight w(p) of a prompt's gradient", scale="log"),
        lines=(
            Line("sequential, 3+2 if mixed", "unbiased,\n3+2 if mixed", "blue"),
            Line("RLOO, 3+2 if mixed", "RLOO of\nwhat was drawn", "orange"),
            Line("drawn again if silent", "8, drawn again\nif silent", "green"),
            Line("Pilot-Commit", look="pink"),
            Line("Reinforce-Ada", look="red"),
        ),
        names="ends",
        height=3.2,
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """w against the pass rate: published schemes are relative to their value at 1/2, one plan is not."""
    for name, (words, estimator) in PUBLISHED.items():
        middle = 1.0 if words == TWO_STAGES else plan_weight(words, estimator, [0.5])[0]
        for p, w in zip(RATES, plan_weight(words, estimator, RATES) / middle, strict=True):
            drawn = None
            if words == TWO_STAGES and p in SIMULATED:
                cell = PlanCell.of(SoftmaxBandit.bernoulli([p, 1 - p], [1, 0]), words)
                drawn = weight_in(cell, of_plan(estimator))
            yield Point(STEM, name, {"pass_rate": float(p)}, float(w), drawn)
