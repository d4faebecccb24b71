"""Pictures of networks: each number where it belongs, and none where a run has left none."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("seaborn")

from figures.catalogue import PICTURES
from figures.networks import draw_group_size, draw_map, draw_path
from figures.style import BASELINES
from simulations import Suite
from simulations import curves as points_of
from simulations.networks import learners, suboptimality
from tests.support.figures import rows, spans
from ustat_pg.experiment import Options, Store, run_points

pytestmark = pytest.mark.usefixtures("look")
PARTS = {"map": draw_map, "path": draw_path, "group_size": draw_group_size}


def lines(axis, colour=None):
    """Abscissae and ordinates of the lines that are drawn, of one colour if it is given."""
    return [
        (line.get_xdata(), line.get_ydata(), line)
        for line in axis.get_lines()
        if colour is None or colour in (line.get_color(), line.get_markerfacecolor())
    ]


def has(axis, frame, x, y="estimate", **look):
    """Whether some line of the axis goes through the points of a frame, in their order."""
    return any(
        np.array_equal(found_x, frame[x]) and np.array_equal(found_y, frame[y])
        for found_x, found_y, line in lines(axis)
        if all(getattr(line, f"get_{name}")() == value for name, value in look.items())
    )


def test_the_map_shows_each_measure_in_its_panel(network_points):
    frame = rows(network_points, "tokens_map")
    axes = draw_map(frame).axes
    for axis, panel in zip(axes, ("return", "correlation", "error"), strict=True):
        for name, own in frame[frame["panel"] == panel].groupby("series"):
            assert has(axis, own, "step", marker="None"), (panel, name)
            assert has(axis, own, "step", linestyle="None"), (panel, name)
            low, high = axis.get_ylim()
            assert low < own["estimate"].min()
            assert own["estimate"].max() < high
            for _, row in own.iterrows():
                end = row["low"] if row["low"] > 0 or panel != "error" else 1e-9
                assert (row["step"], round(end, 9), round(row["high"], 9)) in spans(axis)
    assert [axis.get_yscale() for axis in axes] == ["linear", "linear", "log"]
    # Every baseline in its own look, and lines where Assumption 2 and the oracle are.
    for axis, panel in ((axes[0], "return"), (axes[2], "error")):
        for name, own in frame[frame["panel"] == panel].groupby("series"):
            assert has(axis, own, "step", marker=BASELINES[name].marker)
    for axis, level in ((axes[1], 0), (axes[2], 1)):
        assert any(list(y) == [level, level] for _, y, _ in lines(axis)), level
    # A line of no points has its place at the figure's edge, and the layout gives way.
    axes[0].figure.draw_without_rendering()
    assert all(len(x) for axis in axes for x, _, _ in lines(axis))
    shown = [text.get_text() for text in axes[2].figure.legends[0].get_texts()]
    assert shown == ["no baseline", "grpo", "oracle", "minimum variance", "norm-weighted"]


def test_an_interval_that_is_wide_leaves_the_points_in_view(network_points):
    frame = rows(network_points, "tokens_map")
    wide = frame["series"] == "vanilla"
    frame.loc[wide, "low"] = -np.inf
    frame.loc[wide, "high"] = np.inf
    frame.loc[~wide, "low"] = frame["estimate"] / 1e6
    low, high = draw_map(frame).axes[2].get_ylim()
    errors = frame[frame["panel"] == "error"]["estimate"]
    assert errors.min() / 5 < low < errors.min()
    assert errors.max() < high < 5 * errors.max()


@pytest.mark.parametrize("part", PARTS)
def test_intervals_at_infinity_leave_every_panel_its_limits(network_points, part):
    frame = rows(network_points, f"tokens_{part}")
    known = [axis.get_ylim() for axis in PARTS[part](frame).axes]
    drawn = frame["estimate"].notna()
    frame.loc[drawn, "low"], frame.loc[drawn, "high"] = -np.inf, np.inf
    for axis, (low, high) in zip(PARTS[part](frame).axes, known, strict=True):
        assert axis.get_ylim() == pytest.approx((low, high), rel=1)


def test_the_path_is_measured_beside_exact_ascent_and_pl(network_points):
    frame = rows(network_points, "transformer_path")
    left, right = draw_path(frame).axes
    assert (left.get_yscale(), right.get_yscale()) == ("log", "linear")
    gap, pl, bound = (frame[frame["series"] == name] for name in ("gap", "pl", "PL"))
    for axis, own in ((left, gap), (right, pl)):
        assert has(axis, own, "step", "prediction", linestyle="-")
        assert has(axis, own, "step", linestyle="None")
        for _, row in own.iterrows():
            assert (row["step"], round(row["low"], 9), round(row["high"], 9)) in spans(axis)
        low, high = axis.get_ylim()
        assert low < own["estimate"].min()
        assert own["high"].max() < high
    assert has(left, bound, "step", "prediction", linestyle="--")
    assert bound["step"].min() > 0


@pytest.mark.parametrize("budgets", [(16,), (16, 64), (16, 32, 64)])
def test_each_budget_has_a_panel_and_the_prediction_one(network_points, budgets):
    frame = rows(network_points, "tokens_group_size")
    extra = frame[frame["budget"] == 16].assign(budget=32, estimate=lambda f: f["estimate"] + 0.01)
    frame = pd.concat([extra, frame])
    frame = frame[frame["budget"].isin(budgets) | (frame["panel"] == "predicted")]
    *trained, last = draw_group_size(frame).axes
    assert len(trained) == len(budgets)
    for axis, budget in zip(trained, budgets, strict=True):
        assert f"K = {budget}" in axis.get_title(loc="left")
        own = frame[frame["budget"] == budget]
        for step, curve in own.groupby("step"):
            assert has(axis, curve, "group_size", linestyle="None"), step
        assert axis.get_ylim() == trained[0].get_ylim()
        assert axis.get_ylim()[1] > frame["high"].max()
    for name, own in frame[frame["panel"] == "predicted"].groupby("series"):
        assert has(last, own, "group_size", "prediction", label=name)
    shown = [text.get_text() for text in last.figure.legends[0].get_texts()]
    assert shown == ["T = 10", "T = 20", "T = 40"]


def test_bars_are_the_group_sizes_within_five_per_cent(network_points):
    frame = rows(network_points, "tokens_group_size")
    first, *_, last = draw_group_size(frame).axes
    colours = {line.get_label(): line.get_color() for _, _, line in lines(last)}
    # The noise is 1 + |G - 3 - rank|/50: within 5% of the least is G from 0.5 + rank to 5.5 + rank.
    for stage, ends in (("initial", [2, 4]), ("middle", [2, 6]), ("final", [3, 6])):
        bars = [list(x) for x, y, _ in lines(first, colours[stage]) if len(set(y)) == 1]
        assert bars == [ends], stage


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_drawn_where_nothing_was_trained(network_points, part):
    frame = rows(network_points, f"tokens_{part}")
    assert PARTS[part](frame) is not None
    assert PARTS[part](frame.assign(estimate=np.nan, low=np.nan, high=np.nan)) is None
    assert PARTS[part](frame[frame["estimate"].isna()]) is None
    if part != "path":
        panel = {"map": "error", "group_size": "predicted"}[part]
        assert PARTS[part](frame[frame["panel"] != panel]) is None


def test_each_kind_is_drawn_from_its_own_points():
    for on, kind in (("tokens", "prefix policies"), ("transformer", "transformers")):
        for part, draw in PARTS.items():
            picture = PICTURES[f"{on}_{part}"]
            assert picture.source == f"{on}_{part}"
            assert picture.draw is draw
            assert kind in picture.title
            assert kind in picture.alt


def test_points_of_a_run_are_as_these(network_points, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    for module in (learners, suboptimality):
        monkeypatch.setattr(module, "LONG", 100)
    small = learners.Grid((4, 8), (2, 4, 6), 4.0, (2, 4))
    monkeypatch.setitem(learners.GRIDS, "tokens", small)
    suite = Suite("smoke", on="tokens")
    points = []
    for stem in ("optimality", "suboptimality", "group_size"):
        own = {f"tokens_{part}" for part in PARTS}
        points += [point for point in points_of(stem, suite) if point.figure in own]
    frame = run_points(points, Options("smoke"), Store(tmp_path))
    for part, draw in PARTS.items():
        real, made_up = rows(frame, f"tokens_{part}"), rows(network_points, f"tokens_{part}")
        assert set(real["panel"]) == set(made_up["panel"])
        if part != "group_size":
            assert set(real["series"]) == set(made_up["series"])
        for column in ("step", "group_size", "budget", "prediction", "estimate"):
            known = {
                panel: own[column].notna().any() if column in own else False
                for panel, own in real.groupby("panel")
            }
            assert (
                known == made_up.groupby("panel")[column].apply(lambda c: c.notna().any()).to_dict()
            )
        assert draw(real) is not None
