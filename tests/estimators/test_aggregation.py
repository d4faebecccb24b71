"""Weights of tokens: by hand, in every array library, and what is refused."""

from itertools import product

import numpy as np
import pytest

from tests.support.arrays import LIBRARIES
from tests.support.refusals import refusals
from ustat_pg.catalogue import catalogue
from ustat_pg.estimators import AGGREGATIONS, advantages, token_weights

# Two prompts with two outputs: of 2 and 1 tokens, and of 3 and none.
LENGTHS = [[2, 1], [3, 0]]
MASK = (np.arange(3) < np.array(LENGTHS)[..., None]).astype(float)
DIVISORS = {
    "sequence-sum": [[4, 4], [4, 4]],
    "constant:5": [[20, 20], [20, 20]],
    "constant:1.5": [[6, 6], [6, 6]],
    "sequence-mean": [[8, 4], [12, 1]],
    "prompt-mean": [[6, 6], [6, 6]],
    "token-mean": [[6, 6], [6, 6]],
    "token-sum": [[1, 1], [1, 1]],
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("how", DIVISORS)
def test_weights_are_one_over_what_the_way_says(how, library):
    xp = pytest.importorskip(library)
    expected = MASK / np.array(DIVISORS[how])[..., None]
    result = token_weights(xp.asarray(MASK), how)
    assert isinstance(result, type(xp.asarray(MASK)))
    assert np.asarray(result) == pytest.approx(expected, abs=1e-15)
    # Minibatches side by side are weighted apart.
    pair = np.stack([MASK, MASK[::-1]])
    both = np.asarray(token_weights(xp.asarray(pair), how))
    assert both == pytest.approx(np.stack([expected, expected[::-1]]), abs=1e-15)


def test_groups_of_unequal_tokens_tell_prompt_and_token_mean_apart():
    mask = (np.arange(3) < np.array([[1, 1], [3, 3]])[..., None]).astype(float)
    assert token_weights(mask, "prompt-mean")[:, 0, 0] == pytest.approx([1 / 4, 1 / 12])
    assert token_weights(mask, "token-mean")[:, 0, 0] == pytest.approx([1 / 8, 1 / 8])


WEIGHS = {
    "sequence-sum": (2, "the score of the whole output"),
    "constant:5": (2, "Every output has the same constant factor"),
    "token-sum": (2, "times the number of outputs"),
    "token-mean": (2, "prompts are weighted by the number of their outputs, for any lengths"),
    "sequence-mean": (2 / 8, "prompts with long outputs get less weight"),
    "prompt-mean": (
        1 / 8,
        "weight of a prompt is about one over the mean length of its outputs, for any number",
    ),
    "micro-token-mean": (1 / 8, "prompts with long outputs get less weight too"),
}
"""How much more a prompt with 4 outputs of 8 tokens weighs than one with 2 of 1 token; the catalogue's words.
A micro-batch is one of the prompts."""


@pytest.mark.parametrize("how", WEIGHS)
def test_prompts_weigh_by_outputs_or_by_tokens_as_the_catalogue_says(how):
    """RLOO at pass rate .3 on all pairs of groups: the mean of each prompt's step, by the gradient of .3."""
    rate, sizes, mask = 0.3, (2, 4), np.zeros((2, 4, 8))
    mask[0, :2, :1] = mask[1] = 1
    weights = token_weights(mask, "prompt-mean" if how.startswith("micro") else how)
    steps = []
    for size, weight in zip(sizes, weights, strict=True):
        groups = np.array([*product((0.0, 1.0), repeat=size)])
        chance = np.where(groups == 1, rate, 1 - rate).prod(axis=1)
        # The score of an output, (z - p)/(p (1 - p)), is the sum of its tokens.
        scores = (groups - rate) / (rate * (1 - rate))
        terms = advantages("grpo", groups) * scores * weight[:size].max(axis=1)
        steps.append(chance @ terms.sum(axis=1))
    more, words = WEIGHS[how]
    assert steps[1] / steps[0] == pytest.approx(more)
    assert words in catalogue().aggregations[how.partition(":")[0]].says


def test_one_prompt_needs_no_axis_and_no_tokens_have_no_weight():
    for how in DIVISORS:
        assert np.array_equal(token_weights(MASK[0], how), token_weights(MASK[:1], how)[0])
        assert (token_weights(np.zeros((2, 2, 3)), how) == 0).all()


def test_the_ways_are_those_of_the_catalogue():
    """A micro-batch is a minibatch of its own, also where steps are added, and a constant rescales a sum."""
    others = {"micro-token-mean", "micro-sequence-mean", "token-sum-over-constant"}
    added = {name for name in catalogue().aggregations if name.startswith("added-")}
    assert {name.removeprefix("added-") for name in added} < {*AGGREGATIONS}
    assert {*AGGREGATIONS, *others, *added} == set(catalogue().aggregations)


test_what_does_not_fit_is_refused = refusals(
    (MASK, "dapo", "aggregation 'dapo' is unknown: choose one of sequence-sum"),
    (MASK, 3, "aggregation 3 is unknown"),
    (MASK, "constant", "constant needs a length after a colon"),
    (MASK, "token-mean:3", "and the others do not have one"),
    (MASK, "constant:0", "its length must be a positive number"),
    (MASK, "constant:long", "its length must be a positive number"),
    (MASK / 2, "token-mean", "zeros and ones"),
    (MASK * 1j, "token-mean", "real numbers"),
    (MASK[0, 0], "token-mean", "last two axes must be outputs and tokens"),
    (MASK[:, :0], "token-mean", "last two axes"),
    ([["1.0"]], "token-mean", "must be an array"),
    of=lambda mask, how: token_weights(mask, how),
)
