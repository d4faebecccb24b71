"""Corollary 4: the price of not knowing the critic, at one prompt and in a minibatch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import style
from .picture import Picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "draw"]

ONE = (
    style.Line(style.BLUE, "o"),
    style.Line(style.ORANGE, "s", (4, 1.5)),
    style.Line(style.PINK, "^", (2.5, 1, 1, 1), size=3.6),
)
MANY = (
    style.Line(style.GREEN, "D", (), 2.6),
    style.Line(style.BROWN, "v", (2, 1), 3.4),
)


def draw(frame: pd.DataFrame) -> Figure:
    """The ratio on the left; its excess over 1, and its order, on the right."""
    from matplotlib.ticker import MultipleLocator

    figure, (left, right) = style.panels(2, 2.55)
    # A file of one problem alone reads as booleans, one of several as words.
    single = frame["one_prompt"].astype(str) == "True"
    lines: dict[str, style.Line] = {}
    for names, looks in (
        (frame.loc[single, "series"].unique(), ONE),
        (frame.loc[~single, "series"].unique(), MANY),
    ):
        lines |= {name: looks[i % len(looks)] for i, name in enumerate(names)}
    sizes = np.sort(frame["group_size"].unique())
    ticks = [size for size in (2, 4, 8, 16, 32, 64) if sizes[0] <= size <= sizes[-1]]
    reference = 1 / (sizes - 1)

    shifted = frame.copy()
    measures = ["prediction", "exact", "estimate", "low", "high"]
    shifted[measures] += 1
    style.series(left, shifted, "group_size", lines)
    left.plot(sizes, 1 + reference, color="black", lw=0.9, dashes=(1, 1.3), zorder=2.2)
    left.axhline(1, color=style.GREY, lw=0.5, zorder=1)
    left.set_ylim(0.92, min(4.0, 1.06 * float(shifted["prediction"].max())))
    left.yaxis.set_major_locator(MultipleLocator(0.5))
    left.set_ylabel("MSE of grpo / MSE of the oracle")

    # Points that know no more than the order of the excess are left out: by their precision, not by
    # where they lie, or only those that came out too large would be seen. A precise one at or below 0
    # contradicts the prediction, and has a place in the left panel alone.
    seen = frame.copy()
    vague = ~(seen["high"] - seen["low"] < 2 * seen["prediction"])
    seen.loc[vague | (seen["estimate"] <= 0), ["estimate", "low", "high"]] = np.nan
    style.series(right, seen, "group_size", lines)
    right.plot(sizes, reference, color="black", lw=0.9, dashes=(1, 1.3), zorder=2.2)
    style.log_axis(right, "y", [10.0**k for k in range(-6, 4)])
    low = min(frame["prediction"].min(), reference[-1])
    high = max(frame["prediction"].max(), 1.0)
    right.set_ylim(low / 1.8, high * 1.8)
    right.set_ylabel("ratio - 1")
    for letter, axis, title in (("a", left, "the ratio"), ("b", right, "its excess over 1")):
        style.log_axis(axis, "x", ticks)
        axis.set_xlim(sizes[0] / 1.15, sizes[-1] * 1.15)
        axis.set_xlabel("group size G")
        axis.set_title(style.mark(letter) + title, loc="left")
    style.slope(right, -1, (0.52, 0.9))
    if (~single).any():
        style.slope(right, -2, (0.12, 0.26))
    entries = [
        (
            f"{name}, {'one prompt' if single[frame['series'] == name].all() else _batch(frame, name)}",
            look,
        )
        for name, look in lines.items()
    ]
    entries.append(("G/(G-1)", style.Line("black", "", (1, 1.3))))
    style.legend(left, entries, loc="outside right center")
    return figure


def _batch(frame: pd.DataFrame, name: str) -> str:
    """How many prompts a minibatch of that series has."""
    return f"B = {frame.loc[frame['series'] == name, 'batch_size'].iloc[0]:g}"


PICTURES = (
    Picture(
        "oracle",
        "grpo against the oracle",
        "On the left the ratio of grpo's error to the oracle's falls to 1 as the group grows, for a "
        "nearly pure-noise reward along G/(G-1); on the right its excess over 1 on logarithmic axes "
        "falls with slope -1 at one prompt and towards slope -2 in a minibatch of different prompts.",
        "ratio",
        draw,
    ),
)
