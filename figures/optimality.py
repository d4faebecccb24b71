"""Corollary 5: where grpo beats no baseline in finite G."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulations.evidence.figure import Figure

from . import style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Drawing

LEVELS = (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75)
"""Levels of the ratio's shades, finer towards 1."""


def draw_frontier(frame: pd.DataFrame) -> Drawing:
    """The ratio of errors as colour over (pass rate, G), measured points as discs in the same colours."""
    import matplotlib.patheffects as effects
    import seaborn as sns
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from scipy.interpolate import RectBivariateSpline

    figure, (axis,) = style.panels(1, 2.6)
    table = frame.pivot_table(index="group_size", columns="pass_rate", values="prediction")
    rates, sizes = table.columns.to_numpy(float), table.index.to_numpy(float)
    # Between the predicted points the ground is shaded smoothly.
    smooth = RectBivariateSpline(np.log(sizes), np.log(rates), np.log(table.to_numpy()))
    many, fine = np.geomspace(sizes[0], sizes[-1], 80), np.geomspace(rates[0], rates[-1], 80)
    shown = np.exp(smooth(np.log(many), np.log(fine)))
    blue_red = sns.color_palette("RdBu_r", as_cmap=True)
    below, above = np.linspace(0.06, 0.42, 7), np.linspace(0.6, 0.9, 5)
    shades = ListedColormap([blue_red(x) for x in (*below, *above)])
    norm = BoundaryNorm(LEVELS, shades.N, extend="both")
    ground = axis.contourf(fine, many, shown, levels=LEVELS, cmap=shades, norm=norm, extend="both")
    ground.set_edgecolor("face")
    ground.set_linewidth(0.2)
    axis.contour(fine, many, shown, levels=[1.0], colors="black", linewidths=1.1)
    drawn = frame[frame["estimate"].notna()]
    axis.scatter(
        drawn["pass_rate"],
        drawn["group_size"],
        c=drawn["estimate"],
        cmap=shades,
        norm=norm,
        s=13,
        edgecolors="black",
        linewidths=0.45,
        zorder=3,
        clip_on=False,
    )
    style.log_axis(axis, "x", [])
    axis.set_xticks(
        [1 / n for n in (64, 32, 16, 8, 4, 2)], [f"1/{n}" for n in (64, 32, 16, 8, 4, 2)]
    )
    style.log_axis(axis, "y", [2, 4, 8, 16, 32, 64])
    axis.set(
        xlim=(rates[0], rates[-1]),
        ylim=(sizes[0], sizes[-1]),
        xlabel="pass rate p",
        ylabel="group size G",
    )
    halo = [effects.withStroke(linewidth=2, foreground="white")]
    for x, y, text, ha in (
        (0.03, 0.05, "vanilla\nis better", "left"),
        (0.97, 0.93, "grpo is better", "right"),
    ):
        axis.text(
            x, y, text, transform=axis.transAxes, ha=ha, va="bottom" if y < 0.5 else "top",
            path_effects=halo,
        )  # fmt: skip
    axis.annotate(
        "p ≈ 1/G", (1 / 10, 10), xytext=(4, 3), textcoords="offset points", path_effects=halo
    )
    bar = figure.colorbar(ground, ax=axis, ticks=LEVELS, pad=0.03, aspect=26)
    bar.ax.set_yticklabels([f"{level:g}" for level in LEVELS])
    bar.ax.minorticks_off()
    bar.set_label("MSE of grpo / MSE of vanilla")
    bar.outline.set_linewidth(0.5)
    return figure


FIGURES = (
    Figure(
        "optimality_frontier",
        "grpo against no baseline",
        "A map over pass rate and group size, coloured by the ratio of grpo's error to that without "
        "a baseline: where the pass rate is below about 1/G no baseline is better, and above it "
        "grpo is; simulated discs match the ground that they lie on.",
        "frontier",
        draw=draw_frontier,
    ),
)
