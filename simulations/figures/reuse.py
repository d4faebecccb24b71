"""The figure of Beyond 7 (reuse): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.predictions import reuse_bias
from ustat_pg.problems import SoftmaxBandit, reuse_moments

from ..engines import ReusedBatch, StepSlope
from ..evidence import Linear, Point
from ..evidence.figure import RATE_OF_SUCCESS, Axis, Figure, Line
from ..problems import Suite
from .adaptive_groups import RATES, SIMULATED

STEM = "reuse"

SIZES = (2, 4, 8)
"""The group sizes in the figure."""

FIGURES = (
    Figure(
        STEM,
        "What a second pass adds",
        "The bias of a second pass at rate 1 along the gradient, over the gradient's length, against the "
        "pass rate: above zero for hard prompts, where it lengthens the step, and below zero for easy ones, "
        "where it shortens it; smaller in larger groups; simulated points lie on the lines.",
        STEM,
        x=RATE_OF_SUCCESS,
        y=Axis("bias along the gradient, of its length"),
        lines=(
            Line("G = 2", "G = 2", "blue"),
            Line("G = 4", "G = 4", "orange"),
            Line("G = 8", "G = 8", "green"),
        ),
        names="ends",
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """The bias at a prompt of three outputs, the first of which is right."""
    for size in SIZES:
        for p in RATES.tolist():
            problem = SoftmaxBandit.bernoulli([p, (1 - p) / 2, (1 - p) / 2], [1, 0, 0])
            bias = reuse_bias(reuse_moments(problem), size, rate=1.0).along_gradient
            assert bias is not None
            length = float(np.linalg.norm(problem.gradient()))
            drawn = Linear(ReusedBatch(problem, size), ((StepSlope(2, None), 1 / length),))
            shown = drawn if p in SIMULATED else None
            yield Point(STEM, f"G = {size}", {"pass_rate": p}, bias, shown)
