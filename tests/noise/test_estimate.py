"""From sums of steps to an estimate: which steps count, errors, and ends that are not known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ustat_pg.estimate import Estimate
from ustat_pg.jackknife import Means, ratio
from ustat_pg.noise.estimate import estimate_noise, step_sums


def step(rng, prompts, group=4, signal=1.0):
    """A step of groups of some prompts in 20 dimensions, two completions a micro-batch."""
    names, places = np.unique(np.repeat(prompts, group), return_inverse=True)
    v = 0.7 * rng.standard_normal((len(names), 20))[places]
    v = v + rng.standard_normal((len(places), 20))
    v[:, 0] += signal
    h = v.reshape(-1, 2, 20).sum(axis=1)
    return step_sums(h @ h.T, list(places.reshape(-1, 2)))


def drawn_step(rng, strength):
    """Gradients of micro-batches of 1 to 3 completions, and the prompts of these: three groups of four."""
    places = rng.permutation(np.repeat([0, 1, 2], 4))
    parts = np.split(places, np.cumsum([1, 2, 3, 3, 2]))
    means = 0.7 * rng.standard_normal((3, 6))
    h = [(means[own] + rng.standard_normal((len(own), 6))).sum(axis=0) for own in parts]
    strengths = np.outer([len(own) for own in parts], [strength, 0, 0, 0, 0, 0])
    return np.array(h) + strengths, parts, rng.uniform(1, 2, 2)


def by_pairs(steps, given):
    """Noise of a completion, signal, and c1, c2, c3 where G = 4, by least squares over pairs."""
    design, values = [], []
    squares = same = other = whole = total = total_sq = 0.0
    for h, parts, _ in steps:
        for k, m in itertools.product(range(len(parts)), repeat=2):
            alike = sum(x == y for x in parts[k] for y in parts[m])
            rest = len(parts[k]) * len(parts[m]) - alike
            root = math.sqrt(len(parts[k]) * len(parts[m]))
            if k == m:
                squares += h[k] @ h[k]
                same, other = same + alike - len(parts[k]), other + rest
            else:
                design.append([alike / root, rest / root])
                values.append(h[k] @ h[m] / root)
        count = sum(map(len, parts))
        whole, total, total_sq = whole + h.sum(0) @ h.sum(0), total + count, total_sq + count**2
    (beta, gamma), *_ = np.linalg.lstsq(np.array(design), np.array(values))
    alpha = (squares - beta * same - gamma * other) / total
    phi, tau = np.sum([shares for *_, shares in steps], axis=0)
    ratio_ = phi / tau if given is None else given
    tau = alpha / (1 + ratio_ / 3)
    spread = beta / (1 + 1 / 9)
    noise = (whole - gamma * total_sq) / total
    return [noise, gamma, spread - gamma, tau - spread, ratio_ * tau + spread, ratio_]


@pytest.mark.parametrize("given", [1.0, 0.7, None])
@pytest.mark.parametrize(("strength", "seed"), [(2.0, 7), (0.0, 7), (0.0, 11)])
def test_every_field_is_least_squares_over_pairs_of_micro_batches(given, strength, seed):
    """Values, and errors and intervals from the same without each step."""
    rng = np.random.default_rng(seed)
    steps = [drawn_step(rng, strength) for _ in range(10)]
    full = by_pairs(steps, given)
    without = [by_pairs(steps[:t] + steps[t + 1 :], given) for t in range(10)]
    parts = Means(np.array(full), np.array(without), parts="steps")
    sums = np.array([step_sums(h @ h.T, parts, shares) for h, parts, shares in steps])
    squares = np.array([2.0] * 148 + [5.0, 7.0, 9.0] + [1.0] * 149)
    found = estimate_noise(sums, leave_one_out=True, phi_over_tau=given, squares=squares)
    signal = parts.estimate(1, 1.5)
    critical = ratio(parts.apply(lambda m: m[..., :2]), signal.interval)
    numbers = (critical.value, critical.se, *critical.interval)
    of_step = Estimate(*(each / 12 for each in numbers), critical.reason)
    star = ratio(parts.apply(lambda m: m[..., [4, 2]]))
    wanted = {
        "signal": signal,
        "k_crit": critical,
        "noise_to_signal": of_step,
        "budget_over_critical": Estimate(
            1 / of_step.value,
            of_step.se / of_step.value**2,
            1 / of_step.high,
            1 / of_step.low if of_step.low else math.inf,
            of_step.reason,
        ),
        "c1": parts.estimate(2, 1.5),
        "c2": parts.estimate(3),
        "c3": parts.estimate(4),
    }
    for name, each in wanted.items():
        one = getattr(found, name)
        np.testing.assert_allclose(
            [one.value, one.se, *one.interval],
            [each.value, each.se, *each.interval],
            rtol=1e-8,
            err_msg=name,
        )
        assert one.reason == each.reason
    ends = [1 + math.sqrt(end) for end in star.interval]
    root = math.sqrt(star.value)
    np.testing.assert_allclose(
        [found.g_star.value, found.g_star.se, *found.g_star.interval],
        [1 + root, star.se / (2 * root), *ends],
    )
    assert found.phi_over_tau == pytest.approx(full[5])
    assert (found.steps, found.constant_steps, found.lagged_pairs) == (10, 10, 0)
    # The largest three of 300.
    assert found.top_share == pytest.approx(21 / squares.sum())
    assert math.isnan(estimate_noise(sums, squares=squares[:99]).top_share)
    assert math.isnan(found.common.value)
    needed = 10 * (critical.se / (0.3 * critical.value)) ** 2 - 10
    assert found.steps_needed == pytest.approx(max(needed, 0.0) if full[1] > 0 else math.inf)
    # The signal is large, small, and below 0.
    assert (full[1] > 0) == (seed == 7)
    plain = estimate_noise(sums, phi_over_tau=given, squares=squares)
    assert all(math.isnan(getattr(plain, name).value) for name in ("c1", "c2", "c3", "g_star"))
    assert (plain.constant_steps, plain.signal) == (0, found.signal)


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
