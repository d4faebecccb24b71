"""Pairs of neighbouring steps: what moved between them, and what they say of the signal."""

import math

import numpy as np
import pytest
import torch

from benchmarks.lags import window
from ustat_pg.inference import Means
from ustat_pg.noise import NoiseMeter
from ustat_pg.noise.lags import LAGS, Lagged, Trail, combined, line_sums


def moved(optimizer, theta, steps, rates, first):
    """By how much a unit more of the gradient at step ``first`` moves the parameters before each step."""
    ends = []
    for extra in (0.0, 1.0):
        with torch.no_grad():
            theta.zero_()
        made, ends_of = optimizer([theta]), []
        for step in range(steps):
            ends_of.append(float(theta.detach()))
            made.param_groups[0]["lr"] = rates[step]
            theta.grad = torch.full_like(theta, extra * (step == first))
            made.step()
        ends.append(ends_of)
    return np.subtract(*ends)


@pytest.mark.parametrize("memory", [0.0, 0.8])
def test_x_is_how_far_a_steps_own_gradient_moved_the_parameters(memory):
    """Under any schedule of rates, by SGD itself."""
    rates = [0.1, 0.3, 0.0, 0.2, 0.4, 0.1]

    def made(parameters):
        return torch.optim.SGD(parameters, 0.1, momentum=memory)

    theta = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    wanted = [moved(made, theta, 6, rates, first) for first in range(6)]
    optimizer = made([theta])
    trail = Trail(optimizer)
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        trail.next()
        pairs = trail.take(step, 0, np.array([step + 1.0]), 2.0)
        assert pairs[:, 0].tolist() == list(range(step))
        for before, lag, weight, x, product in pairs:
            assert (lag, weight) == (step - before, 4.0)
            assert x == pytest.approx(wanted[int(before)][step])
            assert product == pytest.approx((before + 1) * (step + 1) / 4)


def test_adam_corrects_for_its_beginning():
    """With second moments held still by a large ε, in units of (1-β₁)/ε."""

    def made(parameters):
        return torch.optim.Adam(parameters, betas=(0.9, 0.999), eps=1e6)

    theta = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = made([theta])
    trail = Trail(optimizer)
    for step in range(8):
        optimizer.param_groups[0]["lr"] = 0.5
        trail.next()
        pairs = trail.take(step, 0, np.ones(1), 1.0)
        for before, _, _, x, _ in pairs:
            far = moved(made, theta, 8, [0.5] * 8, int(before))[step]
            assert x == pytest.approx(far * 1e6 / 0.1, rel=1e-5)


@pytest.mark.parametrize(
    "made",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
        torch.optim.Adagrad,
        lambda p: None,
    ],
)
def test_no_pairs_where_the_memory_is_not_known(made):
    trail = Trail(made([torch.nn.Parameter(torch.ones(1))]))
    for step in range(3):
        trail.next()
        assert not len(trail.take(step, 0, np.ones(1), 1.0))


def test_other_draws_and_far_steps_have_no_product():
    trail = Trail(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1, momentum=0.9))
    for step in range(20):
        trail.next()
        pairs = trail.take(step, step // 15, np.ones(1), 1.0)
        assert len(pairs) == min(step % 15 if step >= 15 else step, LAGS)


UNITS, FAR = 12, 3


def drawn_pairs(seed, memory=0.7, at_zero=2.0):
    """Twelve steps, each with pairs of up to three before it, some of which the window has not."""
    rng, taken = np.random.default_rng(seed), []
    # One step was left out, and is in nobody's pairs.
    numbers = [unit for unit in range(UNITS + 1) if unit != 7]
    for unit in numbers:
        lags = np.arange(1, FAR + 1)
        x = (
            (1 - memory**lags) / (1 - memory) * rng.uniform(0.9, 1.1, FAR)
            if memory
            else np.ones(FAR)
        )
        y = at_zero - 0.3 * x + 0.2 * rng.normal(size=FAR)
        taken.append(np.column_stack([unit - lags, lags, rng.uniform(1, 3, FAR), x, y]))
    return Lagged(tuple(numbers), (False,) * UNITS, tuple(taken))


def plain(lagged, within, bump=None):
    """The signal of all steps and without each, how far its two parts differ, and the pairs' residuals."""
    rows = [
        (later, int(before), int(lag), w, x, y)
        for later, own in zip(lagged.units, lagged.pairs, strict=True)
        for before, lag, w, x, y in own
        if before in lagged.units
    ]
    of_lag = {lag: np.mean([row[4] for row in rows if row[2] == lag]) for lag in range(1, FAR + 1)}
    later, before, w, x, y = (
        np.array(each, dtype=float)
        for each in zip(
            *(
                (row[0], row[1], row[3], of_lag[row[2]], row[5] + (place == bump))
                for place, row in enumerate(rows)
            ),
            strict=True,
        )
    )

    def signal(chosen, own):
        there = np.isin(later, chosen) & np.isin(before, chosen)
        root = np.sqrt(w[there])
        design = np.column_stack([root, root * x[there]])
        (height, _), *_ = np.linalg.lstsq(design, root * y[there])
        weight = 1 / np.linalg.inv(design.T @ design)[0, 0] / len(chosen)
        gamma, given = np.nan_to_num(own[0]), own[1]
        return (given * gamma + weight * height) / (given + weight), own[0] - height

    every = np.array(lagged.units)
    full = signal(every, within.full)
    left = range(UNITS) if bump is None else ()
    without = [signal(np.delete(every, k), within.without[k]) for k in left]
    slope = (w * x) @ (y - full[0]) / (w @ x**2)
    return np.array(full), np.array(without), y - full[0] - slope * x


def deviation(without):
    return np.sqrt((UNITS - 1) / UNITS * np.square(without - without.mean()).sum())


@pytest.mark.parametrize("apart", [0.0, 2.45, -2.45, 2.55, -2.55, None])
@pytest.mark.parametrize("joined", [False, True])
def test_pairs_within_steps_and_a_line_over_pairs_between_them_are_one_estimate(apart, joined):
    """Weighted least squares by hand, without each step too; nothing where the two differ, on either side."""
    lagged = drawn_pairs(3)
    if joined:
        # Two steps that are measured as one have a product of their own.
        own = np.array([[5.0, 1.0, 2.0, 1.0, 1.6]])
        pairs = [*lagged.pairs[:5], np.concatenate([lagged.pairs[5], own]), *lagged.pairs[6:]]
        lagged = lagged._replace(pairs=tuple(pairs))
    rng = np.random.default_rng(4)
    without = np.column_stack([0.02 * rng.normal(size=UNITS), rng.uniform(3, 4, UNITS)])
    within = Means(np.array([0.0, without[:, 1].mean()]), without)
    if apart is None:
        within = Means(np.array([np.nan, 0.0]), without * [np.nan, 0.0])
    else:
        # So many errors of the difference from the line.
        full, alone, _ = plain(lagged, within)
        shift = [apart * deviation(alone[:, 1]) - full[1], 0.0]
        within = Means(within.full + shift, without + shift)
    full, alone, residuals = plain(lagged, within)
    sums, pairs = line_sums(lagged)
    found = combined(within, sums, pairs)
    if apart is not None and abs(apart) > 2.5:
        assert found is None
        return
    assert found.full == pytest.approx(full[:1])
    # What a pair adds to the error is counted once; a jackknife counts it for both its steps.
    slopes = [plain(lagged, within, bump)[0][0] - full[0] for bump in range(len(residuals))]
    twice = np.square(slopes * residuals).sum() / deviation(alone[:, 0]) ** 2
    assert twice > 0.02
    shrunk = math.sqrt(max(1 - twice, 0.5))
    assert found.without[:, 0] == pytest.approx(full[0] + shrunk * (alone[:, 0] - full[0]))


def test_pairs_whose_steps_moved_alike_have_no_line():
    lagged = drawn_pairs(3, memory=0.0)
    within = Means(np.array([2.0, 1.0]), np.tile([2.0, 1.0], (UNITS, 1)))
    assert combined(within, *line_sums(lagged)) is None


def results(kind, memory, rate, count=60, before=30):
    return np.array([window(kind, memory, rate, before, seed) for seed in range(count)]).T


@pytest.mark.parametrize(("kind", "rate"), [("adam", 0.03), ("sgd", 0.03)])
def test_the_line_takes_out_what_a_steps_own_noise_did(kind, rate):
    """The mean product is less than half of the signal; the estimate is right, and its interval holds."""
    truth, first, *_, second, _, low, high, common, used = results(kind, 0.9, rate)
    assert used.mean() > 0.9
    assert common.mean() < 0.5 * truth.mean()
    error = (second - truth).std() / 60**0.5
    assert abs((second - truth).mean()) < 3 * error
    assert (second - truth).std() < 0.65 * (first - truth).std()
    assert ((low <= truth) & (truth <= high)).mean() > 0.85


def test_without_memory_pairs_of_steps_tell_nothing_of_the_signal():
    truth, *alone, signal, error, low, high, common, used = results("sgd", 0.0, 0.1, 5)
    assert not used.any()
    np.testing.assert_array_equal(alone, [signal, error, low, high])
    assert common.mean() < 0 < truth.mean()


def test_a_rate_of_0_makes_all_pairs_alike():
    truth, first, *_, second, _, _, _, _, used = results("adam", 0.9, 0.0)
    assert used.mean() > 0.9
    assert (second - truth).std() < 0.4 * (first - truth).std()


def test_steps_that_run_too_fast_are_refused():
    """Parameters that swing: products are on no line, and pairs within steps say so."""
    truth, *_, low, high, _, used = results("sgd", 0.9, 0.3, 40, 60)
    assert used.mean() < 0.3
    assert ((low <= truth) & (truth <= high)).mean() > 0.85


def test_a_meter_takes_them_where_it_knows_the_optimizer():
    """Also of steps of one micro-batch, whose signal is then the line's; and a state goes on."""
    rng, found = np.random.default_rng(1), {}
    draws = rng.standard_normal((40, 2, 30)) + 0.5
    for known in (False, True):
        for parts in (1, 2):
            theta = torch.nn.Parameter(torch.zeros(30))
            optimizer = torch.optim.Adam([theta], 1e-6)
            meter = NoiseMeter([theta], optimizer=optimizer if known else None)
            for step in range(40):
                if step == 20:
                    state = meter.state_dict()
                    meter.load_state_dict(state)
                for part in range(parts):
                    with meter.micro_batch([part]):
                        (theta @ torch.tensor(draws[step, part], dtype=torch.float32)).backward()
                meter.step()
                optimizer.step()
                optimizer.zero_grad()
            found[known, parts] = meter.estimate()
    assert found[True, 2].steps == 40
    assert found[True, 1].steps == 20
    for parts in (1, 2):
        assert found[False, parts].lagged_pairs == 0
        assert found[True, parts].lagged_pairs > 300
    assert found[True, 2].signal.se < found[False, 2].signal.se
    # One prompt for ever: pairs of it alone part nothing.
    assert math.isnan(found[False, 1].signal.value)
    assert found[True, 1].signal.value == pytest.approx(7.5, abs=4 * found[True, 1].signal.se)


def take_step(theta, parts, meter, optimizer, counts=True):
    """A step of some micro-batches."""
    for part in range(parts):
        with meter.micro_batch([part]):
            theta.sum().backward()
    meter.step(counts=counts)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("dropped_by", ["a step that does not count", "a step by itself"])
def test_a_step_that_waits_for_the_next_and_is_dropped_has_no_pairs(dropped_by):
    theta = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([theta], 1e-3, momentum=0.9)
    meter = NoiseMeter([theta], optimizer=optimizer)
    take_step(theta, 1, meter, optimizer)
    if dropped_by == "a step that does not count":
        take_step(theta, 2, meter, optimizer, counts=False)
    take_step(theta, 2, meter, optimizer)
    take_step(theta, 2, meter, optimizer)
    (first, joined, none), (second, _, pairs) = meter.state_dict()["lagged"]
    assert (first, second, joined, none) == (1, 2, False, [])
    assert [pair[:2] for pair in pairs] == [[1, 1]]


def test_pairs_that_tell_nothing_are_not_counted_where_steps_tell_nothing_either():
    """One prompt for ever, and an optimizer without memory: neither parts the signal from the noise."""
    theta = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([theta], 1e-3)
    meter = NoiseMeter([theta], optimizer=optimizer)
    for _ in range(20):
        with meter.micro_batch([0, 0]):
            theta.sum().backward()
        meter.step()
        optimizer.step()
    found = meter.estimate()
    assert math.isnan(found.signal.value)
    assert math.isfinite(found.common.value)
    assert found.lagged_pairs == 0


def test_an_optimizer_that_has_made_steps_is_taken_as_it_is():
    """A monitor may be put on a training that is resumed."""
    theta = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([theta], lr=0.5, betas=(0.9, 0.999))
    for _ in range(200):
        theta.grad = torch.ones(1)
        optimizer.step()
    trail = Trail(optimizer)
    for step in range(3):
        trail.next()
        pairs = trail.take(step, 0, np.ones(1), 1.0)
    # The correction for the beginning is over.
    assert pairs[:, 3] == pytest.approx([0.5 + 0.5 * 0.9, 0.5], rel=1e-5)
