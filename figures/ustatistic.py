"""Lemma 1: the two parts of grpo's error against G, what the oracle has too and what it has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import style
from .picture import Picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "draw"]

LINES = {
    "grpo": style.BASELINES["grpo"],
    "first": style.BASELINES["oracle"],
    "second": style.Line(style.ORANGE, "X", (2.5, 1, 1, 1), size=3.6),
}
NAMES = {
    "grpo": "grpo",
    "first": "first part =\nthe oracle, 1/G",
    "second": "second part,\n1/(G(G-1))",
}
TITLES = {
    "balanced": "one prompt, 4 arms",
    "digits": "one of the handwritten digits",
}


def draw(frame: pd.DataFrame) -> Figure:
    """One panel for each problem."""
    return style.by_problem(frame, LINES, NAMES, TITLES)


PICTURES = (
    Picture(
        "ustatistic",
        "The two parts of grpo's error",
        "Two lines fall with the group size on logarithmic axes: the first part of grpo's error, "
        "which is the oracle's error, as 1/G, and the second part faster, as 1/(G(G-1)); their sum "
        "is grpo's error and tends to the first part.",
        "parts",
        draw,
    ),
)
