"""Theorem 8: the law of the gap after many steps, and of a mixture of laws where runs end apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulations.evidence.figure import Figure

from . import style
from .style import LOOKS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

OWN, NORMAL, ORACLE = "weighted chi-square", "normal", "oracle's weights at G = 2"
LAWS = {OWN: LOOKS["blue"], ORACLE: LOOKS["oracle"], NORMAL: LOOKS["pink"]}
NAMES = {OWN: "weighted chi-square", ORACLE: "oracle's weights", NORMAL: "normal"}
SHARES = {"own weight": LOOKS["blue"], "mean weight": LOOKS["orange"]}
RUNS = (style.BLUE, style.ORANGE, style.GREEN, style.PINK)


def draw(frame: pd.DataFrame) -> Drawing | None:
    """Histogram and densities on the left, quantiles on the right; None if nothing was simulated."""
    drawn = frame[(frame["series"] == OWN) & frame["estimate"].notna()].sort_values("level")
    if not len(drawn):
        return None
    figure, (left, right) = style.panels(2, 2.65)
    # Every third quantile: bins of equal predicted probability.
    ends = drawn.iloc[2::3]
    edges = np.concatenate([[0.0], ends["quantile"]])
    shares = np.diff(np.concatenate([[0.0], ends["estimate"]]))
    left.stairs(shares / np.diff(edges), edges, fill=True, color="0.87", lw=0)
    for name, look in LAWS.items():
        law = frame[frame["series"] == f"density: {name}"].sort_values("quantile")
        left.plot(law["quantile"], law["prediction"], **style.stroke(look))
    left.set(xlim=(0, float(frame["quantile"].max())), xlabel="$(T + t_0)$ gap")
    left.set(ylim=(0, 1.2 * float((shares / np.diff(edges)).max())), ylabel="density")
    left.set_title(style.mark("a") + "runs (grey) and three laws", loc="left")
    _quantiles(right, frame, drawn)
    right.set_title(style.mark("b") + "quantile by quantile", loc="left")
    style.legend(
        left, [(NAMES[n], look) for n, look in LAWS.items()], loc="outside upper center", ncols=3
    )
    return figure


def _quantiles(axis: Axes, frame: pd.DataFrame, drawn: pd.DataFrame) -> None:
    """Measured quantiles against those of each law; an interval is that of the share, inverted."""
    places = np.concatenate([[0.0], drawn["quantile"]])
    shares, low, high = (
        np.maximum.accumulate(np.concatenate([[0.0], drawn[name]]))
        for name in ("estimate", "low", "high")
    )
    most = float(drawn["quantile"].max())
    axis.axline((0, 0), slope=1, color=style.GREY, lw=0.7, zorder=1)
    for name, look in LAWS.items():
        law = frame[(frame["series"] == name)].sort_values("level").iloc[1::2]
        law = law[law["level"] <= shares[-1]]
        levels = law["level"].to_numpy()
        measured = np.interp(levels, shares, places)
        if name == OWN:
            bottom, top = (np.interp(levels, share, places) for share in (high, low))
            axis.vlines(law["quantile"], bottom, top, look.colour, lw=style.thick(0.8), zorder=2.5)
        axis.plot(law["quantile"], measured, ls="none", zorder=3, **style.point(look))
    axis.set(xlim=(-0.25 * most, most), xlabel="quantile of the law")
    axis.set(ylim=(0, most), ylabel="quantile of the runs")


def draw_mixture(frame: pd.DataFrame) -> Drawing:
    """Some runs on the return on the left, shares of many runs on the right."""
    figure, (left, right) = style.panels(2, 2.75)
    _runs(left, frame)
    left.set_title(style.mark("a") + "runs on the return", loc="left")
    right.axline((0, 0), slope=1, color=style.GREY, lw=0.7, zorder=1)
    for name, look in SHARES.items():
        shares = frame[frame["series"] == name].sort_values("level")
        right.plot(shares["level"], shares["prediction"], **style.stroke(look))
        # Every second level; the line goes through all.
        thinned = shares[(np.round(64 * shares["level"]) % 2 == 0) & shares["estimate"].notna()]
        style.measured(right, thinned["level"], thinned, look)
    right.set(xlim=(0, 1), ylim=(0, 1), xlabel="level", ylabel="share of runs below the quantile")
    ticks = [0, 0.25, 0.5, 0.75, 1]
    for setter in (right.set_xticks, right.set_yticks):
        setter(ticks, [f"{tick:g}" for tick in ticks])
    right.set_title(style.mark("b") + "many runs", loc="left")
    right.text(0.05, 0.6, "the law of the\nmean weight", color=style.ORANGE)
    right.text(0.57, 0.4, "each run's own law", color=style.BLUE)
    return figure


def _runs(axis: Axes, frame: pd.DataFrame) -> None:
    """Contours of the return, its ridge, and where runs go and end."""
    import seaborn as sns

    heights = frame[frame["series"] == "return"]
    table = heights.pivot_table(index="y", columns="x", values="prediction")
    shades = sns.light_palette("0.55", as_cmap=True)
    ground = axis.contourf(table.columns, table.index, table.to_numpy(), levels=12, cmap=shades)
    ground.set_edgecolor("face")
    ground.set_linewidth(0.2)
    axis.plot(_ridge(table), table.index, color="black", lw=0.7, dashes=(3, 1.6))
    # None are drawn where there is nothing but enumeration.
    runs = frame[(frame["series"] == "run") & frame["estimate"].notna()]
    paths = runs.pivot(index=["run", "step"], columns="axis", values="estimate")
    for (_, path), colour in zip(paths.groupby("run"), RUNS, strict=False):
        axis.plot(path["x"], path["y"], color=colour, lw=0.6, alpha=0.9)
        axis.plot(path["x"].iloc[:1], path["y"].iloc[:1], "o", mfc="white", mec=colour, ms=3.4)
        axis.plot(path["x"].iloc[-1:], path["y"].iloc[-1:], "o", mfc=colour, mec="black", ms=4.2)
    for which, places, text in (
        ("x", table.columns, r"$\theta_1$, which the return sees"),
        ("y", table.index, r"$\theta_2$, which the noise sees"),
    ):
        axis.set(**{f"{which}lim": (places.min(), places.max()), f"{which}label": text})


def _ridge(table: pd.DataFrame) -> np.ndarray:
    """Where the parabola through the three largest returns of each row has its vertex."""
    places, values = table.columns.to_numpy(float), table.to_numpy()
    best = np.clip(values.argmax(axis=1), 1, len(places) - 2)
    rows = np.arange(len(values))
    left, middle, right = (values[rows, best + shift] for shift in (-1, 0, 1))
    bend = left - 2 * middle + right
    shift = np.where(bend < 0, 0.5 * (left - right) / np.where(bend < 0, bend, -1.0), 0.0)
    return np.asarray(places[best] + np.clip(shift, -1, 1) * (places[1] - places[0]))


FIGURES = (
    Figure(
        "limit_law",
        "The law of the gap after many steps",
        "A histogram of the scaled gap of many runs follows the density of the predicted weighted "
        "chi-square law, steep at 0 and with a long tail; quantiles of the runs lie on the "
        "diagonal against those of this law, and off it against those of a normal law and of the "
        "law with the oracle's weights.",
        "limit_law",
        draw=draw,
    ),
    Figure(
        "limit_law_mixture",
        "Runs that end at different maximisers",
        "Four runs climb the return and end at different points of its ridge, with more noise where "
        "the second parameter is larger; the share of runs below each quantile lies on the "
        "diagonal where every run has the law of its own endpoint, and above it for most levels "
        "where all have the law of the mean weight.",
        "mixture",
        draw=draw_mixture,
    ),
)
