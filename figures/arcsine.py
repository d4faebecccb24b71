"""Proposition 13: where training with the group's deviation ends, and what KL penalties take off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import style
from .picture import Picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "draw"]

RIVALS = {
    "rival: the expected reward is climbed": ("expected reward\n(rival)", (3, 1.6)),
    "rival: the arcsine is climbed at finite G": ("arcsine (rival),\nthe limit", (1, 1.4)),
}
ENDS = {"std": style.Line(style.ORANGE, "o")}
PENALTIES = {
    "k1 in the loss": style.Line(style.RED, "s", (4, 1.2, 1, 1.2)),
    "k2 in the loss": style.Line(style.BLUE, "o"),
    "k3 in the loss": style.Line(style.ORANGE, "D", (4, 1.5), 2.6),
    "k3 in the reward": style.Line(style.PINK, "^", (1, 1), 3.4),
}
NAMES = {
    "k1 in the loss": "k1 in the loss: 0",
    "k2 in the loss": "k2: KL(π‖ref)",
    "k3 in the loss": "k3: KL(ref‖π)",
    "k3 in the reward": "k3 in the reward",
}


def draw(frame: pd.DataFrame) -> Figure:
    """The end of runs against G; what a penalty of one token descends against how far it has turned."""
    figure, (left, right) = style.panels(2, 2.5)
    ends, taken = (frame[frame["panel"] == name] for name in ("ends", "penalties"))
    labels: list[tuple[float, str, tuple[style.Line, ...]]] = []
    for name, (text, dash) in RIVALS.items():
        look, rival = style.Line(style.GREY, "", dash), ends[ends["series"] == name]
        left.plot(
            rival["group_size"], rival["prediction"], lw=0.9, zorder=1.5, **style.stroke(look)
        )
        labels.append((float(rival["prediction"].iloc[-1]), text, (look,)))
    style.series(left, ends, "group_size", ENDS)
    own = ends[ends["series"] == "std"].sort_values("group_size")
    sizes = own["group_size"]
    style.log_axis(left, "x", list(sizes))
    left.set(xlim=(sizes.min() / 1.15, sizes.max() * 1.15), xlabel="group size G")
    left.set_ylabel("parameter after training")
    left.set_title(style.mark("a") + "whole runs, divided by std", loc="left")
    labels.append(
        (
            float(own["prediction"].iloc[-1]),
            "simulated, on the\nBernstein optimum",
            tuple(ENDS.values()),
        )
    )
    style.label_ends(left, labels)
    right.axhline(0, color=style.GREY, lw=0.6, zorder=0)
    style.series(right, taken, "amount", PENALTIES)
    right.set(xlim=(0.2, 2.85), xlabel="how far one token's logit has turned")
    right.set_ylabel("penalty, by its gradient")
    right.set_title(style.mark("b") + "KL penalties, one token", loc="left")
    style.label_ends(right, style.ends(taken.sort_values("amount"), PENALTIES, NAMES))
    return figure


PICTURES = (
    Picture(
        "arcsine",
        "Where normalised training ends, and which KL is taken off",
        "On the left the parameter at which whole training runs end, against the group size: it starts "
        "at the level of the expected reward's optimum and climbs towards that of the arcsine; simulated "
        "points lie on the predicted curve. On the right what four KL penalties take off, against how "
        "far the policy has turned from its reference: k1 in the loss takes off nothing, k2 and k3 in "
        "the loss at first about as much and then k3 more, and k3 in the reward, which starts level, in "
        "the end less than nothing.",
        "arcsine",
        draw,
        signed=True,
    ),
)
