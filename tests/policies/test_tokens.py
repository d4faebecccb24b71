"""Token sequences with a softmax at every prefix, against loops over tokens."""

import numpy as np
import pytest

from tests.support.policies import PREFIX, SPACES, prefixes
from tests.support.refusals import refusals, refuses
from ustat_pg.policies import OutputSpace, PrefixSoftmax, softmax


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


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_every_output_is_listed_once(space):
    result = [tuple(t for t in row if t >= 0) for row in space.outputs.tolist()]
    assert len(result) == space.count == len(set(result))
    assert set(result) == sequences(space)
    assert space.prefixes == len(prefixes(space))
    assert space.lengths.tolist() == [len(row) for row in result]
    for k, row in enumerate(result):
        assert space.content(k) == tuple(t for t in row if t < space.vocabulary)
        ways = [prefixes(space)[n] for n in space.nodes[k] if n >= 0]
        assert ways == [row[:t] for t in range(len(row))]
    assert not space.outputs.flags.writeable


@pytest.mark.parametrize("policy", PREFIX.values(), ids=PREFIX)
def test_token_scores_sum_to_the_score_of_the_output(policy):
    """Log-probabilities and scores add up, and no place's scores have a mean."""
    for x in range(len(policy.probs)):
        logs, scores = policy.space.by_token(np.log(policy.probs[x]), policy.scores(x))
        assert np.exp(logs.sum(axis=1)) == pytest.approx(policy.probs[x])
        assert np.allclose(scores.sum(axis=1), policy.scores(x), rtol=0, atol=1e-13)
        assert np.abs(np.einsum("k,ktd->td", policy.probs[x], scores)).max() < 1e-14
        assert not scores[policy.space.nodes < 0].any()


def test_diameter_is_bounded_if_pairs_do_not_fit(monkeypatch):
    policy = PREFIX["fixed-apart"]
    all_of_them = np.ones((3, 27), bool)
    exact = policy.diameters(all_of_them)
    monkeypatch.setattr(softmax, "GRAM_BYTES", 8 * 27**2 - 1)
    bound = policy.diameters(all_of_them)
    assert (exact <= bound).all()
    assert (bound < 3 * exact).all()
    alone = np.zeros((3, 27), bool)
    alone[:, 0] = True
    assert policy.diameters(alone).tolist() == [0.0] * 3
    refuses("inner products of all pairs of 27 outputs", policy.gram, 0, 0)


def test_the_largest_space_is_quick():
    """10^5 outputs: sparse, and never a table of pairs."""
    policy = PrefixSoftmax.random(OutputSpace(10, 5), 1, seed=0)
    assert policy.space.count == 100_000
    assert policy.probs.sum() == pytest.approx(1, abs=1e-12)
    assert np.abs(policy.combine(0, policy.probs[0])).max() < 1e-12
    assert policy.squared_norms.shape == (1, 100_000)
    refuses(r"scores of 100000 outputs in 111110 parameters need 82", policy.scores, 0)


def test_prompts_that_share_a_table():
    shared = PREFIX["fixed-shared"]
    assert shared.d * 3 == PREFIX["fixed-apart"].d
    assert shared.restrict(np.array([0])).contexts == 1


test_refused = refusals(
    (lambda: OutputSpace(0, 2), "vocabulary is 0"),
    (lambda: OutputSpace(10, 6), "make more outputs than are listed, 100,000"),
    (lambda: OutputSpace(1, 100_000, end=True), "make more outputs"),
    (lambda: OutputSpace(50, 300), "make more outputs"),
    (lambda: PrefixSoftmax(OutputSpace(2, 2), np.ones((1, 3, 3))), r"must be .*\(3, 2\)"),
    (lambda: PrefixSoftmax(OutputSpace(2, 1), np.ones((2, 1, 2)), 2), "2 tables are given"),
)
