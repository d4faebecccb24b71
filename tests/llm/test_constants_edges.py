"""Constants of a pool where estimates are negative, or reach 0."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

from ustat_pg.llm.constants import ConstantsEstimate, noise_and_signal
from ustat_pg.llm.moments import Means
from ustat_pg.predictions import critical_budget

FULL = {"c1": 0.02, "c2": 0.31, "c3": 0.47, "vanilla": 0.9, "gradient_sq": 0.011}


def estimate(spread=0.01, parts=40, **changed):
    """Constants whose jackknife values are apart by a share of them."""
    full = np.array([*(FULL | changed).values()])
    apart = np.random.default_rng(0).normal(size=(parts, len(full)))
    apart -= apart.mean(axis=0)
    return ConstantsEstimate(Means(full, full + spread * apart * np.abs(full) / parts))


@pytest.mark.parametrize("name", ["c1", "c2", "c3", "vanilla"])
def test_a_negative_estimate_counts_as_0_and_is_named(name):
    found = estimate(**{name: -0.003})
    assert found.clipped == (name,)
    predicted = found.predictions()
    for other in ("c1", "c2", "c3", "vanilla"):
        assert getattr(predicted, other) == (0.0 if other == name else FULL[other])
    assert getattr(found, name) == -0.003
    assert estimate(**{name: 0.0}).clipped == ()
    assert estimate(gradient_sq=-1.0).clipped == ()


def test_group_sizes_and_budgets_of_the_estimates():
    found = estimate()
    assert found.g_star_exact == pytest.approx(1 + math.sqrt(0.47 / 0.02))
    assert found.k_crit == pytest.approx(critical_budget(found.predictions(), 0.011))
    # c1 + c2 + 2 √(c1 c3) over ‖g‖².
    assert found.k_crit == pytest.approx((0.02 + 0.31 + 2 * math.sqrt(0.02 * 0.47)) / 0.011)
    low, high = found.g_star_interval()
    assert low < found.g_star_exact < high < math.inf
    low, high = found.k_crit_interval()
    assert low < found.k_crit < high < math.inf
    assert not found.unbounded
    assert estimate(c3=-0.1).g_star_exact == 1.0
    for none in (0.0, -0.01):
        assert estimate(c1=none).g_star_exact is None
        assert estimate(gradient_sq=none).k_crit is None
        assert estimate(c1=none).g_star_interval()[1] == math.inf
        assert estimate(c1=none).unbounded
    with pytest.raises(AttributeError):
        _ = found.c4


def test_noise_and_signal_of_negative_estimates():
    columns = np.array([[0.02, 0.31, 0.47, 0.9, 0.011], [-0.02, 0.31, 0.47, 0.9, 0.011]])
    noise, signal = noise_and_signal(columns).T
    assert noise == pytest.approx([0.33 + 2 * math.sqrt(0.02 * 0.47), 0.29])
    assert signal.tolist() == [0.011, 0.011]


def test_the_frame_has_every_number():
    found = estimate()
    frame = found.to_frame().set_index("name")
    assert [*frame.index] == [*FULL, "g_star_exact", "k_crit"]
    for name, value in FULL.items():
        row = frame.loc[name]
        assert (row["value"], row["se"]) == (value, found.se(name))
        assert (row["low"], row["high"]) == found.interval(name)
    for name, interval in (
        ("g_star_exact", found.g_star_interval()),
        ("k_crit", found.k_crit_interval()),
    ):
        row = frame.loc[name]
        assert row["value"] == getattr(found, name)
        assert (row["low"], row["high"]) == interval
        assert math.isnan(row["se"])
    assert math.isnan(estimate(c1=-0.1).to_frame().set_index("name").loc["g_star_exact", "value"])
