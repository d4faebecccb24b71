"""What other estimators' noise is, from completions that one trained on, against enumeration."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from tests.support.refusals import refuses
from ustat_pg.inference import means
from ustat_pg.noise import NoiseMeter
from ustat_pg.noise.completions import alternatives, coefficients, group_blocks
from ustat_pg.noise.estimate import estimate_noise
from ustat_pg.predictions import count_table

GROUP, ARMS = 4, 3
FEATURES = np.array([[[1.0, 0.2], [0.0, 0.7], [-1.0, 0.1]], [[0.8, 0.0], [0.3, 0.3], [-1.0, 1.0]]])
REWARDS = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 1.0]])
LOGITS = FEATURES @ [0.3, -0.2] + [[0.3, -0.2, 0.1], [-0.5, 0.4, 0.0]]
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
SCORES = FEATURES - (PROBS[:, :, None] * FEATURES).sum(axis=1, keepdims=True)
LENGTHS = np.array([2.0, 5.0, 3.0])


def advantages(z, name):
    """By the formulas of papers; ``z`` is (G,)."""
    apart, size = z - z.mean(), len(z)
    if name == "rloo":
        return apart * size / (size - 1)
    if name == "dr-grpo":
        return apart
    if name == "std":
        return apart / (z.std() or 1.0)
    if name == "maxrl":
        return apart / (z.mean() or 1.0)
    if name == "bayes:1,1":
        return np.array([z[i] - (np.delete(z, i).sum() + 1) / (size + 1) for i in range(size)])
    assert name == "vanilla"
    return z


def groups(size):
    """All multisets of arms with their probabilities, prompt by prompt."""
    for x in range(2):
        for arms in itertools.combinations_with_replacement(range(ARMS), size):
            counts = np.bincount(arms, minlength=ARMS)
            ways = math.factorial(size) / math.prod(math.factorial(c) for c in counts)
            yield x, list(arms), 0.5 * ways * math.prod(PROBS[x, list(arms)])


def enumerated(name, size, u):
    """‖E ĝ‖² and K_crit, exactly, of one group's gradient."""
    second, mean = 0.0, np.zeros(2)
    for x, arms, chance in groups(size):
        step = advantages(REWARDS[x, arms], name) @ u[x, arms] / size
        second, mean = second + chance * step @ step, mean + chance * step
    signal = mean @ mean
    return signal, size * (second - signal) / signal


@pytest.mark.parametrize("trained", ["std", "rloo", "bayes:1,1"])
@pytest.mark.parametrize("lengths", [False, True])
def test_expectations_are_those_of_enumeration(trained, lengths):
    """Over all steps of two groups of 4, whatever estimator trained and however scores are weighted."""
    u = SCORES / LENGTHS[:, None] if lengths else SCORES
    steps = []
    for (x, first, p), (y, second, q) in itertools.product(groups(GROUP), repeat=2):
        a = np.concatenate(
            [advantages(REWARDS[x, first], trained), advantages(REWARDS[y, second], trained)]
        )
        rows = a[:, None] * np.concatenate([u[x, first], u[y, second]])
        places = [np.array([i // GROUP]) for i in range(2 * GROUP)]
        steps.append((p * q, group_blocks(rows, places, list(a[:, None]))))
    names = ["rloo", "std", "maxrl", "dr-grpo"] + ["vanilla", "bayes:1,1"] * (
        trained == "bayes:1,1"
    )
    for name, size in itertools.product(names, (2, 3, 4)):
        tables = {GROUP: coefficients(count_table(name, size), GROUP)}
        sums = sum(chance * blocks.sums(tables) for chance, blocks in steps)
        # Groups of the size that the table has, made of the same completions.
        assert sums[8] == pytest.approx(size * sums[11])
        result = estimate_noise(np.stack([sums, sums]))
        signal, crit = enumerated(name, size, u)
        assert result.signal.value == pytest.approx(signal, rel=1e-9), (name, size)
        assert result.k_crit.value == pytest.approx(crit, rel=1e-9), (name, size)
        assert result.noise_to_signal.value == pytest.approx(crit / (2 * GROUP), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "size", "one_success"),
    [("vanilla", 1, [1, 0, 0, 0, 0, 1, 0, 1]), ("grpo", 2, [0.25, 0.25, 0, 0, -0.5, 0.5, -0.5, 2])],
)
def test_beside_all_of_a_group_no_other_is_drawn(name, size, one_success):
    table = coefficients(count_table(name, size), size)
    assert table[1].tolist() == one_success
    assert np.isfinite(table).all()


def test_an_alternative_is_over_the_best_of_the_first_by_a_paired_jackknife():
    """K_crit over that of the first estimator at its best size, by deleting each step."""
    rng, steps = np.random.default_rng(3), []
    for _ in range(8):
        x = rng.integers(2, size=6)
        arms = np.array([rng.choice(ARMS, GROUP, p=PROBS[i]) for i in x])
        a = np.concatenate(
            [advantages(REWARDS[i, row], "std") for i, row in zip(x, arms, strict=True)]
        )
        rows = a[:, None] * np.concatenate([SCORES[i, row] for i, row in zip(x, arms, strict=True)])
        places = [np.array([i // GROUP]) for i in range(6 * GROUP)]
        steps.append(group_blocks(rows, places, list(a[:, None])))
    asked = ["std", "maxrl"], [2, 4]

    def logs(kept):
        return np.log([row.noise.k_crit.value for row in alternatives(kept, *asked)])

    whole = logs(steps)
    without = np.array([logs(steps[:t] + steps[t + 1 :]) for t in range(8)])
    best = int(np.argmin(whole[:2]))
    for place, row in enumerate(alternatives(steps, *asked)):
        assert (row.estimator, row.group_size) == (asked[0][place // 2], asked[1][place % 2])
        apart = whole[place] - whole[best]
        part = without[:, place] - without[:, best]
        wanted = means((apart + 7 * (part.mean() - part))[:, None])
        shift = apart - wanted.full[0]
        low, high = (math.exp(float(end[0]) + shift) for end in wanted.interval())
        found = row.over_best
        assert found.value == pytest.approx(math.exp(apart))
        if place == best:
            assert (found.value, found.se, *found.interval) == (1, 0, 1, 1)
        else:
            assert found.se == pytest.approx(math.exp(apart) * wanted.se[0])
            assert found.interval == pytest.approx((low, high))


def run(trained, steps=40, rewards=REWARDS, part=1, prompts=6, known=False):
    """A plain loop over a policy that stays; the meter knows its layer or its parameter alone."""
    policy = torch.nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        policy.weight.copy_(torch.tensor([[0.3, -0.2]]))
    meter = NoiseMeter(policy if known else policy.parameters(), 100)
    features, offset = torch.as_tensor(FEATURES), torch.as_tensor(LOGITS - FEATURES @ [0.3, -0.2])
    rng = np.random.default_rng(0)
    for _ in range(steps):
        x = rng.integers(2, size=prompts)
        arms = np.array([rng.choice(ARMS, GROUP, p=PROBS[i]) for i in x])
        a = np.array([advantages(rewards[i, row], trained) for i, row in zip(x, arms, strict=True)])
        for rows in np.split(np.arange(prompts * GROUP), range(part, prompts * GROUP, part)):
            own, place = a.ravel()[rows], x[rows // GROUP]
            with meter.micro_batch(rows // GROUP, advantages=own):
                logits = policy(features[place])[..., 0] + offset[place]
                logp = torch.log_softmax(logits, -1)[range(len(rows)), arms.ravel()[rows]]
                (-torch.as_tensor(own) * logp).sum().div(prompts * GROUP).backward()
        meter.step()
        policy.zero_grad()
    return meter


@pytest.mark.parametrize("part", [1, 8])
def test_what_was_trained_has_the_meter_s_own_noise_and_others_that_of_enumeration(part):
    meter = run("std", part=part, known=part > 1)
    result = meter.compare(["std", "rloo", "maxrl"])
    own, rows = meter.estimate(), {(row.estimator, row.group_size): row for row in result}
    assert len(rows) == 9
    for name in ("signal", "k_crit", "noise_to_signal", "budget_over_critical"):
        found, wanted = (getattr(each, name) for each in (rows["std", 4].noise, own))
        assert (found.value, *found.interval) == pytest.approx(
            (wanted.value, *wanted.interval), rel=1e-9
        )
    for (name, size), row in rows.items():
        low, high = row.noise.k_crit.interval
        assert low < enumerated(name, size, SCORES)[1] < high, (name, size)
    assert min(rows["std", size].over_best.value for size in (2, 3, 4)) == 1.0
    # std and rloo are one estimator at G = 2.
    assert rows["std", 2].over_best.value == pytest.approx(rows["rloo", 2].over_best.value)
    low, high = rows["maxrl", 4].over_best.interval
    best = min(enumerated("std", size, SCORES)[1] for size in (2, 3, 4))
    assert low < enumerated("maxrl", 4, SCORES)[1] / best < high
    state, again = json.loads(json.dumps(meter.state_dict())), NoiseMeter(meter._parameters, 100)
    again.load_state_dict(state)
    assert repr(again.compare(["std", "rloo", "maxrl"])) == repr(result)


def test_the_deal_of_completions_to_micro_batches_changes_nothing():
    """One gradient each as it is accumulated; through layers, of 8, of unequal ones, of a whole step."""
    first, *others = (
        run("std", 10, part=part, known=part > 1).compare(["std", "rloo", "maxrl"])
        for part in (1, 8, 5, 24)
    )
    for rows in others:
        for row, wanted in zip(rows, first, strict=True):
            assert row.noise.metrics() == pytest.approx(wanted.noise.metrics(), rel=1e-3)
            assert row.over_best.interval == pytest.approx(
                wanted.over_best.interval, rel=1e-3, nan_ok=True
            )


def test_refusals():
    meter = run("rloo")
    refuses("vanilla gives groups of equal rewards advantages", meter.compare, ["vanilla"])
    refuses("group size is 5: groups have 4", meter.compare, ["std"], [5])
    refuses("give a list of names", meter.compare, "std")
    refuses("no group sizes", meter.compare, ["std"], [])
    refuses("0 steps show.*give NoiseMeter the model", run("rloo", 2, part=2).compare, ["std"])
    refuses("rewards are graded", run("rloo", 2, np.array([[0, 0.3, 1.0]] * 2)).compare, ["std"])
    refuses("completion of advantage 0 shares a micro-batch", run("vanilla", 2).compare, ["std"])
    refuses("2 advantages for 1 completions", meter.begin, [1], advantages=[1.0, 2.0])
    assert run("bayes:1,1").compare(["vanilla"])
