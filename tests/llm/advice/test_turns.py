"""Pools of a language model's turns: scores against differentiation, and what is refused."""

import re

import numpy as np
import pytest
import torch

from tests.support.refusals import refuses
from ustat_pg.llm.advice.turns import episode_pool


def score(model, context, completion):
    """∇ Σ log π(token | all before it), by torch alone."""
    ids = torch.tensor([[*context, *completion]])
    logs = model(ids).logits[0, len(context) - 1 : -1].log_softmax(-1)
    value = logs[torch.arange(len(completion)), list(completion)].sum()
    slopes = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    return torch.cat([slope.flatten() for slope in slopes if slope is not None]).double().numpy()


def turns_of(vocabulary, episodes=4, seed=0):
    draw = np.random.default_rng(seed)
    for e in range(episodes):
        context = draw.integers(0, vocabulary, 3).tolist()
        for _ in range(1 + e % 2):
            completion = draw.integers(0, vocabulary, int(draw.integers(1, 4))).tolist()
            yield {
                "prompt": "x",
                "episode": e,
                "context": list(context),
                "completion": completion,
                "reward": float(draw.normal()),
            }
            context += [*completion, 1]


def test_scores_have_the_inner_products_of_differentiation(tiny):
    rows = list(turns_of(len(tiny.tokenizer)))
    d = sum(p.numel() for p in tiny.model.parameters())
    pool = episode_pool(tiny, rows, sketch=d)
    assert pool.reached.tolist() == [[True, False], [True, True], [True, False], [True, True]]
    assert pool.rewards[pool.reached].tolist() == [row["reward"] for row in rows]
    wanted = np.array([score(tiny.model, row["context"], row["completion"]) for row in rows])
    made = pool.scores[pool.reached]
    np.testing.assert_allclose(made @ made.T, wanted @ wanted.T, rtol=1e-4, atol=1e-5)


def test_texts_are_tokenised_and_prompts_are_told_apart(tiny):
    rows = [
        {"prompt": p, "episode": e, "context": "ab", "completion": "c", "reward": 1}
        for e in range(4)
        for p in ("one", "two")
    ]
    pool = episode_pool(tiny, rows, sketch=64)
    assert [len(own) for own in pool.numbers] == [4, 4]
    ids = (
        tiny.tokenizer("ab")["input_ids"],
        tiny.tokenizer("c", add_special_tokens=False)["input_ids"],
    )
    same = episode_pool(
        tiny, [{**row, "context": ids[0], "completion": ids[1]} for row in rows], sketch=64
    )
    np.testing.assert_array_equal(pool.scores, same.scores)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"reward": None}, "turn 0: reward is not an array of numbers"),
        ({"completion": ""}, "turn 0: completion has no tokens"),
        ({"context": []}, "turn 0: context has no tokens"),
        ({"context": "ab" * 5000}, "than the context"),
    ],
)
def test_a_turn_that_cannot_be_scored_is_refused(tiny, change, says):
    row = {"prompt": "x", "episode": 0, "context": "a", "completion": "b", "reward": 1.0}
    refuses(re.escape(says), episode_pool, tiny, [row | change])


def test_missing_entries_and_no_turns_are_refused(tiny):
    refuses("turn 0: episode is missing", episode_pool, tiny, [{"prompt": "x"}])
    refuses("there are no turns", episode_pool, tiny, [])
