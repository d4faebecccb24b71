"""Proposition 3: B times the error against B in three designs, and what two rivals say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import style
from .picture import Picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "draw"]

LINES = {
    "iid": style.Line(style.BLUE, "o"),
    "without-replacement": style.Line(style.ORANGE, "s", (4, 1.5)),
    "fixed": style.Line(style.GREEN, "D", None, size=6.5, hollow=True),
}
NAMES = {"iid": "i.i.d.", "without-replacement": "without replacement", "fixed": "fixed set"}
RIVALS = {
    "rival: (N-B)/N for (N-B)/(N-1)": style.Line(style.GREY, "", (3, 1.6)),
    "rival: no prompt term": style.Line(style.GREY, "", (1, 1.4)),
}


def draw(frame: pd.DataFrame) -> Figure:
    """One panel."""
    figure, (axis,) = style.panels(1, 2.5)
    for name, look in RIVALS.items():
        rival = frame[frame["series"] == name].sort_values("batch_size")
        if len(rival):
            axis.plot(
                rival["batch_size"],
                rival["prediction"],
                color=look.colour,
                lw=0.9,
                dashes=look.dash,
                zorder=1.5,
            )
    style.series(axis, frame, "batch_size", LINES)
    axis.set_xticks(sorted({1, *range(4, int(frame["batch_size"].max()) + 1, 4)}))
    axis.set(xlabel="prompts in a minibatch, B", ylabel="B × mean squared error")
    low, high = axis.get_ylim()
    axis.set_ylim(low - 0.06 * (high - low), high + 0.02 * (high - low))
    style.legend(
        axis,
        [*((NAMES[n], look) for n, look in LINES.items()), *RIVALS.items()],
        loc="outside upper center",
        ncols=2,
    )
    return figure


PICTURES = (
    Picture(
        "minibatch",
        "Three ways to choose prompts",
        "B times the error against the number of prompts B: level for prompts drawn independently, "
        "falling along a straight line for prompts drawn without replacement, down to the error of "
        "a fixed set where all prompts are used; two wrong formulas, in dashed grey, miss the "
        "simulated points.",
        "designs",
        draw,
    ),
)
