"""Beyond the paper: the token mean's bias, and exact ascent along what each way of adding up climbs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import style
from .picture import Picture
from .style import BLUE, GREEN, GREY, ORANGE, RED, Line

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "draw"]

BIAS = {
    "exact": Line(BLUE, "o"),
    "leading": Line(ORANGE, "", (4, 1.5)),
    "rival: its bias falls as 1/sqrt(B)": Line(GREY, "", (3, 1.6)),
}
BIAS_NAMES = ("exact", "leading term", "rival: as 1/√B")
ASCENT = {
    "sum over tokens": Line(BLUE, ""),
    "token mean": Line(GREEN, "", (2, 1)),
    "1/|y|": Line(ORANGE, "", (4, 1.5)),
    "1/|y|, no baseline": Line(RED, "", (4, 1.2, 1, 1.2)),
}


def draw(frame: pd.DataFrame) -> Figure:
    """The bias against B, and the return along exact ascent."""
    figure, (left, right) = style.panels(2, 2.5)
    bias, ascent = (frame[frame["panel"] == name] for name in ("bias", "ascent"))
    style.series(left, bias, "batch_size", BIAS)
    style.log_axis(left, "x", sorted(set(bias["batch_size"])))
    style.decades(left, bias["prediction"])
    left.set(xlabel="prompts B, groups of 2", ylabel="bias over the gradient's length")
    left.set_title(style.mark("a") + "the token mean's bias", loc="left")
    entries = list(zip(BIAS_NAMES, BIAS.values(), strict=True))
    left.legend(handles=style.handles(entries), loc="lower left", handlelength=3.2)
    for name, look in ASCENT.items():
        own = ascent[ascent["series"] == name].sort_values("step")
        right.plot(own["step"], own["prediction"], **style.stroke(look))
    right.axhline(0.8, color=GREY, lw=0.6, zorder=1)
    right.set_xscale("symlog", linthresh=2, linscale=0.4)
    ticks = [0, 2, 5, 10, 20, 50, 100, 200, 400]
    right.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    right.minorticks_off()
    right.set(xlabel="steps of exact ascent", ylabel="return", xlim=(0, 420), ylim=(0.48, 1.02))
    right.text(415, 0.788, "the short answer", color=GREY, ha="right", va="top")
    right.set_title(style.mark("b") + "a short answer for .8, a long one for 1", loc="left")
    right.legend(handles=style.handles(ASCENT.items()), loc="upper left", handlelength=3.2)
    return figure


PICTURES = (
    Picture(
        "length_weights",
        "What dividing by length does",
        "Two panels. On the left, on logarithmic axes, the bias of the token mean against the number of "
        "prompts: simulated points lie on the exact line, which nears its leading term and falls as 1/B, "
        "faster than a dashed rival. On the right the return along exact ascent, with a short answer "
        "worth .8 and a long one worth 1: the sum over tokens and the token mean near 1 in a hundred "
        "steps; 1/|y| first stays at .8 for more than a hundred; without a baseline it stays there.",
        "length_weights",
        draw,
    ),
)
