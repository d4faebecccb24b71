"""Beyond the paper: the error of the best leave-one-out table, and whole runs with it, against G."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import style
from .picture import Picture
from .style import ORANGE, PINK, Line

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "draw"]

LOOKS = {
    "grpo": style.BASELINES["grpo"],
    "bayes": Line(PINK, "^", (1, 1), size=3.4),
    "best table": Line(ORANGE, "s", (4, 1.5)),
}
NAMES = {"bayes": "Bayes leave-one-out, Beta(1, 1)"}


def draw(frame: pd.DataFrame) -> Figure:
    """The error over the oracle's; the mean gap of whole runs over the least that grpo can have."""
    figure, (left, right) = style.panels(2, 2.4)
    errors, gaps = (frame[frame["panel"] == name].copy() for name in ("error", "gap"))
    least = gaps.loc[gaps["series"] == "grpo", "prediction"].min()
    gaps[["prediction", "exact", "estimate", "low", "high"]] /= least
    for letter, axis, own, title in (
        ("a", left, errors, "one step, digits"),
        ("b", right, gaps, "whole training runs, diabetes, K = 12"),
    ):
        axis.axhline(1.0, color=style.GREY, lw=0.8, ls="--", zorder=0)
        style.series(axis, own, "group_size", LOOKS)
        sizes = sorted(set(own["group_size"]))
        style.log_axis(axis, "x", sizes)
        axis.set_xlim(sizes[0] / 1.12, sizes[-1] * 1.12)
        axis.set_xlabel("group size G")
        axis.set_title(style.mark(letter) + title, loc="left")
    left.set_ylabel("error / the oracle's")
    right.set_ylabel("mean gap / grpo's least")
    style.decades(right, gaps["prediction"])
    entries = [(NAMES.get(name, name), look) for name, look in LOOKS.items()]
    left.legend(handles=style.handles(entries), loc="upper right", handlelength=3.2)
    return figure


PICTURES = (
    Picture(
        "best_baseline",
        "The leave-one-out table of least error",
        "Two panels against the group size. On the left errors over the oracle's on the digits: grpo "
        "comes down to the oracle's from above, Bayes leave-one-out is at it, and the best table rises "
        "towards it from below. On the right the mean gap after whole training runs at one budget: with "
        "the best table it is least at the smallest group, below the least that grpo reaches in a "
        "larger one.",
        "best_baseline",
        draw,
    ),
)
