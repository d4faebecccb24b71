"""Theorem 2, mean squared error against G for four baselines; Lemma 1, the two parts of grpo's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import style
from .picture import Picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "draw_errors", "draw_parts"]

ERRORS = {
    name: style.LABELS[name].replace(" ", "\n")
    for name in ("vanilla", "grpo", "minimum-variance", "oracle")
}
PARTS = {
    "grpo": "grpo",
    "first": "first part =\nthe oracle, 1/G",
    "second": "second part,\n1/(G(G-1))",
}
LINES = {
    **style.BASELINES,
    "first": style.BASELINES["oracle"],
    "second": style.Line(style.ORANGE, "X", (2.5, 1, 1, 1), size=3.6),
}
PROMPT = {"balanced": "one prompt, 4 arms"}


def draw_errors(frame: pd.DataFrame) -> Figure:
    """One panel for each problem."""
    return _by_problem(frame, ERRORS, {**PROMPT, "digits": "handwritten digits"})


def draw_parts(frame: pd.DataFrame) -> Figure:
    """One panel for each problem."""
    return _by_problem(frame, PARTS, {**PROMPT, "digits": "one of the handwritten digits"})


def _by_problem(frame: pd.DataFrame, names: dict[str, str], titles: dict[str, str]) -> Figure:
    """Error against G on logarithmic axes, one panel for each problem, lines named at their ends."""
    lines = {name: LINES[name] for name in names}
    problems = list(dict.fromkeys(frame["problem"]))
    figure, axes = style.panels(len(problems))
    for letter, (axis, problem) in zip("abcdef", zip(axes, problems, strict=True), strict=False):
        own = frame[frame["problem"] == problem]
        style.series(axis, own, "group_size", lines)
        style.by_size(axis, own["group_size"])
        style.decades(axis, own["prediction"])
        batch = int(own["batch_size"].fillna(1).iloc[0]) if "batch_size" in own else 1
        title = style.plain(titles.get(problem, str(problem))) + (
            f", B = {batch}" if batch > 1 else ""
        )
        axis.set_title((style.mark(letter) if len(problems) > 1 else "") + title, loc="left")
        style.label_ends(axis, _merged(own, lines, names))
    axes[0].set_ylabel("mean squared error")
    return figure


def _merged(
    frame: pd.DataFrame, lines: dict[str, style.Line], names: dict[str, str]
) -> list[tuple[float, str, Sequence[style.Line]]]:
    """The label of each line's end; lines that end in the same place share one."""
    merged: list[tuple[float, str, Sequence[style.Line]]] = []
    for y, name, looks in style.ends(frame.sort_values("group_size"), lines, names):
        if merged and abs(merged[-1][0] - y) < 1e-6 * y:
            before = merged.pop()
            merged.append((y, f"{before[1]}\n= {name}", (*before[2], *looks)))
        else:
            merged.append((y, name, looks))
    return merged


PICTURES = (
    Picture(
        "ustatistic",
        "The two parts of grpo's error",
        "Two lines fall with the group size on logarithmic axes: the first part of grpo's error, "
        "which is the oracle's error, as 1/G, and the second part faster, as 1/(G(G-1)); their sum "
        "is grpo's error and tends to the first part.",
        "parts",
        draw_parts,
    ),
    Picture(
        "mse",
        "Gradient error against group size",
        "Mean squared error of the gradient against the group size, on logarithmic axes, without a "
        "baseline, for grpo, the oracle and the minimum-variance baseline: simulated points lie on "
        "the predicted lines, and grpo comes down to the oracle as the group grows.",
        "mse",
        draw_errors,
    ),
)
