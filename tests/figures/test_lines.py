"""Figures of bandits: each prediction, point and interval in its place, in the look that has its name."""

import pandas as pd
import pytest

pytest.importorskip("seaborn")

from figures.catalogue import PICTURES
from figures.render import draw, missed
from figures.style import BLUE, GREY, LOOKS, ORANGE
from simulations.evidence.figure import Curve, Figure, Line, Panel
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


def test_a_line_is_the_prediction_its_points_are_the_estimates_and_its_name_is_at_its_end():
    frame = of_series(SERIES, "group_size", (2, 4, 8), problem="balanced")
    (axis,) = draw(PICTURES["mse"], frame).axes
    for name in SERIES:
        own, look = frame[frame["series"] == name], LOOKS[name]
        x = own["group_size"]
        assert has(axis, x, own["prediction"], color=look.colour, marker="None"), name
        assert has(axis, x, own["estimate"], marker=look.marker, linestyle="None"), name
    assert {(low, high) for _, low, high in spans(axis)} == heights(frame)
    named = {text.get_text().replace("\n", "-"): text.get_color() for text in axis.texts}
    assert named == {name: LOOKS[name].colour for name in SERIES}


def test_a_panel_shifts_divides_and_leaves_out_as_it_declares():
    frame = of_series(("a", "b"), "group_size", (2, 4, 8))
    frame.loc[frame["group_size"] == 8, "high"] = 9.0
    order = Curve(lambda g: 1 / g, "order 1", through=True)
    panels = (
        Panel("shifted", plus=1.0, lines=("b",)),
        Panel("unit", over="a", lines=("a",)),
        Panel("precise", precise=True, lines=("a",), curves=(order,)),
    )
    figure = Figure("name", "title", "alt", "source", panels=panels, names="outside upper center")
    drawing = draw(figure, frame)
    shifted, unit, precise = drawing.axes
    a, b = (frame[frame["series"] == name] for name in "ab")
    x = a["group_size"]
    assert has(shifted, x, 1 + b["prediction"], marker="None")
    assert {(low, high) for _, low, high in spans(shifted)} == {
        (round(low + 1, 9), round(high + 1, 9))
        for low, high in zip(b["low"], b["high"], strict=True)
    }
    assert has(unit, x, a["estimate"] / a["prediction"].min(), linestyle="None")
    assert len(spans(precise)) == 2
    assert has(precise, x, a["prediction"].iloc[0] * 2 / x, color=GREY)
    assert [text.get_text() for text in drawing.legends[0].get_texts()] == ["b", "a", "order 1"]


def test_lines_without_a_name_are_those_of_all_series_in_looks_of_their_own():
    frame = of_series(("one", "two $"), "group_size", (2, 4), kind=True, size=3)
    lines = (Line("", "{series}, {size:g}", at={"kind": True}),)
    figure = Figure("name", "title", "alt", "source", lines=lines, names="upper left")
    (axis,) = draw(figure, frame).axes
    texts = [text.get_text() for text in axis.get_legend().get_texts()]
    assert texts == ["one, 3", r"two \$, 3"]
    for name, colour in (("one", BLUE), ("two $", ORANGE)):
        rows = frame[frame["series"] == name]
        assert has(axis, rows["group_size"], rows["prediction"], color=colour)


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


def test_intervals_off_the_predicted_value_are_counted():
    rows = [
        {"prediction": 1.0, "exact": 9.0, "low": 0.9, "high": 1.1},
        {"prediction": 1.0, "exact": 1.0, "low": 1.01, "high": 1.1},
        {"prediction": float("nan"), "exact": 2.0, "low": 2.1, "high": 2.2},
        {"prediction": 1.0, "exact": 1.0, "low": 2.0, "high": float("inf")},
        {"prediction": 1.0, "exact": 1.0, "low": float("nan"), "high": float("nan")},
    ]
    assert missed(pd.DataFrame(rows)) == "2 of 3 intervals exclude the predicted value."
    assert missed(pd.DataFrame(rows[4:])) == ""
    assert missed(pd.DataFrame({"estimate": [1.0]})) == ""
