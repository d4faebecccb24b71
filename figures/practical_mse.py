"""Theorem 12: squared bias and variance of practical GRPO as the policy moves away, ratio by ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import style
from .picture import Picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "draw"]

LINES = {
    "token": style.Line(style.ORANGE, "o"),
    "token, clipped": style.Line(style.RED, "^", (4, 1.2, 1, 1.2), 3.4),
    "prefix": style.Line(style.GREEN, "D", (2, 1), 2.6),
    "gspo": style.Line(style.BLUE, "s", (4, 1.5), 2.8),
    "sequence": style.Line("black", "v", (1, 1), 3.4),
}
NAMES = {
    "token": "token",
    "token, clipped": "token, clipped\nat 0.2",
    "prefix": "up to the token",
    "gspo": "geometric mean\n(GSPO)",
    "sequence": "sequence",
}
PANELS = {"squared bias": [1e-4, 1e-3, 1e-2, 1e-1], "variance": [0.03, 0.05, 0.1, 0.15]}


def draw(frame: pd.DataFrame) -> Figure:
    """One panel for the squared bias, one for the variance."""
    figure, axes = style.panels(2, 2.9)
    for letter, axis, (panel, ticks) in zip("ab", axes, PANELS.items(), strict=True):
        own = frame[frame["panel"] == panel].sort_values("distance")
        style.series(axis, own, "distance", LINES)
        style.log_axis(axis, "x", [0.0625, 0.125, 0.25, 0.5, 1, 2])
        style.log_axis(axis, "y", ticks)
        axis.set_xlabel("distance from the policy that drew", x=0.5)
        axis.set_ylabel("")
        axis.set_title(style.mark(letter) + panel, loc="left")
        style.label_ends(axis, style.ends(own, LINES, NAMES))
    axes[0].set_ylabel("of the gradient")
    return figure


PICTURES = (
    Picture(
        "practical_mse",
        "Bias and variance of practical GRPO as the policy moves away",
        "Squared bias and variance of the gradient against the distance of the policy from the one that "
        "drew the outputs, for five ways to weight tokens: the squared biases rise with slope two, "
        "that of the token ratio fastest, and the clipped one leaps far above where clipping sets in and "
        "its variance falls; the sequence ratio has no bias; simulated points lie on the lines.",
        "practical_mse",
        draw,
    ),
)
