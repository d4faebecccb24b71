"""Beyond the paper: what the estimators that people run climb, and their noise beside grpo's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import style
from .picture import Picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "draw_noise", "draw_weights"]

LINES = {
    "grpo": style.BASELINES["grpo"],
    "std": style.Line(style.ORANGE, "s", (4, 1.5), 2.8),
    "others-std": style.Line(style.RED, "^", (4, 1.2, 1, 1.2), 3.4),
    "maxrl": style.Line(style.GREEN, "D", (2, 1), 2.6),
    "pass-at-k:2": style.Line(style.BROWN, "v", (1, 1), 3.4),
}
NAMES = {
    "grpo": "grpo",
    "std": "divided by std",
    "others-std": "by the others' std\n(NeMo-RL)",
    "maxrl": "MaxRL",
    "pass-at-k:2": "pass@2",
}
RIVALS = {
    "rival: arcsine weight at finite G": ("rival: arcsine", (3, 1.6)),
    "rival: MaxRL of order G": ("rival: MaxRL\nof order G", (1, 1.4)),
}


def draw_weights(frame: pd.DataFrame) -> Figure:
    """w(p) against the pass rate, a panel for each group size; a change of learning rate is a shift."""
    sizes = sorted(frame["group_size"].unique())
    figure, axes = style.panels(len(sizes), 2.9)
    for letter, (axis, size) in zip("ab", zip(axes, sizes, strict=True), strict=False):
        own = frame[frame["group_size"] == size].sort_values("pass_rate")
        style.log_axis(axis, "y", [0.1, 0.3, 1, 3, 10])
        ends = []
        for name, (text, dash) in RIVALS.items():
            look, rival = style.Line(style.GREY, "", dash), own[own["series"] == name]
            axis.plot(
                rival["pass_rate"], rival["prediction"], lw=0.9, zorder=1.5, **style.stroke(look)
            )
            ends.append((float(rival["prediction"].iloc[-1]), text, (look,)))
        style.series(axis, own, "pass_rate", LINES)
        axis.set(xlim=(0, 1), ylim=(0.035, 17), xlabel="pass rate p", ylabel="")
        axis.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "1/4", "1/2", "3/4", "1"])
        axis.set_title(f"{style.mark(letter)}G = {size:g}", loc="left")
        style.label_ends(axis, [*ends, *style.ends(own, LINES, NAMES)])
    axes[0].set_ylabel("weight w(p) of a prompt's gradient")
    return figure


def draw_noise(frame: pd.DataFrame) -> Figure:
    """Noise-to-signal over grpo's against G, a panel for each prompt."""
    from matplotlib.ticker import MultipleLocator

    rates = sorted(frame["pass_rate"].unique())
    figure, axes = style.panels(len(rates), 2.5)
    for letter, (axis, rate) in zip("ab", zip(axes, rates, strict=True), strict=False):
        own = frame[frame["pass_rate"] == rate].sort_values("group_size")
        style.series(axis, own, "group_size", LINES)
        style.by_size(axis, own["group_size"])
        axis.set_ylim(0, max(2.1, 1.05 * own["prediction"].max()))
        axis.yaxis.set_major_locator(MultipleLocator(0.5))
        axis.set_title(f"{style.mark(letter)}pass rate {rate:g}", loc="left")
        style.label_ends(axis, style.ends(own, LINES, NAMES))
    axes[0].set_ylabel("noise-to-signal, over grpo's")
    return figure


PICTURES = (
    Picture(
        "count_advantages",
        "What the estimators that people run climb",
        "The weight of a prompt's gradient against its pass rate, at two group sizes, on a logarithmic "
        "axis: level for grpo, raised at both ends where advantages are divided by a deviation, falling "
        "for MaxRL and pass@2; simulated points lie on the lines, and two wrong formulas, in dashed "
        "grey, miss them.",
        "weights",
        draw_weights,
    ),
    Picture(
        "count_advantages_noise",
        "Noise beside grpo's",
        "Noise-to-signal ratio over grpo's against the group size, for a hard and for an easy prompt: "
        "all are equal in groups of two; the one divided by the others' deviation first rises above "
        "grpo, the one divided by the group's own falls below it; simulated points lie on the lines.",
        "noise",
        draw_noise,
    ),
)
