"""Theorem 7: the gap after training against G, at equal budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import style
from .picture import Picture
from .style import BLUE, GREEN, ORANGE, PINK, RED, Line

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "draw"]

PANELS = {
    "universal": "one direction",
    "epochs": "24 prompts, K = 24",
    "c": "two directions, K = 48",
}
LOOKS = {
    "universal": (
        Line(BLUE, "o"),
        Line(ORANGE, "s", (4, 1.5)),
        Line(GREEN, "D", (1, 1), size=2.4),
        Line(PINK, "^", (4, 1.2, 1, 1.2)),
    ),
    "epochs": (Line(BLUE, "o"), Line(RED, "v", (4, 1.5))),
    "c": (Line(BLUE, "o"), Line(RED, "v", (4, 1.5))),
}
NAMES = {"epochs": "reshuffled epochs", "i.i.d.": "i.i.d. prompts"}


def draw(frame: pd.DataFrame) -> Figure:
    """One panel each for universality, epochs and c; the band is within 5% of the best."""
    panels = [name for name in PANELS if (frame["panel"] == name).any()]
    figure, axes = style.panels(len(panels), 2.5)
    for letter, axis, panel in zip("abc", axes, panels, strict=False):
        own = frame[frame["panel"] == panel]
        lines = dict(zip(dict.fromkeys(own["series"]), LOOKS[panel], strict=False))
        axis.axhspan(1.0, 1.05, color="0.9", lw=0, zorder=0)
        style.series(axis, own, "group_size", lines)
        style.log_axis(axis, "x", [2, 3, 4, 6, 8, 12])
        axis.set_xlim(1.85, 13)
        top = float(own["prediction"].max())
        # Room for the legend above the curves.
        axis.set_ylim(
            min(0.95, 0.93 * float(own["prediction"].min())),
            1.0 + (1.25 + 0.15 * len(lines)) * (top - 1.0),
        )
        axis.set(xlabel="group size G", ylabel="")
        axis.set_title(style.mark(letter) + PANELS[panel], loc="left")
        names = [(str(NAMES.get(name, name)), look) for name, look in lines.items()]
        axis.legend(handles=style.handles(names), loc="upper center", handlelength=2.8)
    axes[0].set_ylabel("mean gap / least predicted")
    return figure


PICTURES = (
    Picture(
        "group_size",
        "The group size at a budget",
        "Mean suboptimality gap after training against the group size at equal budgets, in three "
        "panels: simulated points of several budgets, schedules and lengths fall on one curve, least "
        "at 3 or 4; under reshuffled epochs the largest group is best; with two directions the "
        "order of small and large groups depends on c.",
        "group_size",
        draw,
    ),
)
