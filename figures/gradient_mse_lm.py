"""Figure 4: the gradient MSE of language models against G, for every baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING

from . import style
from .picture import Picture
from .style import BASELINES, LABELS, Line

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {
    "base": "base",
    "strong": "strong",
    "in-context": "strong, with worked examples",
    "short": "short, without a scratch-pad",
}
"""Titles of the models, the paper's three strengths and the counter-example."""

NAMES = {
    name: "best table, of other prompts" if name == "best" else LABELS[name] for name in BASELINES
}

FAINT = {
    "length-weighted": Line("0.35", "<", (5, 1, 1, 1)),
    "token-weighted": Line("0.35", ">", (1.5, 2.5)),
}
"""Stand-ins for the squared norm, without bands: they crowd the line of what they stand for."""

NOISE = {
    "vanilla": ("vanilla", BASELINES["vanilla"]),
    "grpo": ("grpo, Dr. GRPO", BASELINES["grpo"]),
    "oracle": ("oracle", BASELINES["oracle"]),
    "best": ("best table, of other prompts", BASELINES["best"]),
    "bayes:1,1": ("Bayes table", Line(style.BROWN, "v", (2, 1), size=3.4)),
    "std": ("divided by std", Line(style.ORANGE, "s", (4, 1.5), size=2.8)),
    "others-std": ("by the others' std", Line(style.GREY, "<", (5, 1, 1, 1))),
    "maxrl": ("MaxRL", Line(style.PINK, "^", (1, 1), size=3.4)),
}
"""Names and looks of those whose noise over signal is drawn; a multiple of another has its line."""

ASIDE = {"vanilla": 1, "oracle": -1}
"""On which side of its group size a baseline's point stands."""

WEIGHTED = ("norm-weighted", *FAINT)


def draw(frame: pd.DataFrame) -> Figure | None:
    """A panel for each model: lines and bands by its pool, points sampled anew with their intervals.

    A band or an interval that reaches 0 goes down to the edge of the logarithmic axis. The error of a
    weighted baseline comes from random groups of the pool, whose noise does not fall with G as the
    error does: its line ends where its band would reach below a fifth of it.
    """
    lines = {name: (text, BASELINES[name]) for name, text in NAMES.items()}
    lines |= {name: (name, look) for name, look in FAINT.items()}
    return _draw(frame, _errors, "MSE of one group's gradient", lines)


def draw_noise(frame: pd.DataFrame) -> Figure | None:
    """A panel for each model: noise over signal in units of grpo's, with bands by paired differences."""
    return _draw(frame, _noise, "noise over signal, over grpo's", NOISE)


def _draw(
    frame: pd.DataFrame,
    panel: Callable[[Axes, pd.DataFrame], None],
    text: str,
    lines: Mapping[str, tuple[str, Line]],
) -> Figure | None:
    """A panel for each model with its points, and the legend of the lines; None where there are no models."""
    models = set(frame["panel"])
    names = [name for name in PANELS if name in models] + sorted(models - PANELS.keys())
    if not names:
        return None
    rows = 2 if len(names) > 3 else 1
    figure, axes = style.panels(len(names), 2.3 * rows + 0.35, rows=rows, width=style.PAGE)
    for letter, axis, name in zip("abcdefgh", axes, names, strict=False):
        own = frame[frame["panel"] == name]
        sizes = own["group_size"]
        axis.set_title(style.mark(letter) + style.plain(PANELS.get(name, str(name))), loc="left")
        style.log_axis(axis, "x", [g for g in style.SIZES if sizes.min() <= g <= sizes.max()])
        panel(axis, own)
        axis.set(xlabel="group size G", xlim=(sizes.min() / 1.12, sizes.max() * 1.12))
    for axis in figure.axes[:: -(-len(names) // rows)]:
        axis.set_ylabel(text)
    known = set(frame["series"])
    entries = [entry for name, entry in lines.items() if name in known]
    style.legend(figure.axes[0], entries, loc="outside upper center", ncols=4)
    return figure


def _band(axis: Axes, line: pd.DataFrame, look: Line, floor: float, top: float) -> None:
    low, high = (line[end].clip(floor, top) for end in ("pool_low", "pool_high"))
    axis.fill_between(line["group_size"], low, high, color=look.colour, alpha=0.13, lw=0, zorder=1)


def _noise(axis: Axes, own: pd.DataFrame) -> None:
    """The noise of one model."""
    style.log_axis(axis, "y", [0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4])
    values = own[own["series"].isin(NOISE)]["prediction"]
    floor, top = values.min() / 1.2, values.max() * 1.2
    for name, (_, look) in NOISE.items():
        line = own[own["series"] == name].sort_values("group_size")
        _band(axis, line, look, floor, top)
        axis.plot(line["group_size"], line["prediction"], **style.stroke(look))
    axis.set(ylim=(floor, top), ylabel="")


def _errors(axis: Axes, own: pd.DataFrame) -> None:
    """The errors of one model; its limits are those of the lines, which wide bands may leave."""
    style.decades(axis, own["prediction"])
    floor = axis.get_ylim()[0] / 10
    for name, look in (FAINT | {key: BASELINES[key] for key in NAMES}).items():
        line = own[own["series"] == name].sort_values("group_size")
        if name in WEIGHTED:
            line = line[(line["pool_low"] > line["prediction"] / 5).cummin()]
        if not len(line):
            continue
        if name not in FAINT:
            _band(axis, line, look, floor, inf)
        width = 0.6 if name in FAINT else 1.0
        axis.plot(line["group_size"], line["prediction"], lw=width, **style.stroke(look))
        drawn = line[line["estimate"].notna() & (line["estimate"] > 0)]
        if len(drawn):
            aside = drawn["group_size"] * 1.035 ** ASIDE.get(name, 0)
            style.measured(axis, aside, drawn, look, least=floor)


PICTURES = (
    Picture(
        "gradient_mse_lm",
        "Gradient MSE of language models",
        "Mean squared error of the gradient against the group size on logarithmic axes, a panel for "
        "each language model: lines with 95% bands from one pool of rollouts, one for each baseline, "
        "and points with intervals from groups sampled anew. All fall with the group size, and grpo "
        "comes close to the oracle.",
        "gradient_mse_lm",
        draw,
    ),
    Picture(
        "gradient_mse_lm_noise",
        "Noise over signal of language models",
        "The variance of the gradient over its squared mean, in units of grpo's, against the group size on "
        "logarithmic axes, a panel for each language model: lines with 95% bands from one pool of "
        "rollouts, one for each estimator; grpo's is level at 1.",
        "gradient_mse_lm_noise",
        draw_noise,
    ),
)
