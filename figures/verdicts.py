"""Every simulated check at a glance: where its estimate lies, and where its rivals say that it lies.

One row for each check, in units of its own interval's half-width about the prediction: the band is
what the check could not tell from the prediction, and a rival outside the band around the estimate
is refuted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw"]

EDGE = 8.0
"""Rivals further away than this are drawn at the edge."""

COLOURS = {"made-up": "#0072B2", "generated": "#E69F00", "real": "#009E73", "user": "#CC79A7"}
NAMES = {"made-up": "made up", "generated": "generated", "real": "real data", "user": "problem"}


def _rows(claim: dict[str, Any]) -> list[dict[str, Any]]:
    """The simulated checks that have sampling error, with their rivals' places."""
    rows = []
    for check in claim["checks"]:
        drawn = check["simulation"]
        if drawn is None or not drawn["standard_error"] or None in drawn["interval"]:
            continue
        half = (drawn["interval"][1] - drawn["interval"][0]) / 2
        rivals = []
        for name in check["planned_for"]:
            says = check["rivals"][name]["says"]
            value = says[1] if says[0] is None else says[0]
            if value is not None:
                rivals.append(float(np.clip((value - check["prediction"]) / half, -EDGE, EDGE)))
        rows.append(
            {
                "group": check["group"],
                "place": (drawn["estimate"] - check["prediction"]) / half,
                "error": drawn["standard_error"] / half,
                "rivals": rivals,
            }
        )
    return rows


def draw(document: dict[str, Any]) -> Figure:
    """The figure of a run's results (its ``verdicts.json``)."""
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    claims = [(claim, rows) for claim in document["claims"] if (rows := _rows(claim))]
    figure, axes = plt.subplots(
        1, max(len(claims), 1), figsize=(2.1 * max(len(claims), 1) + 0.6, 4.2), squeeze=False
    )
    for axis, (claim, rows) in zip(axes[0], claims, strict=False):
        axis.axvspan(-1, 1, color="0.9", lw=0)
        axis.axvline(0, color="0.5", lw=0.8)
        for y, row in enumerate(rows):
            colour = COLOURS[row["group"]]
            axis.plot(
                [row["place"] - row["error"], row["place"] + row["error"]],
                [y, y],
                color=colour,
                lw=1,
            )
            axis.plot(row["place"], y, "o", color=colour, ms=2.5)
            axis.plot(row["rivals"], [y] * len(row["rivals"]), "x", color="black", ms=4, mew=0.8)
        axis.set_xlim(-EDGE - 0.6, EDGE + 0.6)
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_yticks([])
        axis.set_title(f"{claim['label']}\n{claim['verdict']}", fontsize=8)
        axis.tick_params(labelsize=7)
        for side in ("left", "right", "top"):
            axis.spines[side].set_visible(False)
    groups = dict.fromkeys(row["group"] for _, rows in claims for row in rows)
    handles = [
        Line2D([], [], color=COLOURS[group], marker="o", ms=3, lw=1, label=NAMES[group])
        for group in groups
    ]
    handles.append(Line2D([], [], color="black", marker="x", ms=4, lw=0, label="rival"))
    figure.legend(
        handles=handles, loc="lower center", ncols=len(handles), fontsize=7, frameon=False
    )
    figure.supxlabel(
        "estimate minus prediction, in half-widths of the check's interval (bar: one standard error)",
        fontsize=8,
        y=0.075,
    )
    figure.subplots_adjust(left=0.02, right=0.98, top=0.87, bottom=0.2, wspace=0.12)
    return figure
