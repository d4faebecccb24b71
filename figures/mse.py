"""Theorem 2: mean squared error against G for four baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import style
from .picture import Picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "draw"]

LINES = {name: style.BASELINES[name] for name in ("vanilla", "grpo", "minimum-variance", "oracle")}
NAMES = {
    "vanilla": "vanilla",
    "grpo": "grpo",
    "minimum-variance": "minimum\nvariance",
    "oracle": "oracle",
}
TITLES = {
    "balanced": "one prompt, 4 arms",
    "digits": "handwritten digits",
}


def draw(frame: pd.DataFrame) -> Figure:
    """One panel for each problem."""
    return style.by_problem(frame, LINES, NAMES, TITLES)


PICTURES = (
    Picture(
        "mse",
        "Gradient error against group size",
        "Mean squared error of the gradient against the group size, on logarithmic axes, without a "
        "baseline, for grpo, the oracle and the minimum-variance baseline: simulated points lie on "
        "the predicted lines, and grpo comes down to the oracle as the group grows.",
        "mse",
        draw,
    ),
)
