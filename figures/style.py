"""One look for all figures: sizes as printed, colours that colour-blind readers tell apart, and a
marker and a dash for each series, so that nothing is lost in grey.

Predictions are lines, simulations points with 95% intervals, rivals dashed grey.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ustat_pg.validation import InputError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

COLUMN, PAGE = 3.4, 7.0
"""Widths in inches: one column, and two."""

GREY = "0.45"
BLUE, ORANGE, GREEN, RED, PINK, BROWN, SKY = (
    "#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#8c613c", "#56b4e9",
)  # fmt: skip
"""Colours of seaborn's palette "colorblind"; its light brown is replaced by a darker one."""


@dataclass(frozen=True)
class Look:
    """How a series is drawn.

    Arguments:
        colour: colour of line and points.
        marker: marker of the points.
        dash: (), or lengths on and off; None for points alone.
        size: size of the points; a larger open one shows behind another at the same place.
        hollow: whether the points are open.
        width: width of the line; a thinner one has no band.
        label: the name of the series in figures, where that is another than in the points.
    """

    colour: str
    marker: str = ""
    dash: tuple[float, ...] | None = ()
    size: float = 3.0
    hollow: bool = False
    width: float = 1.0
    label: str = ""


LOOKS = {
    # Estimators, in every figure.
    "vanilla": Look(RED, "s", (4, 1.2, 1, 1.2)),
    "grpo": Look(BLUE, "o"),
    "minimum-variance": Look(PINK, "^", (1, 1), 5.5, hollow=True, label="minimum\nvariance"),
    "oracle": Look(GREEN, "D", (4, 1.5), 2.4),
    "norm-weighted": Look(BROWN, "v", (2, 1), 3.4),
    "length-weighted": Look("0.35", "<", (5, 1, 1, 1), width=0.6),
    "token-weighted": Look("0.35", ">", (1.5, 2.5), width=0.6),
    "best": Look(SKY, "P", (6, 1, 1, 1, 1, 1), 3.4, label="best table"),
    "bayes:1,1": Look(BROWN, "v", (2, 1), 3.4, label="Bayes table"),
    "std": Look(ORANGE, "s", (4, 1.5), 2.8, label="divided by std"),
    "others-std": Look("black", "<", (5, 1, 1, 1), 3.2, label="by the others' std\n(NeMo-RL)"),
    "maxrl": Look(PINK, "^", (1, 1), 3.4, label="MaxRL"),
    "pass-at-k:2": Look(BROWN, "v", (1, 1), 3.4, label="pass@2"),
    # Whatever else is compared, by colour.
    "blue": Look(BLUE, "o"),
    "orange": Look(ORANGE, "s", (4, 1.5), 2.8),
    "green": Look(GREEN, "D", (2, 1), 2.6),
    "pink": Look(PINK, "^", (1, 1), 3.4),
    "brown": Look(BROWN, "v", (6, 1.5), 3.4),
    "red": Look(RED, "v", (4, 1.2, 1, 1.2), 3.4),
    "black": Look("black", "<", (1, 1.3), 3.2),
    "alone": Look(ORANGE, "o"),
    "blue, open": Look(BLUE, "^", None, 5.5, hollow=True),
    "orange, open": Look(ORANGE, "v", None, 5.5, hollow=True),
    "green, open": Look(GREEN, "D", None, 6.5, hollow=True),
    "rival": Look(GREY, "", (3, 1.6), width=0.9),
    "second rival": Look(GREY, "", (1, 1.4), width=0.9),
    "limit": Look("black", "", (1, 1.3)),
}
"""The look of every series by name."""

CYCLE = ("blue", "orange", "pink", "green", "brown", "red", "black")
"""Looks of series that have none of their own, in order."""


@contextmanager
def theme(look: str | None = None) -> Iterator[None]:
    """Seaborn's ticks at print size, and everything that files depend on, within the block; a Matplotlib
    style, a name or a file, holds before them.
    """
    import matplotlib as mpl
    import matplotlib.style as styles
    import seaborn as sns

    with (
        mpl.rc_context(),
        sns.axes_style("ticks"),
        sns.plotting_context("paper"),
        mpl.rc_context(),
    ):
        styles.use(Path(__file__).with_name("print.mplstyle"))
        try:
            styles.use(look or [])
        except OSError as error:
            raise InputError(f"style is {look!r}: no style of Matplotlib, nor a file") from error
        yield


def size_of(width: float, height: float) -> tuple[float, float]:
    """The size of a figure in inches: that of the style, or else this one."""
    import matplotlib as mpl

    styled = tuple(mpl.rcParams["figure.figsize"])
    return styled if all(styled) else (width, height)


def panels(count: int, height: float, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, in rows: one column wide for one panel, two for more."""
    import matplotlib.pyplot as plt

    columns = -(-count // rows)
    size = size_of(COLUMN if count == 1 else PAGE, height)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    for spare in axes.flat[count:]:
        spare.remove()
    return figure, list(axes.flat[:count])


def log_axis(axis: Axes, which: str, ticks: Iterable[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    side = axis.xaxis if which == "x" else axis.yaxis
    side.axes.set(**{f"{which}scale": "log"})
    side.set_major_locator(FixedLocator(list(ticks)))
    side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    side.set_minor_locator(NullLocator())
    side.set_minor_formatter(NullFormatter())


def measured(
    axis: Axes,
    x: pd.Series,
    frame: pd.DataFrame,
    look: Look,
    *,
    least: float | None = None,
) -> None:
    """The frame's estimates as points, with their intervals where both ends are finite; lower ends stop at
    ``least``, where that is given, and do not leave a logarithmic axis.
    """
    # An interval as wide as the whole line has an end at infinity, or below 0 on a log axis.
    finite = np.isfinite(frame["low"]) & np.isfinite(frame["high"])
    low = frame["low"][finite] if least is None else frame["low"][finite].clip(lower=least)
    axis.vlines(x[finite], low, frame["high"][finite], look.colour, lw=thick(0.8), zorder=2.5)
    zorder = 2.6 if look.hollow else 3
    axis.plot(x, frame["estimate"], ls="none", zorder=zorder, **point(look))


def thick(width: float) -> float:
    """The width of a series' line in points: of one that is 1 in the style of print."""
    import matplotlib as mpl

    return width * float(mpl.rcParams["lines.linewidth"])


def stroke(look: Look) -> dict[str, Any]:
    return {"color": look.colour, "dashes": look.dash or (None, None), "lw": thick(look.width)}


def point(look: Look) -> dict[str, Any]:
    return {
        "marker": look.marker,
        "ms": look.size,
        "mfc": "none" if look.hollow else look.colour,
        "mec": look.colour if look.hollow else "white",
        "mew": 0.7 if look.hollow else 0.35,
    }


def label_ends(axis: Axes, labels: Sequence[tuple[float, str, Sequence[Look]]]) -> None:
    """Names at the right of the panel, each at its line's end, moved apart where they would touch.

    Each has an ordinate, a text, and looks, the last of which gives its colour; and its points' marker before
    it, for those who print in grey.
    """
    gap = 9.0  # points between two names
    x = 1.045  # of the panel's width
    figure: Any = axis.figure
    figure.draw_without_rendering()
    height = axis.get_window_extent().height / figure.dpi * 72
    to_axes = axis.transData + axis.transAxes.inverted()
    places = [float(to_axes.transform((axis.get_xlim()[1], y))[1]) * height for y, _, _ in labels]
    order = np.argsort(places, kind="stable")
    lines = [1 + labels[i][1].count("\n") for i in order]
    moved: list[float] = []
    for rank, i in enumerate(order):
        room = gap * (lines[rank] + lines[rank - 1]) / 2 if rank else 0.0
        moved.append(max(places[i], moved[-1] + room) if moved else places[i])
    # Pushed upwards from below, they are centred again on where they wanted to be, but not so far
    # that they hang below the panel.
    shift = min(float(np.mean(moved) - np.mean(places)), moved[0] - gap * (lines[0] - 1) / 2)
    for rank, i in enumerate(order):
        _, text, looks = labels[i]
        y = (moved[rank] - shift) / height
        # Beside the first of the label's lines.
        top = y + gap * (lines[rank] - 1) / 2 / height
        for look in looks:
            axis.plot(
                [x + 0.01], [top], ls="none", clip_on=False, transform=axis.transAxes, **point(look)
            )
        where: Any = {"transform": axis.transAxes, "va": "center", "ha": "left"}
        axis.text(x + 0.045, y, text, color=looks[-1].colour, linespacing=1.05, **where)


def mark(letter: str) -> str:
    """The letter of a panel, in bold, to begin its title with."""
    return rf"$\bf{{{letter}}}$  "


def plain(text: str) -> str:
    """A name as it stands: Matplotlib would read dollar signs as mathematics."""
    return text.replace("$", r"\$")


def decades(axis: Axes, values: pd.Series) -> None:
    """A logarithmic axis of ordinates, with ticks at 1, 2 and 5 where one decade would be too bare."""
    positive = values[values > 0]
    low, high = float(positive.min()) / 1.35, float(positive.max()) * 1.35
    steps: tuple[int, ...] = (
        (1,) if high / low > 300 else ((1, 2, 5) if high / low < 40 else (1, 3))
    )
    ticks = [
        step * 10.0**k
        for k in range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
        for step in steps
    ]
    log_axis(axis, "y", [tick for tick in ticks if low <= tick <= high])
    axis.set_ylim(low, high)


def handles(entries: Iterable[tuple[str, Look]]) -> list[Line2D]:
    """Entries of a legend: each look's line and points, with its text."""
    from matplotlib.lines import Line2D

    return [
        Line2D(
            [],
            [],
            color=look.colour,
            ls="none" if look.dash is None else (0, look.dash or None),
            label=text,
            **point(look),
        )
        for text, look in entries
    ]


def legend(axis: Axes, entries: Sequence[tuple[str, Look]], loc: Any, ncols: int = 1) -> None:
    """A legend of the whole figure, outside its panels."""
    axis.figure.legend(
        handles=handles(entries),
        loc=loc, ncols=ncols, handlelength=3.2, columnspacing=1.4, labelspacing=0.4,
    )  # fmt: skip


def slope(axis: Axes, power: int, at: tuple[float, float]) -> None:
    """A short grey line of that slope on doubly logarithmic axes, with its name."""
    to_data = axis.transAxes + axis.transData.inverted()
    x, y = to_data.transform(at)
    axis.plot([x, 2.2 * x], [y, y * 2.2**power], color=GREY, lw=0.8, zorder=1)
    axis.annotate(
        f"slope {power}", (2.2 * x, y * 2.2**power), xytext=(2, 0), textcoords="offset points",
        color=GREY, va="center",
    )  # fmt: skip
