"""Lemma 6: the mean gap against T and its bound, and how far the bound is above it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simulations.evidence.figure import Figure

from . import style
from .style import LOOKS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

GAPS = {
    "constant: gap": replace(LOOKS["blue"], dash=None),
    "decay: gap": replace(LOOKS["orange"], dash=None),
}
BOUNDS = {
    "constant: bound": replace(LOOKS["blue"], marker=""),
    "decay: bound": replace(LOOKS["orange"], marker=""),
}
LEGEND = (
    ("bound, constant rate", BOUNDS["constant: bound"]),
    ("gap, constant rate", GAPS["constant: gap"]),
    ("bound, $c/(t + t_0)$", BOUNDS["decay: bound"]),
    ("gap, $c/(t + t_0)$", GAPS["decay: gap"]),
)
MEASURES = ("prediction", "estimate", "low", "high")
TITLES = {"bowl": "a quadratic return", "slopes": "three prompts, binary rewards"}


def draw(frame: pd.DataFrame) -> Drawing:
    """A column for each problem: gap and bound above, their ratio below."""
    import matplotlib.pyplot as plt

    problems = list(dict.fromkeys(frame["problem"]))
    frame = frame.assign(**{name: 1000 * frame[name] for name in MEASURES})
    figure, axes = plt.subplots(
        2,
        len(problems),
        figsize=style.size_of(style.PAGE if len(problems) > 1 else style.COLUMN, 3.5),
        sharex="col",
        squeeze=False,
        height_ratios=[2.4, 1],
    )
    for (letter, problem), upper, lower in zip(
        zip("abcdef", problems, strict=False), *axes, strict=True
    ):
        points = frame[frame["problem"] == problem]
        bounds = points["series"].isin(list(BOUNDS))
        for name, look in (BOUNDS | GAPS).items():
            rows = points[points["series"] == name].sort_values("step")
            if name in BOUNDS:
                upper.plot(rows["step"], rows["prediction"], **style.stroke(look))
            else:
                style.measured(upper, rows["step"], rows[rows["estimate"].notna()], look)
        style.log_axis(lower, "x", [1, 10, 100, 1000])
        style.log_axis(lower, "y", [1, 2, 5, 10, 20, 50])
        _ratios(lower, points)
        # The linear theory's prediction of the gap is not drawn: the bound holds without it.
        style.decades(upper, points["prediction"].where(bounds, points["estimate"]))
        upper.set(xlabel="", ylabel="")
        lower.set_xlabel("steps T")
        title = style.plain(TITLES.get(problem, str(problem)))
        upper.set_title((style.mark(letter) if len(problems) > 1 else "") + title, loc="left")
    # Ratios are compared between the problems, gaps are not.
    top = max(axis.get_ylim()[1] for axis in axes[1])
    for axis in axes[1]:
        axis.set_ylim(0.85, top)
    style.slope(axes[0, 0], -1, (0.42, 0.3))
    axes[0, 0].set_ylabel("1000 × mean gap")
    axes[1, 0].set_ylabel("bound / gap")
    handles = style.handles(LEGEND)
    figure.legend(handles=handles, loc="outside upper center", ncols=4, handlelength=2.6)
    return figure


def _ratios(axis: Axes, frame: pd.DataFrame) -> None:
    axis.axhline(1, color=style.GREY, lw=0.6, zorder=1)
    for (gap, look), bound in zip(GAPS.items(), BOUNDS, strict=True):
        drawn = frame[(frame["series"] == gap) & frame["estimate"].notna()].set_index("step")
        above = frame[frame["series"] == bound].set_index("step")["prediction"]
        above = above.reindex(drawn.index)
        ratio = above / drawn["estimate"]
        # An interval that reaches 0 has no upper end here.
        top = np.where(drawn["low"] > 0, above / drawn["low"].where(drawn["low"] > 0), ratio)
        axis.vlines(
            drawn.index, above / drawn["high"], top, look.colour, lw=style.thick(0.8), zorder=2.5
        )
        axis.plot(drawn.index, ratio, ls="none", zorder=3, **style.point(look))


FIGURES = (
    Figure(
        "suboptimality",
        "The mean gap and its bound",
        "Mean suboptimality gap against the number of steps, on logarithmic axes: under a constant "
        "rate it falls to a floor, under c/(t + t0) on like 1/T. On a quadratic return the bound "
        "is close to the simulated points; on another problem it lies some times above them, and the "
        "ratio of bound to gap below shows how many.",
        "suboptimality",
        draw=draw,
        counted=False,
    ),
)
