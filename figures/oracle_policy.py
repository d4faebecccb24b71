"""Corollary 9: the limit weights of grpo and the oracle, and how their difference falls with G."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import style
from .picture import Picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "draw"]

LINES = {name: style.BASELINES[name] for name in ("grpo", "oracle")}
NAMES = {"triple": "one prompt", "quarrel": "two prompts that disagree"}
LOOKS = {
    "triple": style.Line(style.BLUE, "o"),
    "quarrel": style.Line(style.ORANGE, "s", (4, 1.5)),
}
RUNS = {
    "triple": style.Line(style.BLUE, "^", None, size=5.5, hollow=True),
    "quarrel": style.Line(style.ORANGE, "v", None, size=5.5, hollow=True),
}
TICKS = (2, 4, 8, 16, 32)


def _of(frame: pd.DataFrame, series: str) -> pd.DataFrame:
    """One quantity, with the problem as the series."""
    own = frame[frame["series"] == series].copy()
    own["series"] = own["problem"]
    # Points that know no more than the size of the difference are left out: by their precision, not
    # by where they lie.
    vague = own["high"] - own["low"] > own["prediction"].fillna(own["exact"])
    own.loc[vague, ["estimate", "low", "high"]] = np.nan
    return own


def _points(frame: pd.DataFrame, series: str) -> pd.DataFrame:
    """Points without a line: their exact values lie on one that is drawn already."""
    own = _of(frame, series)
    own["exact"] = np.nan
    return own


def draw(frame: pd.DataFrame) -> Figure:
    """The weights; their difference; G(G-1) times it, with what the rivals would make of that."""
    figure, (left, middle, right) = style.panels(3, 2.3)
    one = frame[
        frame["problem"] == next(name for name in NAMES if (frame["problem"] == name).any())
    ]
    style.series(left, one, "group_size", LINES)
    style.decades(left, one.loc[one["series"].isin(list(LINES)), "prediction"])
    left.set_ylabel("weight of the limit law")
    style.series(middle, _of(frame, "difference"), "group_size", LOOKS)
    style.series(middle, _points(frame, "runs"), "group_size", RUNS)
    known = frame.loc[frame["series"] == "difference", "prediction"]
    style.log_axis(middle, "y", [10.0**k for k in range(-5, 1)])
    middle.set_ylim(known.min() / 2, known.max() * 2)
    middle.set_ylabel("difference of the weights")
    style.series(right, _of(frame, "scaled difference"), "group_size", LOOKS)
    style.series(right, _points(frame, "scaled runs"), "group_size", RUNS)
    constant = float(one.loc[one["series"] == "scaled difference", "prediction"].iloc[0])
    sizes = np.array([2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0])
    own = sizes * (sizes - 1) / 2
    for power in (1, 3):
        right.plot(sizes, constant * own * (2 / sizes) ** power, color=style.GREY, lw=0.8, ls="--")
    right.set_ylim(
        0, 2.2 * float(frame.loc[frame["series"] == "scaled difference", "prediction"].max())
    )
    right.set_ylabel("G (G-1) times the difference")
    right.annotate("order 1", (4.4, 0.9), xycoords=("data", "axes fraction"), color=style.GREY)
    right.annotate("order 3", (17, 0.13), xycoords=("data", "axes fraction"), color=style.GREY)
    titles = ("the two, one prompt", "their difference", "its order in G")
    for letter, axis, title in zip("abc", (left, middle, right), titles, strict=True):
        style.log_axis(axis, "x", TICKS)
        axis.set_xlim(1.8, 36)
        axis.set_xlabel("group size G")
        axis.set_title(style.mark(letter) + title, loc="left")
    style.slope(middle, -2, (0.12, 0.3))
    present = [name for name in NAMES if (frame["problem"] == name).any()]
    entries = [(NAMES[name], LOOKS[name]) for name in present]
    entries += [(f"{NAMES[name]}: whole runs", RUNS[name]) for name in present]
    style.legend(left, entries, loc="outside lower center", ncols=2)
    left.legend(handles=style.handles(LINES.items()), loc="upper right", handlelength=2.8)
    return figure


PICTURES = (
    Picture(
        "oracle_policy",
        "The limit weights of grpo and of the oracle",
        "On the left the limit weights of grpo and of the oracle fall with the group size and come "
        "together; in the middle their difference falls with slope -2 on logarithmic axes, for one "
        "prompt and for two that disagree, measured on gradients and in whole training runs; on the "
        "right G(G-1) times the difference is level, where orders 1 and 3 would leave the panel.",
        "oracle_policy",
        draw,
    ),
)
