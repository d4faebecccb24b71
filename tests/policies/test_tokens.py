"""Token sequences with a softmax at every prefix, against loops over tokens."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest

from ustat_pg.policies import OutputSpace, PrefixSoftmax, TabularSoftmax, tokens
from ustat_pg.validation import InputError

SPACES = {
    "fixed": OutputSpace(3, 3),
    "ended": OutputSpace(2, 3, end=True),
    "one-token": OutputSpace(4, 1),
    "one-or-none": OutputSpace(3, 1, end=True),
    "one-symbol": OutputSpace(1, 3, end=True),
    "one-output": OutputSpace(1, 2),
}
POLICIES = {
    f"{name}-{'shared' if shared else 'apart'}": PrefixSoftmax.random(
        space, 3, seed=4, shared=shared
    )
    for name, space in SPACES.items()
    for shared in (False, True)
}
each = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def sequences(space):
    """All outputs as tuples, by recursion, end token included."""

    def grow(prefix):
        if len(prefix) == space.length:
            yield prefix
            return
        if space.end:
            yield (*prefix, space.vocabulary)
        for token in range(space.vocabulary):
            yield from grow((*prefix, token))

    return set(grow(()))


def prefixes(space):
    """In the order of the table: by length, then by digits."""
    return [
        way
        for t in range(space.length)
        for way in itertools.product(range(space.vocabulary), repeat=t)
    ]


def brute(policy, context):
    """Log-probabilities and dense scores of the outputs, token by token."""
    space = policy.space
    number = {way: n for n, way in enumerate(prefixes(space))}
    table = policy.tables[context if policy.contexts is None else 0]
    logs, scores = [], []
    for row in space.outputs.tolist():
        tokens_ = [t for t in row if t >= 0]
        score, log = np.zeros(policy.tables.shape), 0.0
        for t, token in enumerate(tokens_):
            n = number[tuple(tokens_[:t])]
            chance = np.exp(table[n]) / np.exp(table[n]).sum()
            log += np.log(chance[token])
            block = score[context if policy.contexts is None else 0, n]
            block -= chance
            block[token] += 1
        logs.append(log)
        scores.append(score.ravel())
    return np.array(logs), np.array(scores)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_every_output_is_listed_once(space):
    found = [tuple(t for t in row if t >= 0) for row in space.outputs.tolist()]
    assert len(found) == space.count == len(set(found))
    assert set(found) == sequences(space)
    assert space.prefixes == len(prefixes(space))
    assert space.lengths.tolist() == [len(row) for row in found]
    for k, row in enumerate(found):
        assert space.content(k) == tuple(t for t in row if t < space.vocabulary)
        ways = [prefixes(space)[n] for n in space.nodes[k] if n >= 0]
        assert ways == [row[:t] for t in range(len(row))]
    assert not space.outputs.flags.writeable


@each
def test_against_brute_force(policy):
    generator = np.random.default_rng(8)
    vector = generator.normal(size=policy.d)
    dense = []
    for x in range(3):
        logs, scores = brute(policy, x)
        dense.append(scores)
        count = len(logs)
        assert np.allclose(policy.logits[x], logs, rtol=0, atol=1e-13)
        assert np.allclose(policy.scores(x), scores, rtol=0, atol=1e-14)
        assert np.allclose(policy.squared_norms[x], (scores**2).sum(axis=1), rtol=0, atol=1e-13)
        assert np.allclose(policy.inner(vector)[x], scores @ vector, rtol=0, atol=1e-13)
        weights = generator.normal(size=(2, 2, count))
        assert np.allclose(policy.combine(x, weights), weights @ scores, rtol=0, atol=1e-13)
        assert np.allclose(policy.combine(x, weights[0, 0]), weights[0, 0] @ scores, atol=1e-13)
    for x, y in itertools.product(range(3), repeat=2):
        assert np.allclose(policy.gram(x, y), dense[x] @ dense[y].T, rtol=0, atol=1e-13)
    weights = generator.normal(size=(3, policy.space.count))
    sums = np.stack([w @ s for w, s in zip(weights, dense, strict=True)])
    chance = np.array([0.2, 0.5, 0.3])
    assert np.allclose(policy.mean_combination(weights, chance), chance @ sums, atol=1e-13)
    assert np.allclose(policy.squared_combinations(weights), (sums**2).sum(axis=1), atol=1e-12)
    possible = np.arange(policy.space.count) % 2 == np.zeros((3, 1))
    for which in (possible, np.ones_like(possible)):
        expected = [
            max(np.linalg.norm(s - t) for s in own[w] for t in own[w])
            for own, w in zip(dense, which, strict=True)
        ]
        assert np.allclose(policy.diameters(which), expected, atol=1e-7)


@each
def test_probabilities_sum_to_one_and_scores_to_zero(policy):
    assert np.allclose(np.exp(policy.logits).sum(axis=1), 1.0, rtol=0, atol=1e-14)
    for x in range(3):
        assert np.abs(policy.probs[x] @ policy.scores(x)).max() < 1e-14


@each
def test_scores_are_derivatives(policy):
    step = 1e-5
    scores = np.stack([policy.scores(x) for x in range(3)])
    for i in range(policy.d):
        shift = step * np.eye(policy.d)[i]
        up, down = (policy.with_theta(policy.theta + s).logits for s in (shift, -shift))
        assert np.allclose(scores[..., i], (up - down) / (2 * step), rtol=0, atol=1e-8)


def test_one_token_is_a_tabular_softmax():
    table = np.random.default_rng(0).normal(size=(3, 4))
    policy, plain = PrefixSoftmax(OutputSpace(4, 1), table[:, None]), TabularSoftmax(table)
    assert np.allclose(policy.probs, plain.probs, rtol=1e-14)
    for x in range(3):
        assert np.allclose(policy.scores(x), plain.scores(x), atol=1e-15)


def test_the_bound_of_the_diameter_where_pairs_do_not_fit(monkeypatch):
    policy = POLICIES["fixed-apart"]
    all_of_them = np.ones((3, 27), bool)
    exact = policy.diameters(all_of_them)
    monkeypatch.setattr(tokens, "GRAM_BYTES", 8 * 27**2 - 1)
    bound = policy.diameters(all_of_them)
    assert (exact <= bound).all()
    assert (bound < 3 * exact).all()
    alone = np.zeros((3, 27), bool)
    alone[:, 0] = True
    assert policy.diameters(alone).tolist() == [0.0] * 3
    with pytest.raises(InputError, match="inner products of all pairs of 27 outputs"):
        policy.gram(0, 0)


def test_the_largest_space_is_quick():
    """10^5 outputs: sparse, and never a table of pairs."""
    policy = PrefixSoftmax.random(OutputSpace(10, 5), 1, seed=0)
    assert policy.space.count == 100_000
    assert policy.probs.sum() == pytest.approx(1, abs=1e-12)
    assert np.abs(policy.combine(0, policy.probs[0])).max() < 1e-12
    assert policy.squared_norms.shape == (1, 100_000)
    with pytest.raises(InputError, match=r"scores of 100000 outputs in 111110 parameters need 82"):
        policy.scores(0)


def test_restriction_other_parameters_and_copies():
    for policy in POLICIES.values():
        part = policy.restrict(np.array([2, 1]))
        assert np.array_equal(part.probs, policy.probs[[2, 1]])
        assert np.array_equal(policy.with_theta(policy.theta).probs, policy.probs)
        again = pickle.loads(pickle.dumps(policy))
        assert np.array_equal(again.scores(2), policy.scores(2))
    shared = POLICIES["fixed-shared"]
    assert shared.d * 3 == POLICIES["fixed-apart"].d
    assert shared.restrict(np.array([0])).contexts == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OutputSpace(0, 2), "vocabulary is 0"),
        (lambda: OutputSpace(2, 0), "length is 0"),
        (lambda: OutputSpace(2, 2, end=1), "end is 1"),
        (lambda: OutputSpace(10, 6), "make 1,000,000 outputs: at most 100000"),
        (lambda: OutputSpace(10, 5, end=True), "make 111,111 outputs"),
        (lambda: OutputSpace(1, 100_000, end=True), "make 100,001 outputs"),
        (lambda: OutputSpace(50, 300), r"make about 10\^510 outputs"),
        (lambda: OutputSpace(10**30, 1), "vocabulary is 1000+:"),
        (lambda: OutputSpace(10**9, 1), "make 1,000,000,000 outputs"),
        (lambda: PrefixSoftmax(OutputSpace(2, 2), np.ones((1, 3, 3))), r"must be .*\(3, 2\)"),
        (lambda: PrefixSoftmax(OutputSpace(2, 2), np.ones((3, 2))), "tables has shape"),
        (lambda: PrefixSoftmax(OutputSpace(2, 1), [[[0.0, np.inf]]]), "tables holds inf"),
        (lambda: PrefixSoftmax(OutputSpace(2, 1), np.ones((2, 1, 2)), 2), "2 tables are given"),
        (lambda: PrefixSoftmax.zeros(OutputSpace(2, 1), 0), "contexts is 0"),
    ],
)
def test_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
