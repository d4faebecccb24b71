"""From sums of steps to an estimate: which steps count, errors, and ends that are not known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ustat_pg.noise.estimate import estimate_noise, step_sums


def step(rng, prompts, group=4, signal=1.0):
    """A step of groups of some prompts in 20 dimensions, two completions a micro-batch."""
    names, places = np.unique(np.repeat(prompts, group), return_inverse=True)
    v = 0.7 * rng.standard_normal((len(names), 20))[places]
    v = v + rng.standard_normal((len(places), 20))
    v[:, 0] += signal
    h = v.reshape(-1, 2, 20).sum(axis=1)
    return step_sums(h @ h.T, list(places.reshape(-1, 2)))


def test_a_step_with_two_groups_of_one_prompt_leaves_the_others_their_constants():
    rng = np.random.default_rng(1)
    plain = [step(rng, range(8)) for _ in range(20)]
    doubled = step(rng, [0, 1, 2, 3, 4, 5, 6, 6])
    wanted = estimate_noise(np.array(plain), leave_one_out=True)
    found = estimate_noise(np.array([*plain[:7], doubled, *plain[7:]]), leave_one_out=True)
    assert (found.steps, found.constant_steps) == (21, 20)
    for name in ("c1", "c2", "c3", "g_star"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert math.isfinite(one.value)
        assert (one.value, *one.interval) == pytest.approx(
            (other.value, *other.interval), rel=1e-12
        )
    low, high = wanted.g_star.interval
    assert 1 <= low < wanted.g_star.value < high
    assert wanted.phi_over_tau == 1.0
    assert found.to_frame().set_index("name").loc["c1", "value"] == found.c1.value
    assert found.to_dict()["c1"]["value"] == found.c1.value
    # Its signal and noise count: pairs of one prompt are known as such.
    assert found.signal.value != wanted.signal.value
    assert found.metrics()["constant_steps"] == 20


def test_every_prompt_twice_is_not_taken_for_larger_groups():
    rng = np.random.default_rng(2)
    plain = [step(rng, range(8)) for _ in range(6)]
    twice = [step(rng, [*range(4), *range(4)]) for _ in range(3)]
    found = estimate_noise(np.array([*plain, *twice]), leave_one_out=True)
    wanted = estimate_noise(np.array(plain), leave_one_out=True)
    assert found.constant_steps == 6
    assert found.c3.value == pytest.approx(wanted.c3.value, rel=1e-12)


def test_groups_of_two_sizes_within_a_step_have_no_constants():
    rng = np.random.default_rng(3)
    mixed = [step(rng, [0, 1, 1, 1]) for _ in range(6)]
    found = estimate_noise(np.array(mixed), leave_one_out=True)
    assert math.isnan(found.c1.value)
    assert found.constant_steps == 0
    assert math.isfinite(found.signal.value)


def test_the_error_of_the_signal_is_that_of_a_mean_over_steps():
    rng = np.random.default_rng(4)
    # With one design each step has its own estimate, and the window their mean.
    sums = np.array([step(rng, range(8)) for _ in range(9)])
    alone = [estimate_noise(np.stack([one, one])).signal.value for one in sums]
    found = estimate_noise(sums)
    assert found.signal.value == pytest.approx(np.mean(alone))
    assert found.signal.se == pytest.approx(np.std(alone, ddof=1) / 3)


def test_the_error_of_a_ratio_is_that_of_a_jackknife():
    rng = np.random.default_rng(6)
    sums = np.array([step(rng, range(8), signal=5.0) for _ in range(60)])
    without = [estimate_noise(np.delete(sums, t, axis=0)).k_crit.value for t in range(60)]
    assert estimate_noise(sums).k_crit.se == pytest.approx(np.std(without) * 59**0.5, rel=0.03)


def test_what_one_step_carries_is_said():
    rng = np.random.default_rng(5)
    sums = np.array([step(rng, range(8), signal=5.0 if t == 3 else 0.3) for t in range(20)])
    found = estimate_noise(sums)
    assert found.signal.high == math.inf
    assert found.signal.reason.startswith("1 of 20 steps carry ")
    assert str(found) == f"The signal is not known yet: {found.signal.reason}."
    assert str(found.signal) == f"{found.signal.value:.3g} [{found.signal.low:.3g}, not known]"
    assert "signal_high" not in found.metrics()
    assert not estimate_noise(
        np.array([step(rng, range(8)) for _ in range(20)]), leave_one_out=True
    ).signal.reason


def test_a_signal_may_be_larger_than_symmetric_steps_show():
    """A square of a mean is skewed though 50 steps are not: its upper end is further away."""
    sums = np.array(
        [
            step_sums(np.array([[9.0, p], [p, 9.0]]), [np.array([0]), np.array([1])])
            for p in np.tile([1.0, 2.0, 3.0, 4.0, 5.0], 10)
        ]
    )
    found = estimate_noise(sums)
    low, high = found.signal.interval
    assert high - found.signal.value > 1.05 * (found.signal.value - low)
