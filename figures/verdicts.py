"""Every simulated check at a glance: where its estimate lies, and where its rivals say that it lies.

One row for each check, in units of its own interval's half-width about the prediction. Within the band
the check could not tell its estimate from the prediction; a rival outside the band around the estimate
is refuted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simulations.evidence.figure import Figure
from simulations.evidence.findings import ORIGINS

from . import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from simulations.evidence.findings import CheckResult
    from simulations.evidence.results import Results

EDGE = 8.0
"""Rivals and estimates further away than this are drawn at the edge."""

BESIDE = 7
"""Panels in a row at most: titles and ticks of more would touch."""

LOOKS = {
    "made-up": (style.BLUE, "o"),
    "generated": (style.ORANGE, "s"),
    "real": (style.GREEN, "D"),
}
"""Colour and marker of problems, by where they come from."""


def _row(check: CheckResult) -> dict[str, Any] | None:
    """A simulated check's place and its rivals'; None without sampling error."""
    drawn = check.simulation
    if drawn is None or not drawn.standard_error > 0:
        return None
    half = (drawn.interval.high - drawn.interval.low) / 2
    if not 0 < half < np.inf:
        return None
    centre, region = check.prediction, check.region
    ends = [end for name in check.planned_for if (end := check.rival_end(name)) is not None]
    return {
        "origin": check.origin,
        "place": float(np.clip((drawn.estimate - centre) / half, -EDGE, EDGE)),
        "error": drawn.standard_error / half,
        # The statement allows more than the band, or the interval is no estimate ± half.
        "wide": max(centre - region.low, region.high - centre) > half
        or abs(drawn.interval.low + half - drawn.estimate) > half / 2,
        "rivals": [float(np.clip((end - centre) / half, -EDGE, EDGE)) for end in ends],
    }


def draw(results: Results) -> Drawing | None:
    """The figure of a run's checks; None if nothing was simulated."""
    from matplotlib.lines import Line2D

    claims = [
        (claim, rows)
        for claim in results.claims
        if (rows := [row for check in claim.checks if (row := _row(check))])
    ]
    if not claims:
        return None
    lines = -(-len(claims) // BESIDE)
    figure, axes = style.panels(len(claims), 3.9 + 2.2 * (lines - 1), rows=lines)
    for axis, (claim, rows) in zip(axes, claims, strict=True):
        axis.axvspan(-1, 1, color="0.9", lw=0)
        axis.axvline(0, color="0.5", lw=0.6)
        for origin, (colour, marker) in LOOKS.items():
            known = [(y, row) for y, row in enumerate(rows) if row["origin"] == origin]
            heights, places = [y for y, _ in known], np.array([row["place"] for _, row in known])
            errors = np.array([row["error"] for _, row in known])
            axis.hlines(heights, places - errors, places + errors, color=colour, lw=0.9)
            hollow = np.array([row["wide"] for _, row in known], dtype=bool)
            looks: Any = {"c": np.where(hollow, "white", colour), "ec": colour, "lw": 0.5 * hollow}
            axis.scatter(places, heights, 5, marker=marker, zorder=3, clip_on=False, **looks)
        crosses = [(place, y) for y, row in enumerate(rows) for place in row["rivals"]]
        axis.plot(*np.reshape(crosses, (-1, 2)).T, "x", color="black", ms=3, mew=0.6)
        edge = max(0.6, 0.012 * len(rows))
        axis.set(xlim=(-EDGE - 0.8, EDGE + 0.8), ylim=(len(rows) - 1 + edge, -edge), yticks=[])
        axis.set_xticks([-EDGE, 0, EDGE], ["≤-8", "0", "≥8"])
        axis.set_title(f"{claim.label}\n{claim.verdict.value}")
        axis.spines["left"].set_visible(False)
    origins = dict.fromkeys(row["origin"] for _, rows in claims for row in rows)
    handles = [
        Line2D([], [], color=LOOKS[o][0], marker=LOOKS[o][1], ms=2.8, mew=0, label=ORIGINS[o])
        for o in origins
    ]
    handles += [
        Line2D([], [], color="0.3", mfc=face, marker=marker, ms=2.8, mew=0.6, lw=0, label=label)
        for marker, face, label in (
            ("o", "white", "may leave the band: bound, order, limit or choice"),
            ("x", "0.3", "rival"),
        )
    ]
    several = len(claims) > 1
    figure.supxlabel(
        "estimate minus prediction, in half-widths of the check's interval"
        + (" (bar: one standard error)" if several else "\n(bar: one standard error)"),
        fontsize=7.5,
    )
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles) if several else 3)
    return figure


FIGURES = (
    Figure(
        "verdicts",
        "Every simulated check",
        "One row for each simulated check, in half-widths of its interval about the prediction: a "
        "confirmed equality's estimate lies in the grey band; one of a bound, an order, a limit or a choice, "
        "drawn hollow, may lie outside; the rivals that the check was planned to refute, drawn as crosses, "
        "lie outside.",
        None,
        draw=draw,
    ),
)
