"""Figure 5 and Table 2: the group size of language models, predicted and in training.

The first panel is drawn from a run's curves. The others are drawn from the files of a training sweep,
``figure5.csv`` and ``table2.csv`` in ``sweep/`` inside the run's folder, where
``ustat-pg llm sweep --config FILE --out DIR/sweep`` writes them; where they are missing, so are the panels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simulations.evidence.figure import Figure

from . import style
from .style import BROWN, GREEN, GREY, LOOKS, ORANGE, PINK, RED, Look

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

MODELS = {"base": "brown", "strong": "blue", "in-context": "green", "short": "orange"}
"""Looks of the models."""

STEPS = (
    Look(ORANGE, "^", (1, 1)),
    Look(PINK, "s", (4, 1.5)),
    Look(BROWN, "v", (2, 1)),
    Look(RED, "D", (4, 1.2, 1, 1.2), 2.6),
    Look(GREEN, "P", (6, 1.5)),
    LOOKS["blue"],
)
"""Looks of checkpoints; the last is that of the last."""

BUDGETS = (LOOKS["brown"], LOOKS["orange"], LOOKS["blue"])
"""Looks of budgets, the smallest first."""

TRAINERS = {"rloo": "grpo", "vanilla": "no baseline"}
"""Names of trainers in titles, where they are not their own."""

GOOD_NOISE = 1.05
"""Group sizes are as good as the best up to this factor of the least noise."""

TOP_NOISE = 4.0
"""Where the axis of the noise ends: how dear a bad group size is, beyond this, is no matter."""

TRAINED_PANELS = 3
"""Panels of training at most."""


def draw(frame: pd.DataFrame) -> Drawing | None:
    """The noise at a budget over its least, then accuracy in training at each checkpoint.

    Heavier lines are within the band of 5%. Trained panels are those of the first trainer, grpo's
    (``rloo``) where there is one, a panel for each budget.
    """
    noise, trained = (frame[frame["panel"] == name] for name in ("noise", "trained"))
    if not len(noise):
        return None
    budgets: list[float] = []
    if len(trained):
        trained = trained[trained["series"] == _trainers(trained)[0]]
        budgets = sorted(set(trained["budget"]))[:TRAINED_PANELS]
    figure, axes = style.panels(1 + len(budgets), 2.7 if budgets else 2.4)
    _noise(axes[0], noise)
    if not budgets:
        return figure
    axes[0].set_title(style.mark("a") + "noise, predicted", loc="left")
    steps = sorted(set(trained["step"]))[-len(STEPS) :]
    looks = dict(zip(steps, STEPS[-len(steps) :], strict=True))
    for letter, axis, budget in zip("bcd", axes[1:], budgets, strict=False):
        rows = trained[trained["budget"] == budget]
        for place, (step, look) in enumerate(looks.items()):
            _joined(axis, rows[rows["step"] == step], look, place - (len(looks) - 1) / 2)
        _sizes(axis, rows, trained)
        axis.set_title(style.mark(letter) + f"training, K = {budget:g}", loc="left")
    axes[1].set_ylabel("accuracy")
    entries = [(f"step {step:g}", look) for step, look in looks.items()]
    style.legend(axes[0], entries, loc="outside upper right", ncols=len(entries))
    return figure


def _trainers(frame: pd.DataFrame) -> list[str]:
    return sorted(set(frame["series"]), key=lambda name: (name != "rloo", name))


def _noise(axis: Axes, frame: pd.DataFrame) -> None:
    """The advice: a line for each model, and sampled points, side by side at each G."""
    axis.axhspan(1.0, GOOD_NOISE, color="0.9", lw=0, zorder=0)
    looks = {name: LOOKS[look] for name, look in MODELS.items() if (frame["series"] == name).any()}
    for place, (name, look) in enumerate(looks.items()):
        rows = frame[frame["series"] == name].sort_values("group_size")
        axis.plot(rows["group_size"], rows["prediction"], **style.stroke(look))
        good = rows[rows["prediction"] <= GOOD_NOISE]
        axis.plot(
            good["group_size"], good["prediction"], color=look.colour, lw=3, alpha=0.4,
            solid_capstyle="butt", zorder=1.5,
        )  # fmt: skip
        drawn = rows[rows["estimate"].notna()]
        x = drawn["group_size"] * 1.045 ** (place - (len(looks) - 1) / 2)
        style.measured(axis, x, drawn, look, least=0.1)
    shown = frame[frame["prediction"] <= TOP_NOISE]["group_size"]
    style.log_axis(axis, "x", [2.0**n for n in range(1, 9) if 2.0**n <= shown.max()])
    style.log_axis(axis, "y", [0.5, 0.7, 1, 1.5, 2, 3, 4])
    least = min([0.9, *(frame["low"].dropna() / 1.05)])
    axis.set(xlim=(shown.min() / 1.18, shown.max() * 1.12), ylim=(max(least, 0.4), TOP_NOISE))
    axis.set(xlabel="group size G", ylabel="noise at a budget / least noise")
    _legend(axis, list(looks.items()), loc="upper left")


def _joined(axis: Axes, frame: pd.DataFrame, look: Look, aside: float = 0.0) -> None:
    """Means over runs with intervals, joined by a thin line: there is no prediction to join them."""
    frame = frame.sort_values("group_size")
    x = frame["group_size"] * 1.04**aside
    axis.plot(x, frame["estimate"], zorder=2, **style.stroke(replace(look, width=0.7)))
    style.measured(axis, x, frame, look)


def _sizes(axis: Axes, frame: pd.DataFrame, of: pd.DataFrame) -> None:
    """An axis of the group sizes that a panel's points have, and one that holds the points ``of`` all panels
    that are to be compared, but no wide interval.
    """
    sizes = sorted(set(frame["group_size"]))
    style.log_axis(axis, "x", sizes)
    axis.set(xlim=(sizes[0] / 1.18, sizes[-1] * 1.18), xlabel="group size G")
    low, high = float(of["estimate"].min()), float(of["estimate"].max())
    room = max(high - low, 0.01)
    ends = of[np.isfinite(of["low"]) & np.isfinite(of["high"])]
    bottom = max(low - room, min([low, *ends["low"]]))
    top = min(high + room, max([high, *ends["high"]]))
    axis.set_ylim(bottom - 0.06 * room, top + 0.06 * room)


def draw_final(frame: pd.DataFrame) -> Drawing | None:
    """Table 2's form: final accuracies against G at every budget, those of a sweep and the paper's.

    The sweep's are means over runs with 95% intervals; the paper's are of one run each, and have none.
    The sweep has a panel for each trainer, three at most.
    """
    final, paper = (frame[frame["panel"] == name] for name in ("final", "paper"))
    if not len(final):
        return None
    parts = [
        (f"{TRAINERS.get(name, name)}, this sweep", final[final["series"] == name])
        for name in _trainers(final)[:TRAINED_PANELS]
    ]
    if len(paper):
        parts.append(("the paper, MATH, one run each", paper))
    figure, axes = style.panels(len(parts), 2.6)
    for letter, axis, (title, part) in zip("abcd", axes, parts, strict=False):
        budgets = sorted(set(part["budget"]))
        shown = dict(zip(budgets[-len(BUDGETS) :], BUDGETS[-len(budgets) :], strict=False))
        for place, (budget, look) in enumerate(shown.items()):
            rows = part[part["budget"] == budget]
            # Without intervals there is nothing to move apart.
            aside = place - (len(shown) - 1) / 2 if rows["low"].notna().any() else 0.0
            _joined(axis, rows, look, aside)
            best = rows.loc[rows["estimate"].idxmax()]
            axis.plot(
                [best["group_size"] * 1.04**aside], [best["estimate"]], "o", ms=7.5, mfc="none", mec=GREY,
                mew=0.7, zorder=1.8,
            )  # fmt: skip
        _sizes(axis, part, paper if part is paper else final)
        axis.set_title((style.mark(letter) if len(parts) > 1 else "") + title, loc="left")
        low, high = axis.get_ylim()
        axis.set_ylim(low, high + 0.22 * (high - low))
        entries = [(f"{budget:g}", look) for budget, look in shown.items()]
        _legend(axis, entries, loc="upper center", ncols=len(entries), title="budget K")
    axes[0].set_ylabel("final accuracy")
    return figure


def _legend(
    axis: Axes, entries: list[tuple[str, Look]], loc: Any, ncols: int = 1, title: str = ""
) -> None:
    axis.legend(
        handles=style.handles(entries), loc=loc, title=title or None, title_fontsize=7,
        ncols=ncols, handlelength=2.4 if ncols == 1 else 1.7,
        labelspacing=0.3, columnspacing=0.9, handletextpad=0.5, borderpad=0.1,
    )  # fmt: skip


FIGURES = (
    Figure(
        "group_size_lm",
        "The group size of language models",
        "The noise of the gradient at a budget over its least against the group size, a line for each "
        "language model with a band of 5%; and, where a training sweep was made, accuracy against the "
        "group size at its checkpoints, means over runs with intervals.",
        "group_size_lm",
        draw=draw,
    ),
    Figure(
        "group_size_lm_final",
        "Accuracy after training against the group size",
        "Accuracy at the end of training against the group size, a line for each budget: means over "
        "runs of a sweep with 95% intervals, and beside them the paper's single runs. The best group "
        "size of each budget has a ring.",
        "group_size_lm_final",
        draw=draw_final,
    ),
)
