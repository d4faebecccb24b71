"""Several rewards of 0 and 1: multiples of gradients against all groups of a small policy; refusals."""

import json
from itertools import product

import numpy as np
import pytest

from tests.support import commands
from tests.support.refusals import refusals
from ustat_pg.cli import main
from ustat_pg.explanations import explain_rewards
from ustat_pg.predictions import count_table

ARMS = np.array([[0, 0, 1], [1, 0, 0], [1, 1, 0], [0, 1, 1], [1, 1, 1], [0, 0, 0], [1, 0, 1]])
"""Three rewards of each answer of a policy with a logit each."""
PROBS = np.array([0.25, 0.2, 0.15, 0.1, 0.12, 0.1, 0.08])
SCORES = np.eye(7) - PROBS
NAMES = ("format", "correct", "short")


def over_deviation(z):
    """Centred, over the sample deviation: nothing where rewards are equal."""
    z = z.round(9)
    spread = np.where(np.ptp(z, axis=-1) == 0, 1.0, z.std(axis=-1, ddof=1))
    return (z - z.mean(axis=-1, keepdims=True)) / spread[..., None]


def over_mean(z):
    """Centred, over the mean: nothing where that is 0."""
    mean = z.mean(axis=-1, keepdims=True)
    return (z - mean) / np.where(mean == 0, 1.0, mean)


def climbed(function, arms, probs, scores, size):
    """E ĝ by all groups of answers, of any function of their rewards, (n, G, K) to (n, G)."""
    groups = np.array([*product(range(len(arms)), repeat=size)])
    terms = function(arms[groups].astype(float))[..., None] * scores[groups]
    return probs[groups].prod(axis=1) @ terms.mean(axis=1)


def gradients(arms, probs, scores, names):
    """P(S) and its gradient by the names of S."""
    found = {}
    for bits in product((1, 0), repeat=len(names)):
        has = (arms >= bits).all(axis=1) * probs
        label = "+".join(name for name, bit in zip(names, bits, strict=True) if bit)
        found[label] = (has.sum(), has @ scores)
    return {label: found[label] for label in found if label}


WAYS = {
    "sum/deviation": lambda w: lambda z: over_deviation(z @ w),
    "each/deviation (GDPO)": lambda w: (
        lambda z: sum(w[k] * over_deviation(z[..., k]) for k in range(len(w)))
    ),
    "sum (RLOO)": lambda w: (
        lambda z: (z @ w - (z @ w).mean(axis=-1, keepdims=True)) * z.shape[1] / (z.shape[1] - 1)
    ),
    "these options": lambda w: lambda z: over_mean(z @ w),
}


@pytest.mark.parametrize("weights", [(1, 1, 1), (0.1, 0.9, 0.3)])
@pytest.mark.parametrize(("rewards", "size"), [(2, 4), (3, 3)])
def test_the_mean_of_all_groups_is_that_sum_of_gradients(weights, rewards, size):
    arms, names, weights = ARMS[:, :rewards], NAMES[:rewards], np.array(weights[:rewards])
    known = gradients(arms, PROBS, SCORES, names)
    rates = {label: rate for label, (rate, _) in known.items()}
    found = explain_rewards(rates, "maxrl", group_size=size, weights=weights)
    assert not found.independent
    assert found.single is None
    assert set(found.multiples) == set(WAYS)
    for way, multiples in found.multiples.items():
        mean = sum(multiples[label] * slope for label, (_, slope) in known.items())
        exact = climbed(WAYS[way](weights), arms, PROBS, SCORES, size)
        np.testing.assert_allclose(mean, exact, atol=1e-10)
    pairs = [label for label in rates if "+" in label]
    assert all(found.multiples["sum (RLOO)"][label] == 0 for label in pairs)
    assert max(abs(found.multiples["sum/deviation"][label]) for label in pairs) > 0.05


def test_where_rewards_stay_independent_each_has_one_multiple():
    """A policy with a logit for each of two rewards."""
    rates, weights = np.array([0.9, 0.2]), np.array([1.0, 0.5])
    arms = np.array([*product((0, 1), repeat=2)])
    probs = np.where(arms, rates, 1 - rates).prod(axis=1)
    found = explain_rewards({"a": 0.9, "b": 0.2}, "trl num_generations=4 reward_weights=1,.5")
    assert found.independent
    assert found.own == "sum/deviation"
    assert found.rates["a+b"] == pytest.approx(0.18)
    for way, multiples in found.single.items():
        mean = [multiples["a"], multiples["b"]] * rates * (1 - rates)
        exact = climbed(WAYS[way](weights), arms, probs, arms - rates, 4)
        np.testing.assert_allclose(mean, exact, atol=1e-10)


def test_gdpo_climbs_each_reward_as_if_it_were_alone_however_they_go_together():
    spec = "verl adv_estimator=gdpo rollout.n=8 gdpo_reward_weights=1,.5"
    table = count_table("std-ddof1", 8)
    for both in (0.12, 0.18, 0.2):
        found = explain_rewards({"a": 0.9, "b": 0.2, "b+a": both}, spec)
        assert found.own == "each/deviation (GDPO)"
        expected = {"a": table.weight(0.9), "b": 0.5 * table.weight(0.2), "a+b": 0.0}
        assert found.multiples[found.own] == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    ("spec", "own"),
    [
        ("trl multi_objective_aggregation=normalize_then_sum", "each/deviation (GDPO)"),
        ("trl scale_rewards=none", "these options"),
        ("ms-swift scale_rewards=gdpo", "each/deviation (GDPO)"),
        ("ms-swift advantage_estimator=rloo", "sum (RLOO)"),
        ("nemo-rl adv_estimator.name=gdpo", "these options"),
        ("trl scale_rewards=batch", None),
        ("skyrl advantage_estimator=maxrl", None),
        ("slime n_samples_per_prompt=8 normalize_advantages=true", None),
    ],
)
def test_the_way_of_the_options_is_told(spec, own):
    assert explain_rewards("a=.5,b=.3", spec, group_size=4).own == own


def test_a_factor_of_the_options_is_in_their_multiples():
    """ms-swift's RLOO over the group's deviation is G/(G-1) times the plain one."""
    rows = "ms-swift advantage_estimator=rloo scale_rewards=group num_generations=4"
    found = explain_rewards("a=.5,b=.3", rows).multiples["sum/deviation"]
    plain = explain_rewards("a=.5,b=.3", "ms-swift num_generations=4").multiples["sum/deviation"]
    assert found == pytest.approx({label: 4 / 3 * w for label, w in plain.items()})


def test_the_command_prints_a_table_or_json(capsys, tmp_path):
    file = tmp_path / "rates.json"
    file.write_text('{"format": 0.9, "correct": 0.2, "format+correct": 0.2}')
    words = ("explain", "trl num_generations=8", "--reward-rates", file, "--weights", ".1,.9")
    text = commands.out_of(capsys, main, *words)
    row = next(line for line in text.splitlines() if line.startswith("  P(format+correct)"))
    assert [float(part) for part in row.split()[1:]] == [0.2, -0.503, 0, 0]
    assert max(map(len, text.splitlines())) <= 100
    found = json.loads(commands.out_of(capsys, main, *words, "--json"))
    assert found["weights"] == {"format": 0.1, "correct": 0.9}
    assert found["multiples"]["sum/deviation"]["format+correct"] == pytest.approx(-0.503, abs=5e-4)
    assert "independent given the prompt" in commands.out_of(
        capsys, main, "explain", "std", "--group-size", "4", "--reward-rates", "a=.5,b=.5"
    )


test_rates_that_are_none_are_refused = refusals(
    ("a=.9", "name 1 rewards: write from 2 to 8"),
    ("a=.9,b=x", "the rate of b is 'x': it must be a number in [0, 1]"),
    ("a=.9,b=1.01", "the rate of b is 1.01"),
    ("a=.9,b=.2,a+b=.5", "the chance of b alone would be -0.3"),
    ("a=.9,b=.2,a+c=.1", "name 'a+c'"),
    ("a=.9,b=.2,a+a=.1", "name 'a+a'"),
    ("a=.9,b=.2,c=.3,a+b=.1", "lack 'b+c'"),
    ("no-such-file", "no-such-file"),
    ([0.5, 0.2], "a rate by each reward's name"),
    of=lambda rates: explain_rewards(rates, "trl"),
    literal=True,
)


test_what_cannot_be_explained_is_refused = refusals(
    ({"estimator": "trl", "weights": "1"}, "write a finite number for each reward: a, b"),
    ({"estimator": "trl", "weights": "1,x"}, "weights are '1,x'"),
    ({"estimator": "trl", "weights": [1, np.inf]}, "finite"),
    ({"estimator": "trl reward_weights=1,2,3"}, "weights are [1.0, 2.0, 3.0]"),
    ({"estimator": []}, "estimator is empty"),
    ({"estimator": "trl", "group_size": 1}, "group size"),
    ({"estimator": "trl", "group_size": 10**4}, "too many to enumerate"),
    ({"estimator": "oracle", "group_size": 4}, "oracle"),
    of=lambda words: explain_rewards("a=.9,b=.2", **words),
    literal=True,
)


def test_pass_rates_beside_several_rewards_are_refused(capsys):
    words = ("explain", "trl", "--reward-rates", "a=.9,b=.2", "--pass-rate", ".2")
    assert "--pass-rate is for one reward" in commands.refusal_of(capsys, main, *words)
