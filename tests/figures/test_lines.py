"""Figures of bandits: each prediction, point and interval in its place, in the look that has its name."""

from __future__ import annotations

import pandas as pd
import pytest

pytest.importorskip("seaborn")

from figures.catalogue import PICTURES
from figures.render import draw
from figures.style import BLUE, LOOKS, ORANGE
from tests.support.figures import has, heights, spans

pytestmark = pytest.mark.usefixtures("look")

SERIES = ("vanilla", "grpo", "minimum-variance", "oracle")


def of_series(names, x, places, **at):
    """Rows of one figure: predictions, estimates and intervals that are all different numbers."""
    rows = []
    for rank, name in enumerate(names):
        for place in places:
            value = (4.0 + rank) / place
            row = {"series": name, x: place, **at, "prediction": value, "exact": 7 * value}
            row |= {"estimate": 1.3 * value, "low": 1.2 * value, "high": 1.45 * value}
            rows.append(row)
    return pd.DataFrame(rows)


def test_a_line_is_the_prediction_and_its_points_are_the_estimates():
    frame = of_series(SERIES, "group_size", (2, 4, 8), problem="balanced")
    (axis,) = draw(PICTURES["mse"], frame).axes
    for name in SERIES:
        own, look = frame[frame["series"] == name], LOOKS[name]
        x = own["group_size"]
        assert has(axis, x, own["prediction"], color=look.colour, marker="None"), name
        assert has(axis, x, own["estimate"], marker=look.marker, linestyle="None"), name
    assert {(low, high) for _, low, high in spans(axis)} == heights(frame)


def test_a_line_has_its_own_name_at_its_end():
    frame = of_series(SERIES, "group_size", (2, 4, 8), problem="balanced")
    (axis,) = draw(PICTURES["mse"], frame).axes
    named = {text.get_text().replace("\n", "-"): text.get_color() for text in axis.texts}
    assert named == {name: LOOKS[name].colour for name in SERIES}


def test_the_ratio_is_bound_over_gap_and_its_interval_is_the_gaps_turned_round():
    names = ("constant: gap", "constant: bound", "decay: gap", "decay: bound")
    frame = of_series(names, "step", (1, 10, 100), problem="bowl")
    upper, lower = draw(PICTURES["suboptimality"], frame).axes
    for rate, colour in (("constant", BLUE), ("decay", ORANGE)):
        gap, bound = (
            frame[frame["series"] == f"{rate}: {kind}"].set_index("step")
            for kind in ("gap", "bound")
        )
        above = bound["prediction"]
        assert has(upper, above.index, 1000 * above, color=colour, marker="None")
        assert has(lower, above.index, above / gap["estimate"], linestyle="None")
        ends = {
            (round(float(step), 9), round(low, 9), round(high, 9))
            for step, low, high in zip(
                gap.index, above / gap["high"], above / gap["low"], strict=True
            )
        }
        assert ends <= spans(lower)
