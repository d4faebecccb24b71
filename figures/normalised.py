"""Lemma 11: G times the error about g/σ against G, what it tends to, and what estimating σ saves or costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import style
from .picture import Picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "draw"]

NAIVE = "rival: tr Σ/σ²: estimating σ costs nothing"
LINES = {
    "std": style.Line(style.ORANGE, "o"),
    "limit": style.Line("black", "", (1, 1.3)),
    NAIVE: style.Line(style.GREY, "", (3, 1.6)),
}
NAMES = {
    "std": "divided by the group's deviation",
    "limit": "its limit",
    NAIVE: "tr Σ/σ², as if σ were known (rival)",
}
TITLES = {
    "skewed": "pass rate 0.8",
    "balanced": "pass rate 0.3",
    "rare": "rewards .6, .4 and, rarely, 0",
}


def draw(frame: pd.DataFrame) -> Figure:
    """One panel for each problem."""
    problems = list(dict.fromkeys(frame["problem"]))
    figure, axes = style.panels(len(problems), 2.5)
    for letter, axis, problem in zip("abcdef", axes, problems, strict=False):
        own = frame[frame["problem"] == problem]
        style.series(axis, own, "group_size", LINES)
        style.by_size(axis, own["group_size"])
        axis.set_ylim(0, 1.12 * own["prediction"].max())
        axis.set_title(style.mark(letter) + TITLES.get(problem, style.plain(problem)), loc="left")
    axes[0].set_ylabel("G × squared error about g/σ")
    entries = [(NAMES[name], look) for name, look in LINES.items()]
    style.legend(axes[0], entries, loc="outside upper center", ncols=3)
    return figure


PICTURES = (
    Picture(
        "normalised",
        "The error of the normalised estimator against group size",
        "G times the error of the normalised estimator about g/σ, against the group size: it comes to "
        "a level that is the predicted limit, and that lies below the dashed line of tr Σ/σ² with rewards "
        "0 and 1, and far above it with graded rewards of which one is rare; simulated points lie on the "
        "predicted curves.",
        "normalised",
        draw,
    ),
)
