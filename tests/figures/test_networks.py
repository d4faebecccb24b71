"""Pictures of networks: each number where it belongs, and none where a run has left none."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("seaborn")

from figures.catalogue import PICTURES
from figures.networks import draw_group_size, draw_map, draw_optimizers, draw_path
from figures.style import BASELINES
from simulations import Suite
from simulations import curves as points_of
from simulations.networks import learners, suboptimality
from tests.support.figures import has, rows, shown, spans
from ustat_pg.experiment import Options, Store, run_points

pytestmark = pytest.mark.usefixtures("look")
PARTS = {"map": draw_map, "path": draw_path, "group_size": draw_group_size}


def measured(axis, frame, y="estimate", x="step", **look):
    """Whether some line of the axis goes through the points of a frame."""
    return has(axis, frame[x], frame[y], **look)


def intervals(frame):
    """The vertical lines that a frame's intervals are."""
    return {
        (row["step"], round(row["low"], 9), round(row["high"], 9))
        for row in frame.to_dict("records")
    }


def test_the_map_shows_each_measure_in_its_panel(network_points):
    frame = rows(network_points, "tokens_map")
    axes = dict(zip(("return", "correlation", "error"), draw_map(frame).axes, strict=True))
    for (panel, name), own in frame.groupby(["panel", "series"]):
        axis = axes[panel]
        assert measured(axis, own, marker="None"), (panel, name)
        assert measured(axis, own, linestyle="None"), (panel, name)
        # Every baseline in its own look.
        assert panel == "correlation" or measured(axis, own, marker=BASELINES[name].marker)
        low, high = axis.get_ylim()
        assert low < own["estimate"].min()
        assert own["estimate"].max() < high
        ends = own["low"].where((own["low"] > 0) | (panel != "error"), 1e-9)
        assert intervals(own.assign(low=ends)) <= spans(axis)
    assert [axis.get_yscale() for axis in axes.values()] == ["linear", "linear", "log"]
    # Lines where Assumption 2 and the oracle are.
    for panel, level in (("correlation", 0), ("error", 1)):
        assert any(list(line.get_ydata()) == [level] * 2 for line in axes[panel].get_lines()), level
    # A line of no points has its place at the figure's edge, and the layout gives way.
    axes["return"].figure.draw_without_rendering()
    assert all(len(line.get_xdata()) for axis in axes.values() for line in axis.get_lines())
    legend = shown(axes["error"].figure.legends[0])
    assert legend == ["no baseline", "grpo", "oracle", "minimum variance", "norm-weighted"]


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
        assert measured(axis, own, "prediction", linestyle="-")
        assert measured(axis, own, linestyle="None")
        assert intervals(own) <= spans(axis)
        low, high = axis.get_ylim()
        assert low < own["estimate"].min()
        assert own["high"].max() < high
    assert measured(left, bound, "prediction", linestyle="--")
    assert bound["step"].min() > 0


@pytest.mark.parametrize("budgets", [(16,), (16, 64), (16, 32, 64)])
def test_each_budget_has_a_panel_and_the_prediction_one(network_points, budgets):
    frame = rows(network_points, "tokens_group_size")
    extra = frame[frame["budget"] == 16].assign(budget=32, estimate=lambda f: f["estimate"] + 0.01)
    frame = pd.concat([extra, frame])
    frame = frame[frame["budget"].isin(budgets) | (frame["panel"] == "predicted")]
    *trained, last = draw_group_size(frame).axes
    for axis, budget in zip(trained, budgets, strict=True):
        assert f"K = {budget}" in axis.get_title(loc="left")
        for step, curve in frame[frame["budget"] == budget].groupby("step"):
            assert measured(axis, curve, x="group_size", linestyle="None"), step
        assert axis.get_ylim() == trained[0].get_ylim()
        assert axis.get_ylim()[1] > frame["high"].max()
    for name, own in frame[frame["panel"] == "predicted"].groupby("series"):
        assert measured(last, own, "prediction", "group_size", label=name)
    assert shown(last.figure.legends[0]) == ["T = 10", "T = 20", "T = 40"]


def test_each_optimizer_has_a_panel_of_baselines_and_of_group_sizes(network_points):
    frame = rows(network_points, "transformer_optimizers")
    axes = draw_optimizers(frame).axes
    for axis, (name, title) in zip(
        axes, {"sgd": "plain SGD", "adam": "Adam", "muon": "Muon"}.items(), strict=True
    ):
        own = frame[frame["panel"] == name]
        assert axis.get_title(loc="left").endswith(title)
        order = ["vanilla", "oracle", "grpo", "group-mean", "std"]
        first = own[own["group_size"] == 4].set_index("series").loc[order].reset_index()
        second = own[own["series"] == "grpo"].sort_values("group_size").reset_index()
        assert measured(axis, first.assign(step=range(5)), linestyle="None")
        assert measured(axis, second.assign(step=range(6, 10)), linestyle="-")
        ticks = [text.get_text() for text in axis.get_xticklabels()]
        assert ticks == ["none", "oracle", "grpo", "mean", "std", "2", "4", "8", "16"]
        assert intervals(first.assign(step=range(5))) <= spans(axis)
        assert axis.get_ylim() == axes[0].get_ylim()
    assert draw_optimizers(frame.assign(estimate=float("nan"))) is None


def test_bars_are_the_group_sizes_within_five_per_cent(network_points):
    first, *_, last = draw_group_size(rows(network_points, "tokens_group_size")).axes
    colours = {line.get_label(): line.get_color() for line in last.get_lines()}
    # The noise is 1 + |G - 3 - rank|/50: within 5% of the least is G from 0.5 + rank to 5.5 + rank.
    for stage, ends in (("initial", [2, 4]), ("middle", [2, 6]), ("final", [3, 6])):
        own = [line for line in first.get_lines() if line.get_color() == colours[stage]]
        level = [list(line.get_xdata()) for line in own if len(set(line.get_ydata())) == 1]
        assert level == [ends], stage


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_drawn_where_nothing_was_trained(network_points, part):
    frame = rows(network_points, f"tokens_{part}")
    assert PARTS[part](frame) is not None
    assert PARTS[part](frame.assign(estimate=np.nan, low=np.nan, high=np.nan)) is None
    assert PARTS[part](frame[frame["estimate"].isna()]) is None
    if part != "path":
        panel = {"map": "error", "group_size": "predicted"}[part]
        assert PARTS[part](frame[frame["panel"] != panel]) is None


@pytest.mark.parametrize(
    ("on", "kind"), [("tokens", "prefix policies"), ("transformer", "transformers")]
)
def test_each_kind_is_drawn_from_its_own_points(on, kind):
    for part, draw in PARTS.items():
        picture = PICTURES[f"{on}_{part}"]
        assert (picture.source, picture.draw) == (f"{on}_{part}", draw)
        assert kind in picture.title
        assert kind in picture.alt


def columns_of(frame):
    """Which columns of each panel have any number."""
    columns = frame.reindex(columns=["step", "group_size", "budget", "prediction", "estimate"])
    return columns.notna().groupby(frame["panel"]).any().to_dict()


def test_points_of_a_run_are_as_these(network_points, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    for module in (learners, suboptimality):
        monkeypatch.setattr(module, "LONG", 100)
    small = learners.Grid((4, 8), (2, 4, 6), 4.0, (2, 4))
    monkeypatch.setitem(learners.GRIDS, "tokens", small)
    # A suite of its own: learners are kept, and what other tests ask of theirs has the full length.
    suite, own = Suite("smoke", 7, on="tokens"), {f"tokens_{part}" for part in PARTS}
    stems = ("optimality", "suboptimality", "group_size")
    points = [p for stem in stems for p in points_of(stem, suite) if p.figure in own]
    frame = run_points(points, Options("smoke"), Store(tmp_path))
    for part, draw in PARTS.items():
        real, made_up = rows(frame, f"tokens_{part}"), rows(network_points, f"tokens_{part}")
        assert set(real["panel"]) == set(made_up["panel"])
        if part != "group_size":
            assert set(real["series"]) == set(made_up["series"])
        assert columns_of(real) == columns_of(made_up)
        assert draw(real) is not None
