"""Pictures of language models: every number where it belongs, and none where a run has left none."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("seaborn")

from figures import data
from figures.catalogue import PICTURES
from figures.gradient_mse_lm import ERRORS, NOISE, PANELS
from figures.render import ASIDE, draw
from figures.style import LOOKS
from tests.support.figures import has, heights, rows, shown, spans
from tests.support.refusals import refuses

pytestmark = pytest.mark.usefixtures("look")


@pytest.fixture
def errors(language_model_points):
    return rows(language_model_points, "gradient_mse_lm")


@pytest.fixture
def noise(language_model_points):
    return rows(language_model_points, "group_size_lm")


@pytest.fixture
def trained(sweep_folder):
    return rows(data.sweep(sweep_folder), "group_size_lm")


@pytest.fixture
def final(sweep_folder):
    return rows(data.sweep(sweep_folder), "group_size_lm_final")


def bands(axis):
    """The corners of each filled band."""
    return [
        part.get_paths()[0].vertices
        for part in axis.collections
        if len(part.get_paths()) == 1 and len(part.get_paths()[0]) > 4
    ]


def assert_banded(axis, line, colour):
    """A line of that colour, and a band between the ends that its points say, within the axis."""
    assert has(axis, line["group_size"], line["prediction"], color=colour)
    corners = np.concatenate(bands(axis))
    for end in ("pool_low", "pool_high"):
        for x, y in zip(line["group_size"], line[end].clip(*axis.get_ylim()), strict=True):
            assert np.isclose(corners, (x, y), rtol=1e-8).all(axis=1).any(), (x, end)


def test_every_model_has_its_panel_with_lines_bands_and_points(errors):
    axes = draw(PICTURES["gradient_mse_lm"], errors).axes
    for axis, panel in zip(axes, PANELS, strict=True):
        assert panel.title in axis.get_title(loc="left")
        assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
        own = errors[errors["panel"] == panel.of]
        for declared in ERRORS[:6]:
            line, name = own[own["series"] == declared.series], declared.series
            assert_banded(axis, line, LOOKS[name].colour)
            drawn = line[line["estimate"].notna()]
            # Points of baselines at one group size stand side by side.
            x = drawn["group_size"] * ASIDE**declared.aside
            assert drawn.empty or has(axis, x, drawn["estimate"], linestyle="None")
            for ends in zip(x, drawn["low"], drawn["high"], strict=True):
                assert tuple(round(end, 9) for end in ends) in spans(axis)
        # Stand-ins, which crowd another line, have no band.
        assert len(bands(axis)) == 6
        for declared in ERRORS[6:]:
            line, colour = own[own["series"] == declared.series], LOOKS[declared.series].colour
            assert has(axis, line["group_size"], line["prediction"], color=colour), declared


def test_what_reaches_zero_goes_to_the_edge_and_weighted_lines_end_there(errors):
    model = errors["panel"] == "short"
    ends = ["pool_low", "low"]
    plain = model & (errors["series"] == "grpo")
    errors.loc[plain, ends] = -1.0
    weighted = model & (errors["series"] == "norm-weighted") & (errors["group_size"] >= 8)
    errors.loc[weighted, "pool_low"] = 0.1 * errors["prediction"]
    axis = draw(PICTURES["gradient_mse_lm"], errors).axes[-1]
    edge = axis.get_ylim()[0]
    assert edge > errors[model]["prediction"].min() / 2
    assert min(corner[1] for result in bands(axis) for corner in result) > 0
    assert any(low < edge for _, low, _ in spans(axis))
    own = errors[model & ~weighted]
    for name in ("grpo", "norm-weighted"):
        line = own[own["series"] == name]
        assert has(axis, line["group_size"], line["prediction"], color=LOOKS[name].colour)


def test_noise_over_signal_has_a_line_and_a_band_for_each_estimator(language_model_points):
    points = rows(language_model_points, "gradient_mse_lm_noise")
    figure = PICTURES["gradient_mse_lm_noise"]
    for axis, panel in zip(draw(figure, points).axes, PANELS, strict=True):
        own = points[points["panel"] == panel.of]
        for line in NOISE:
            name = line if isinstance(line, str) else line.series
            assert_banded(axis, own[own["series"] == name], LOOKS[name].colour)
        assert len(bands(axis)) == len(NOISE)
    assert draw(figure, points.iloc[:0]) is None


def test_the_noise_has_its_band_and_heavy_lines_within_it(noise):
    (axis,) = draw(PICTURES["group_size_lm"], noise).axes
    for _, own in noise.groupby("series"):
        assert has(axis, own["group_size"], own["prediction"])
        good = own[own["prediction"] <= 1.05]
        assert 0 < len(good) < len(own)
        assert has(axis, good["group_size"], good["prediction"], linewidth=3)
    sampled = noise[noise["estimate"].notna()]
    result = {(low, high) for _, low, high in spans(axis)}
    assert result == heights(sampled)
    # Models at one group size stand side by side.
    assert len({x for x, _, _ in spans(axis)}) == len(sampled)
    assert "base" in shown(axis.get_legend())


def test_a_sweep_adds_a_panel_for_each_budget(noise, trained):
    figure = draw(PICTURES["group_size_lm"], pd.concat([noise, trained], ignore_index=True))
    first, *rest = figure.axes
    assert len(rest) == 2
    for axis, budget in zip(rest, (32, 64), strict=True):
        assert f"K = {budget}" in axis.get_title(loc="left")
        own = trained[(trained["budget"] == budget) & (trained["series"] == "rloo")]
        drawn = [line for line in axis.get_lines() if line.get_linestyle() == "None"]
        assert len(drawn) == own["step"].nunique()
        for line, (_, at) in zip(drawn, own.groupby("step"), strict=True):
            assert np.array_equal(line.get_ydata(), at["estimate"])
        assert {(low, high) for _, low, high in spans(axis)} == heights(own)
        assert axis.get_ylim() == rest[0].get_ylim()
    assert shown(figure.legends[0]) == ["step 20", "step 40"]
    assert has(first, *noise[noise["series"] == "base"][["group_size", "prediction"]].T.to_numpy())


def test_final_accuracies_stand_beside_the_papers_with_the_best_ringed(final):
    axes = draw(PICTURES["group_size_lm_final"], final).axes
    titles = [axis.get_title(loc="left") for axis in axes]
    assert [word in title for word, title in zip(("grpo", "norm", "paper"), titles, strict=True)]
    paper = final[final["panel"] == "paper"]
    assert len(paper) == 6
    for budget, own in paper.groupby("budget"):
        assert has(axes[-1], own["group_size"], own["estimate"], linestyle="None"), budget
        best = own.loc[own["estimate"].idxmax()]
        assert has(axes[-1], [best["group_size"]], [best["estimate"]], markerfacecolor="none")
    assert not spans(axes[-1])
    for axis, trainer in zip(axes, ("rloo", "norm-weighted"), strict=False):
        own = final[(final["panel"] == "final") & (final["series"] == trainer)]
        assert {(low, high) for _, low, high in spans(axis)} == heights(own)
    assert axes[0].get_ylim() == axes[1].get_ylim() != axes[2].get_ylim()


def test_a_damaged_table_is_refused(tmp_path):
    (tmp_path / "sweep").mkdir()
    for text in ("", "a,b\n1,2\n"):
        (tmp_path / "sweep" / "table2.csv").write_text(text)
        refuses("not the table of a sweep", data.sweep, tmp_path)


def test_the_tables_of_a_sweep_are_what_is_read(sweep_folder):
    """The columns are those that the sweep's own functions give."""
    sweep = pytest.importorskip("ustat_pg.llm.trl.results")
    rows = [
        {"trainer": "rloo", "K": 1024, "G": size, "seed": seed, "step": step, "final": step == 40,
         "model": "Qwen2.5-Math-7B", "task": "math",
         "accuracy": 0.4 + step / 400 + seed / 50 + size / 100}
        for size in (4, 8) for seed in (0, 1) for step in (0, 20, 40)
    ]  # fmt: skip
    runs = pd.DataFrame(rows)
    for name, made in (("figure5", sweep.figure5(runs)), ("table2", sweep.table2(runs))):
        stored = pd.read_csv(sweep_folder / "sweep" / f"{name}.csv")
        assert list(made.columns) == list(stored.columns)
        made.to_csv(sweep_folder / "sweep" / f"{name}.csv", index=False)
    result = data.sweep(sweep_folder)
    assert result.groupby("panel").size().to_dict() == {"final": 2, "paper": 2, "trained": 4}
    own = result[result["panel"] == "final"].sort_values("group_size")
    assert own["estimate"].to_list() == pytest.approx([0.55, 0.59])
