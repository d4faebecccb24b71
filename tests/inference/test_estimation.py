"""Constants, the best group size and the critical budget of means, where estimates are 0 or negative."""

import math

import numpy as np
import pytest

from ustat_pg.inference import Means, student
from ustat_pg.inference.constants import best_group_size, constant_estimates, least_budget
from ustat_pg.llm.pool.constants import ConstantsEstimate
from ustat_pg.predictions import critical_budget, paired_constants

FULL = {"c1": 0.02, "c2": 0.31, "c3": 0.47, "vanilla": 0.9, "signal": 0.011}


def means(share=0.01, parts=40, errors=(), **changed):
    """Means whose jackknife values are apart by a share of them, or have these errors, uncorrelated."""
    full = np.array([*(FULL | changed).values()])
    waves = np.cos(np.outer(2 * np.arange(parts) + 1, np.arange(1, 6)) * np.pi / (2 * parts))
    sizes = [*errors, *share * np.abs(full[len(errors) :])]
    return Means(full, full + waves * np.sqrt(2 / (parts - 1)) * np.array(sizes))


def estimate(**changed):
    return ConstantsEstimate.of_means(means(**changed))


@pytest.mark.parametrize("name", ["c1", "c2", "c3", "vanilla"])
def test_a_negative_estimate_counts_as_0_and_is_named(name):
    found = estimate(**{name: -0.003})
    assert found.clipped == (name,)
    predicted = found.predictions()
    for other in ("c1", "c2", "c3", "vanilla"):
        assert getattr(predicted, other) == (0.0 if other == name else FULL[other])
    assert getattr(found, name).value == -0.003
    assert estimate(**{name: 0.0}).clipped == ()
    assert estimate(signal=-1.0).clipped == ()


def test_group_sizes_and_budgets_of_the_estimates():
    found = estimate()
    assert found.g_star.value == pytest.approx(1 + math.sqrt(0.47 / 0.02))
    # c1 + c2 + 2 √(c1 c3) over ‖g‖².
    assert found.k_crit.value == pytest.approx((0.33 + 2 * math.sqrt(0.02 * 0.47)) / 0.011)
    for each in (found.g_star, found.k_crit):
        assert each.low < each.value < each.high < math.inf
    # By the delta method.
    slope = math.sqrt(0.47 / 0.02) / 2 * math.hypot(0.01, 0.01)
    assert found.g_star.se == pytest.approx(slope)
    assert not found.unbounded
    assert estimate(c3=-0.1).g_star.value == 1.0
    clipped = estimate(c2=-0.1)
    assert clipped.k_crit.value == pytest.approx(critical_budget(clipped.predictions(), 0.011))
    for none in (0.0, -0.01):
        assert estimate(c1=none).g_star.value == estimate(c1=none).g_star.high == math.inf
        assert math.isnan(estimate(c1=none).g_star.se)
        assert estimate(signal=none).k_crit.value == math.inf
        assert estimate(c1=none).unbounded
    # With a negative c1 the interval has c1 + c2 without a root.
    assert least_budget(means(c1=-0.02)).interval == pytest.approx(
        least_budget(means(c1=-0.02, c3=-1.0, errors=(0.0002, 0.0031, 0.0047))).interval
    )


def test_ends_of_the_best_group_size_are_where_its_test_just_does_not_reject():
    sure = best_group_size(means(parts=50, c1=0.01, c3=1.0, errors=(0.001, 0.1, 0.05)))
    assert sure.value == pytest.approx(11)
    assert 9 < sure.low < 11 < sure.high < 13
    for end in sure.interval:
        ratio = (end - 1) ** 2
        error = math.sqrt(0.05**2 + ratio**2 * 0.001**2)
        assert abs(1.0 - ratio * 0.01) / error == pytest.approx(student(49), rel=1e-9)


@pytest.mark.parametrize(
    ("c1", "error", "least"), [(0.01, 0.008, 1.0), (-0.002, 0.004, 5.0), (-0.1, 0.004, 1.0)]
)
def test_where_c1_may_be_nothing_the_group_size_has_no_upper_limit(c1, error, least):
    vague = estimate(parts=50, c1=c1, c3=1.0, errors=(error, 0.1, 0.05))
    assert vague.unbounded
    assert vague.g_star.high == math.inf
    assert vague.g_star.low >= least
    assert (vague.g_star.low == 1.0) == (c1 == -0.1)
    assert vague.predictions().c1 == max(c1, 0)


def test_the_frame_has_every_number_and_says_why_an_end_is_not_known():
    found = estimate()
    frame = found.to_frame().set_index("name")
    assert [*frame.index] == [*FULL, "g_star", "k_crit"]
    for name, row in frame.iterrows():
        assert row.drop("reason").tolist() == [*vars(getattr(found, name)).values()][:4]
    assert frame.loc["c1", ["value", "se"]].tolist() == pytest.approx([0.02, 0.0002])
    few = ConstantsEstimate.of_means(means(), hidden="two prompts show it")
    assert (few.c1.high, few.c3.high, few.g_star.low) == (math.inf, math.inf, 1.0)
    assert few.not_known == dict.fromkeys(("c1", "c3"), "two prompts show it")
    assert ConstantsEstimate.of_means(means(), signal=(0.0, 1.0)).signal.interval == (0.0, 1.0)


def test_a_meter_and_a_pool_make_the_same_of_the_same_means():
    """Steps of 8 groups of 4, each group's mean products known: α, β, γ are those that are put in."""
    from ustat_pg.noise.estimate import estimate_noise, step_sums

    alpha, beta, gamma = 5.0, 1.25, 0.25
    rng, steps, columns = np.random.default_rng(0), [], []
    for _ in range(30):
        a, b, c = alpha + rng.normal(), beta + 0.1 * rng.normal(), gamma + 0.02 * rng.normal()
        groups = np.repeat(np.arange(8), 4)
        products = np.where(groups[:, None] == groups, b, c) + (a - b) * np.eye(32)
        steps.append(step_sums(products, list(groups[:, None])))
        columns.append(paired_constants(a, b, c, 4, 0.8))
    found = estimate_noise(np.array(steps), leave_one_out=True, phi_over_tau=0.8).estimates
    full = np.array(columns)
    without = (full.sum(axis=0) - full) / 29
    pool = constant_estimates(Means(full.mean(axis=0), without, parts="steps"))
    for name in ("c2", "c3", "g_star"):
        for one, other in zip([*vars(found[name]).values()][:4], [*vars(pool[name]).values()][:4]):  # noqa: B905
            assert one == pytest.approx(other, rel=1e-9), name
    # The skewness of c1, a square, is known beforehand, and moves its upper end.
    assert found["c1"].value == pytest.approx(pool["c1"].value, rel=1e-9)
    assert found["c1"].high > pool["c1"].high
