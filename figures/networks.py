"""Networks along training: how far Assumption 2 fails, where PL fails, and which group size is best.

One drawing serves prefix policies and transformers; each kind has its own files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import style
from .picture import Picture
from .style import BASELINES, BLUE, BROWN, GREEN, GREY, ORANGE, PINK, RED, Line

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["KINDS", "PICTURES", "draw_group_size", "draw_map", "draw_optimizers", "draw_path"]

KINDS = {"tokens": "prefix policies", "transformer": "transformers"}

NAMES = {
    "vanilla": "no baseline",
    "grpo": "grpo",
    "oracle": "oracle",
    "minimum-variance": "minimum variance",
    "norm-weighted": "norm-weighted",
}

EXACT, MEASURED, BOUND = Line(BLUE, ""), Line(BLUE, "o", None), Line(GREY, "", (4, 1.5))

STEPS = (
    Line(BLUE, "o"),
    Line(ORANGE, "s", (4, 1.5)),
    Line(GREEN, "D", (1, 1), size=2.6),
    Line(PINK, "^", (4, 1.2, 1, 1.2)),
)
"""Looks of numbers of steps, the fewest first."""

STAGES = {
    "initial": Line(BROWN, ""),
    "middle": Line(RED, "", (4, 1.5)),
    "final": Line("0.2", "", (1, 1)),
}
GOOD_NOISE = 1.05
"""Group sizes are as good as the best up to this factor of the least noise."""


def _measured(axis: Axes, frame: pd.DataFrame, x: str, look: Line) -> None:
    """Points with intervals, joined by a thin line: there is no prediction to join them."""
    drawn = frame[frame["estimate"].notna()].sort_values(x)
    # An interval that reaches 0 goes down to the edge of a logarithmic axis.
    least = 1e-9 if axis.get_yscale() == "log" else None
    if len(drawn):
        style.measured(axis, drawn[x], drawn, look, least=least, joined=True, clip_on=False)


def _top(frame: pd.DataFrame) -> float:
    """The highest end of an interval; of those at infinity, the estimate."""
    return float(frame["high"].where(np.isfinite(frame["high"]), frame["estimate"]).max())


def draw_map(frame: pd.DataFrame) -> Figure | None:
    """Return, correlation and errors over the oracle's along training; None if nothing was trained."""
    drawn = frame[frame["estimate"].notna()]
    panels = {name: drawn[drawn["panel"] == name] for name in ("return", "correlation", "error")}
    if not all(len(own) for own in panels.values()):
        return None
    figure, axes = style.panels(3, 2.55)
    titles = (
        "return of training",
        r"correlation of $\|s\|^2$ and reward",
        "error over the oracle's",
    )
    for letter, axis, title in zip("abc", axes, titles, strict=True):
        axis.set_title(style.mark(letter) + title, loc="left")
        _stretched(axis, float(drawn["step"].max()))
    axes[0].set_ylim(0, 1.02)
    axes[1].set_ylim(-1.04, max(0.25, 1.25 * _top(panels["correlation"])))
    axes[1].axhline(0, color=GREY, lw=0.6, zorder=1)
    axes[1].text(
        0.98, 0.02, "Assumption 2", color=GREY, ha="right", va="bottom",
        transform=axes[1].get_yaxis_transform(),
    )  # fmt: skip
    _ratios(axes[2], panels["error"])
    for axis, own in zip(axes, panels.values(), strict=True):
        for name in NAMES:
            _measured(axis, own[own["series"] == name], "step", BASELINES[name])
    entries = [(name, BASELINES[key]) for key, name in NAMES.items()]
    style.legend(axes[0], entries, loc="outside upper center", ncols=len(entries))
    return figure


def _ratios(axis: Axes, frame: pd.DataFrame) -> None:
    """A logarithmic axis for errors over that of the oracle, whose own line is at 1."""
    # An interval that goes far down would leave no room for the rest.
    third = frame["estimate"] / 3
    low = float(frame["low"].where(frame["low"] > third, third).min()) / 1.1
    high = min(_top(frame), 3 * float(frame["estimate"].max())) * 1.15
    steps: tuple[float, ...] = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
    if high / low < 15:
        steps = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    ticks = [step * 10.0**k for k in range(-9, 4) for step in steps]
    style.log_axis(axis, "y", [tick for tick in ticks if low <= tick <= high])
    axis.set_ylim(low, high)
    axis.axhline(1, zorder=1, **style.stroke(BASELINES["oracle"]))


def _stretched(axis: Axes, last: float) -> None:
    """Steps on a square-root axis: points are dense where training begins."""
    axis.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
    ticks = [0.0, *(round(last * share) for share in (1 / 30, 1 / 6, 1 / 3, 2 / 3)), last]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set(xlim=(0, 1.02 * last), xlabel="steps T")


def draw_path(frame: pd.DataFrame) -> Figure | None:
    """The gap against T, and the PL ratio along the path; None if nothing was trained."""
    if not frame["estimate"].notna().any():
        return None
    figure, (left, right) = style.panels(2, 2.5)
    last = float(frame["step"].max())
    for axis, series, looks in (
        (left, ("gap", "PL"), (EXACT, BOUND)),
        (right, ("pl",), (EXACT,)),
    ):
        for name, look in zip(series, looks, strict=True):
            own = frame[frame["series"] == name].sort_values("step")
            axis.plot(own["step"], own["prediction"], **style.stroke(look))
        own = frame[(frame["series"] == series[0]) & frame["estimate"].notna()]
        # One look for both panels: what is a line is exact, what is a point is measured.
        style.measured(axis, own["step"], own, MEASURED, least=1e-9)
        axis.set(xlim=(-0.02 * last, 1.02 * last), xlabel="steps T")
    known = frame[frame["panel"] == "gap"]
    style.decades(left, known["prediction"])
    right.set_ylim(0, 1.12 * _top(frame[frame["panel"] == "pl"]))
    left.set_ylabel("mean gap")
    right.set_ylabel(r"$\|\nabla J\|^2$ / (2 gap)")
    left.set_title(style.mark("a") + "the gap", loc="left")
    right.set_title(style.mark("b") + "the largest PL constant that each point allows", loc="left")
    entries = [
        ("training runs", MEASURED),
        ("exact ascent", EXACT),
        ("its pace at the peak, kept up", BOUND),
    ]
    style.legend(left, entries, loc="outside upper center", ncols=3)
    return figure


def draw_group_size(frame: pd.DataFrame) -> Figure | None:
    """Trained return against G for each budget, then the predicted noise; None if nothing was trained."""
    trained = frame[(frame["panel"] == "trained") & frame["estimate"].notna()]
    predicted = frame[frame["panel"] == "predicted"]
    if not len(trained) or not len(predicted):
        return None
    budgets = sorted(set(trained["budget"]))
    figure, axes = style.panels(len(budgets) + 1, 2.8)
    looks = dict(zip(sorted(set(trained["step"])), STEPS, strict=False))
    top = min(1.02, 1.1 * _top(trained))
    for letter, axis, budget in zip("abcdef", axes, budgets, strict=False):
        for step, look in looks.items():
            own = trained[(trained["budget"] == budget) & (trained["step"] == step)]
            _measured(axis, own, "group_size", look)
        axis.set_title(style.mark(letter) + f"trained, K = {budget:g}", loc="left")
        axis.set_ylim(0, top)
    axes[0].set_ylabel("return")
    last = axes[-1]
    for number, (name, look) in enumerate(STAGES.items()):
        own = predicted[predicted["series"] == name].sort_values("group_size")
        last.plot(own["group_size"], own["prediction"], label=name, **style.stroke(look))
        flat = own[own["prediction"] <= GOOD_NOISE]["group_size"]
        for axis in axes[:-1]:
            height = (0.012 + 0.018 * (len(STAGES) - number)) * top
            axis.plot([flat.min(), flat.max()], [height] * 2, **style.stroke(look))
    last.axhspan(1.0, GOOD_NOISE, color="0.9", lw=0, zorder=0)
    last.set_ylim(0.95, 1.0 + 1.08 * (float(predicted["prediction"].max()) - 1.0))
    last.set_ylabel("noise / least noise")
    last.set_title(style.mark("abcdef"[len(budgets)]) + "predicted", loc="left")
    last.legend(title="parameters", loc="upper center", handlelength=3.2, title_fontsize=7)
    sizes = [size for size in style.SIZES if size <= frame["group_size"].max()]
    for axis in axes:
        style.log_axis(axis, "x", sizes)
        axis.set(xlim=(sizes[0] / 1.12, sizes[-1] * 1.12), xlabel="group size G")
    entries = [(f"T = {step:g}", look) for step, look in looks.items()]
    style.legend(axes[0], entries, loc="outside upper left", ncols=len(entries))
    return figure


OPTIMIZERS = {"sgd": "plain SGD", "adam": "Adam", "muon": "Muon"}
SHORT = {"vanilla": "none", "oracle": "oracle", "grpo": "grpo", "group-mean": "mean", "std": "std"}
"""Ticks of baselines, in the order in which they are drawn."""


def draw_optimizers(frame: pd.DataFrame) -> Figure | None:
    """Trained return by baseline, then by group size, a panel for each optimizer; None if nothing was
    trained.
    """
    drawn = frame[frame["estimate"].notna()]
    if not len(drawn):
        return None
    figure, axes = style.panels(len(OPTIMIZERS), 2.7)
    sizes = sorted(set(drawn.loc[drawn["series"] == "grpo", "group_size"]))
    small = drawn.loc[drawn["series"] == "vanilla", "group_size"].iloc[0]
    for letter, axis, (name, title) in zip("abc", axes, OPTIMIZERS.items(), strict=True):
        own = drawn[drawn["panel"] == name]
        by_name = own[own["group_size"] == small].set_index("series").loc[list(SHORT)]
        grpo = own[own["series"] == "grpo"].sort_values("group_size")
        places = by_name.assign(place=range(len(SHORT)))
        style.measured(axis, places["place"], places, Line(ORANGE, "s"))
        along = grpo.assign(place=[len(SHORT) + 1 + n for n in range(len(sizes))])
        style.measured(axis, along["place"], along, BASELINES["grpo"], joined=True)
        ticks = [*SHORT.values(), *(f"{size:g}" for size in sizes)]
        axis.set_xticks([*places["place"], *along["place"]], ticks)
        axis.tick_params(axis="x", labelrotation=90)
        axis.axvline(len(SHORT), color=GREY, lw=0.6, zorder=1)
        axis.set(ylim=(0, 1.1 * _top(drawn)), xlabel="")
        axis.set_title(style.mark(letter) + title, loc="left")
    axes[0].set_ylabel("return")
    entries = [(f"by baseline, G = {small:g}", Line(ORANGE, "s", None))]
    entries.append(("grpo, by group size", BASELINES["grpo"]))
    style.legend(axes[0], entries, loc="outside upper left", ncols=2)
    return figure


def _pictures(on: str) -> tuple[Picture, ...]:
    """The three of one kind of policy."""
    kind = KINDS[on]
    return (
        Picture(
            f"{on}_map",
            f"Assumption 2 along training: {kind}",
            f"Three panels along training of {kind}: the return that training with each of five "
            "baselines reaches; the correlation of the squared score norm and the reward, with a line "
            "at the 0 that Assumption 2 asks for; and, on a logarithmic axis, the errors of four "
            "baselines over the oracle's, with a line at 1.",
            f"{on}_map",
            draw_map,
        ),
        Picture(
            f"{on}_path",
            f"The gap under small steps: {kind}",
            f"Two panels along training of {kind} under small constant steps: the mean gap of runs "
            "beside that of exact gradient ascent, with the pace that the largest PL constant on "
            "the path would keep up; and the PL ratio along the path, which rises and falls.",
            f"{on}_path",
            draw_path,
        ),
        Picture(
            f"{on}_group_size",
            f"The group size of networks: {kind}",
            f"Trained return of {kind} against the group size at equal budgets, a panel for each "
            "budget and a line for each number of steps; in the last panel the gradient's noise "
            "predicted at initial, middle and final parameters, over its least, with a band of 5%.",
            f"{on}_group_size",
            draw_group_size,
        ),
    )


PICTURES = (
    *(picture for on in KINDS for picture in _pictures(on)),
    Picture(
        "transformer_optimizers",
        "Baselines and group sizes under three optimizers: transformers",
        "Three panels, of plain SGD, Adam and Muon, with the trained return of transformers and its "
        "intervals: first by baseline at one group size, then of grpo by group size at the same budget.",
        "transformer_optimizers",
        draw_optimizers,
    ),
)
