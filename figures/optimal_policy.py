"""Corollary 10: the laws of the gap under several baselines, with the assumption and without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from . import style
from .picture import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "draw"]

TITLES = {
    "ordered": "matrix form",
    "norm only": "norm form",
    "uneven": "norm form, uneven Λ",
}
CONSTANT = style.Line(style.PINK, "^", (1, 1), size=3.4)
"""The look of a constant: each panel has one."""


def _looks(names: list[str]) -> dict[str, style.Line]:
    """The oracle first, so that others are seen on it."""
    known = [name for name in ("oracle", "grpo", "vanilla") if name in names]
    looks = {name: style.BASELINES[name] for name in known}
    return looks | {name: CONSTANT for name in names if name.startswith("constant")}


def draw(frame: pd.DataFrame) -> Figure:
    """One cdf for each baseline, one panel for each problem."""
    present = [name for name in TITLES if (frame["problem"] == name).any()]
    figure, axes = style.panels(len(present), 2.4, style.PAGE)
    for letter, axis, problem in zip("abc", axes, present, strict=False):
        own = frame[frame["problem"] == problem]
        looks = _looks(list(dict.fromkeys(own["series"])))
        style.series(axis, own, "gap", looks)
        style.log_axis(axis, "x", [0.001, 0.01, 0.1, 1])
        axis.set_xlim(0.8 * own["gap"].min(), 6)
        axis.set_ylim(0, 1.02)
        axis.set_xlabel("gap / the oracle's mean gap")
        axis.set_ylabel("")
        size = int(own["group_size"].iloc[0])
        axis.set_title(f"{style.mark(letter)}{TITLES[problem]}, G = {size}", loc="left")
        names = [(name.replace("constant=", "b = "), look) for name, look in looks.items()]
        axis.legend(handles=style.handles(names), loc="upper left", handlelength=2.6)
    axes[0].set_ylabel("share of runs below")
    return figure


PICTURES = (
    Picture(
        "optimal_policy",
        "Laws of the gap with and without the assumption",
        "Cumulative laws of the gap after training, simulated points on predicted lines: under the "
        "matrix form of Assumption 2 oracle and grpo lie above a constant and no baseline; under the "
        "norm form alone the law of a constant crosses the oracle's, and with unequal curvatures it "
        "lies above the oracle's everywhere.",
        "optimal_policy",
        draw,
    ),
)
