"""The figure of Beyond 6 (turns): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.predictions import turn_mean
from ustat_pg.problems import load_episodes

from ..engines.turns import TurnCell
from ..evidence import Point
from ..evidence.figure import Axis, Figure, Line
from ..problems import Suite
from ..shared.peers import weight_in

STEM = "turns"

SIZE = 4
"""The group size in the figure."""

REACH = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""The probabilities of calling the tool that are simulated; the lines have every fortieth."""

FIGURES = (
    Figure(
        STEM,
        "What a call of the tool is credited with",
        "The mean push towards calling a tool over that of the gradient, against the chance to call it, in "
        "groups of four: level at one for returns-to-go of the other episodes, below one with the own "
        "episode in the mean, and below zero for baselines per turn that are added up; simulated points lie "
        "on the lines.",
        STEM,
        x=Axis("probability of a call of the tool", "reach", limits=(0, 1)),
        y=Axis("mean push towards the call,\nover that of the gradient"),
        lines=(
            Line("to-go", "returns-to-go of\nother episodes", "blue"),
            Line("to-go-mean", "the own episode\nin the mean", "orange"),
            Line("summed", "baselines per turn,\nadded up", "green"),
        ),
        names="ends",
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """The push on the first turn, by scheme and by the probability of reaching the second."""
    tool = load_episodes("ustat:tool")
    for reach in sorted({*REACH, *(n / 40 for n in range(2, 39))}):
        logits = np.concatenate([np.log([1 - reach, reach]), tool.logits[2:]])
        listed = tool.with_logits(logits).episodes
        cell = TurnCell.of(listed, 0, SIZE)
        for scheme in ("to-go", "to-go-mean", "summed"):
            push = turn_mean(listed, scheme, SIZE).by_turn[0] @ listed.gradient()
            value = float(push) / float(cell.problem.gradient() @ listed.gradient())
            measured = weight_in(cell, cell.estimator(scheme)) if reach in REACH else None
            yield Point(STEM, scheme, {"reach": reach}, value, measured)
