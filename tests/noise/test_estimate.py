"""From sums of steps to an estimate: which steps count, errors, and ends that are not known."""

import itertools
import math

import numpy as np
import pytest

from ustat_pg.inference import Means, ratio
from ustat_pg.inference.estimate import Estimate
from ustat_pg.noise.estimate import Law, estimate_noise, noise_and_signal, step_sums
from ustat_pg.predictions import group_size_advice, mse_constants
from ustat_pg.problems import load_problem
from ustat_pg.validation import InputError


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
    return np.array(h) + strengths, parts


def by_pairs(steps, given):
    """Noise of a completion, signal, and c1, c2, c3 where G = 4, by least squares over pairs."""
    design, values = [], []
    squares = same = other = whole = total = total_sq = 0.0
    for h, parts in steps:
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
    tau = alpha / (1 + given / 3)
    spread = beta / (1 + 1 / 9)
    noise = (whole - gamma * total_sq) / total
    return [noise, gamma, spread - gamma, tau - spread, given * tau + spread, given]


@pytest.mark.parametrize("given", [1.0, 0.7])
@pytest.mark.parametrize(("strength", "seed"), [(2.0, 7), (0.0, 7), (0.0, 12)])
def test_every_field_is_least_squares_over_pairs_of_micro_batches(given, strength, seed):
    """Values, and errors and intervals from the same without each step."""
    rng = np.random.default_rng(seed)
    steps = [drawn_step(rng, strength) for _ in range(10)]
    full = by_pairs(steps, given)
    without = [by_pairs(steps[:t] + steps[t + 1 :], given) for t in range(10)]
    parts = Means(np.array(full), np.array(without), parts="steps")
    sums = np.array([step_sums(h @ h.T, parts) for h, parts in steps])
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


def without_replacement(size, whole):
    """Sums of every step of two of three prompts in groups, with probabilities; ‖g‖², c1 and the noise."""
    rates = np.array([0.2, 0.5, 0.9])
    along = np.array([[3.0, 0.5], [2.0, -2.0], [6.0, 1.5]])
    # Of a binary output z the score is (z - p) u and the reward z: g(x) = p (1-p) u.
    steps, weights, squares = [], [], 0.0
    for pair in itertools.permutations(range(3), 2):
        for z in itertools.product((0.0, 1.0), repeat=2 * size):
            z = np.array(z).reshape(2, size)
            p = rates[list(pair), None]
            weight = np.prod(np.where(z == 1, p, 1 - p)) / 6
            own = (z - z.mean(axis=1, keepdims=True)) * size / (size - 1)
            each = (own * (z - p))[..., None] * along[list(pair), None]
            # Whole groups, or the first of each together and the others alone.
            rest = each[:, 1:].reshape(-1, 2)
            rows = each.sum(axis=1) if whole else np.vstack([each[:, 0].sum(axis=0), rest])
            alone = [[x] for x in pair for _ in range(size - 1)]
            names = [[x] * size for x in pair] if whole else [list(pair), *alone]
            steps.append(step_sums(rows @ rows.T, [np.array(name) for name in names]))
            weights.append(weight)
            squares += weight * np.square(each.mean(axis=(0, 1))).sum()
    gradients = (rates * (1 - rates))[:, None] * along
    signal = float(np.square(gradients.mean(axis=0)).sum())
    between = float(np.square(gradients).sum(axis=1).mean()) - signal
    mean = np.average(steps, axis=0, weights=weights)
    return mean, signal, between, 2 * size * (squares - signal)


@pytest.mark.parametrize("size", [2, 3])
def test_prompts_of_shuffled_epochs_have_the_signal_of_all(size):
    """In every order and with every output, by their probabilities."""
    mean, signal, between, noise = without_replacement(size, whole=False)
    found = noise_and_signal(mean, Law(3, size))
    np.testing.assert_allclose(found, [noise, signal], rtol=1e-12)
    apart = noise_and_signal(mean)[1]
    assert apart == pytest.approx(signal - between / 2, rel=1e-12)
    assert Law(3, size).slack(mean) == 0


def test_where_no_prompt_is_in_two_micro_batches_the_signal_is_bounded():
    mean, signal, between, _ = without_replacement(3, whole=True)
    law = Law(3, 3)
    apart = noise_and_signal(mean, law)[1]
    assert apart == pytest.approx(signal - between / 2, rel=1e-12)
    assert between / 2 <= law.slack(mean)
    assert Law(None, 3).slack(mean) == 0
    rng = np.random.default_rng(0)
    steps = mean * (1 + 0.05 * rng.standard_normal((12, 1)))
    free, bound = (estimate_noise(steps, population=number) for number in (None, 3))
    assert bound.signal.high == pytest.approx(free.signal.high + law.slack(steps.mean(axis=0)))
    assert bound.k_crit.low < free.k_crit.low
    assert (bound.signal.low, bound.k_crit.high) == (free.signal.low, free.k_crit.high)


@pytest.mark.parametrize("whole", [False, True])
def test_intervals_hold_in_shuffled_epochs_of_a_small_set(whole):
    """60 prompts, whose spread is 20 times the signal, by steps of 15, also by pairs of steps."""
    held = np.array(list(epochs_of(60, whole, range(60))))
    assert held[:, 0].mean() >= 0.9
    assert held[:, 1].mean() >= 0.9
    # Taken for independent ones they miss.
    assert held[:, 2].mean() <= 0.6


def epochs_of(prompts, whole, seeds, group=4, each=15, steps=40):
    """Whether the intervals of the signal and K_crit hold the truth, and those of independent prompts."""
    rng = np.random.default_rng(1)
    rates = rng.uniform(0.2, 0.8, prompts)
    along = rng.normal(size=(prompts, 6)) + 0.25
    gradients = (rates * (1 - rates))[:, None] * along
    signal = float(np.square(gradients.mean(axis=0)).sum())
    squares = np.square(along).sum(axis=1)
    v = rates * (1 - rates)
    c1 = float(np.square(gradients).sum(axis=1).mean()) - signal
    # z (1-z) of the output alone: E (z-p)⁴ and V².
    tau = squares * v * (1 - 3 * v)
    c2, c3 = (
        float((tau - v**2 * squares).mean()),
        float((v * v * squares + v**2 * squares).mean()),
    )
    noise = group * c1 * (prompts - each) / (prompts - 1) + c2 + c3 / (group - 1)
    for seed in seeds:
        rng, order, sums = np.random.default_rng([5, seed]), [], []
        for _ in range(steps):
            order = order or rng.permutation(prompts).tolist()
            now, order = order[:each], order[each:]
            z = (rng.random((each, group)) < rates[now, None]).astype(float)
            own = (z - z.mean(axis=1, keepdims=True)) * group / (group - 1)
            rows = (own * (z - rates[now, None]))[..., None] * along[now, None]
            flat = rows.sum(axis=1) if whole else rows.reshape(-1, 6)
            names = np.repeat(now, group).reshape(each if whole else each * group, -1)
            sums.append(step_sums(flat @ flat.T, list(names)))
        found, free = (estimate_noise(np.array(sums), population=x) for x in (prompts, None))
        critical = noise / signal
        yield [
            found.signal.low <= signal <= found.signal.high,
            found.k_crit.low <= critical <= found.k_crit.high,
            free.k_crit.low <= critical <= free.k_crit.high,
        ]


def test_a_training_decides_on_a_group_size_as_surely_as_its_intervals_allow():
    """By the exact constants of a bandit the size costs no more than is said, less after more steps."""
    made, budget = load_problem("ustat:skewed"), 48
    moments = made.moments()
    exact, phi = mse_constants(moments), moments.reward_variance * moments.fisher_trace
    ratio = moments.context_probs @ phi / (moments.context_probs @ moments.norm_squared_advantage)
    rng, worst = np.random.default_rng(14), []
    for steps in (20, 120):
        sums = []
        for _ in range(steps):
            drawn = made.sample(rng, 8, 6)
            apart = (drawn.rewards - drawn.rewards.mean(axis=1, keepdims=True)) * 8 / 7
            rows = (apart[..., None] * drawn.scores).reshape(24, 2, -1).sum(axis=1)
            sums.append(step_sums(rows @ rows.T, list(np.repeat(np.arange(6), 8).reshape(24, 2))))
        found = estimate_noise(np.array(sums), leave_one_out=True, phi_over_tau=float(ratio))
        decided = found.decide(budget)
        size = decided.group_size
        least, most = decided.not_ruled_out
        assert least <= group_size_advice(exact, budget).group_size <= most
        assert least <= size <= most
        errors = {row.group_size: row.mse for row in group_size_advice(exact, budget).table}
        assert errors[size] / min(errors.values()) <= decided.worst
        worst.append(decided.worst)
    assert worst[0] > worst[1]
    bare = estimate_noise(np.array(sums))
    with pytest.raises(InputError, match="c1, c2 and c3 are not known: 0 steps show them"):
        bare.decide(budget)
