"""Prompts drawn by a law: the draws, their order, their weights, and going on after a stop."""

from __future__ import annotations

import json

import numpy as np
import pytest
from torch.utils.data import DataLoader

from ustat_pg.llm import PromptSampler
from ustat_pg.predictions import rate_law

LAW = [0.7, 0.2, 0.1]


def test_draws_follow_the_law_in_the_order_of_a_trainer() -> None:
    sampler = PromptSampler(LAW, prompts=4, repeat=3, reuse=2, steps=3000, seed=2)
    drawn = np.array([*sampler]).reshape(3000, 2, 4, 3)
    assert len(sampler) == drawn.size
    assert (drawn[:, 0] == drawn[:, 1]).all()
    assert (drawn == drawn[..., :1]).all()
    shares = np.bincount(drawn[:, 0, :, 0].ravel()) / 12_000
    assert np.abs(shares - LAW).max() < 5 * 0.5 / 12_000**0.5
    assert sampler.take(1) == pytest.approx(1 / 3 / 0.2)
    # An epoch gives each prompt once on average; the next epoch is another one.
    short = PromptSampler(LAW, seed=2)
    assert len(short) == 3
    first, second = ([*short] for _ in range(2))
    assert [*PromptSampler(LAW, steps=6, seed=2)] == [*first, *second]


def test_a_loader_with_workers_sees_the_same_prompts() -> None:
    data = [*range(3)]
    seen = [
        [row.tolist() for row in DataLoader(data, 4, sampler=made, num_workers=workers)]
        for workers in (0, 2)
        for made in [PromptSampler(LAW, prompts=4, steps=5, seed=3)]
    ]
    assert seen[0] == seen[1]


def test_a_draw_keeps_its_weight_where_the_law_moves() -> None:
    probs = np.array([0.5, 0.3, 0.2])
    sampler = PromptSampler.by_rates(
        [0, 4, 8], 8, probs=probs, memory=0.5, prompts=3, steps=50, seed=4
    )
    drawing = iter(sampler)
    before = sampler.weights
    first = [next(drawing) for _ in range(3)]
    sampler.update([0, 0], [[1, 1, 0, 1], [0, 0, 0, 0]])
    # Eight failures are worth four, then two; each group of four counts whole.
    law = rate_law([0.5 * 3, 4, 8], [0.5 * (4 + 4) + 4, 8, 8], probs=probs)
    np.testing.assert_allclose(sampler.law, law)
    second = [next(drawing) for _ in range(3)]
    wanted = [*before[first], *sampler.weights[second]]
    assert [sampler.take(index) for index in [*first, *second]] == pytest.approx(wanted)
    with pytest.raises(ValueError, match="no draw whose weight is left"):
        sampler.take(first[0])


def test_it_goes_on_from_a_state() -> None:
    def fresh() -> PromptSampler:
        return PromptSampler.by_rates([0, 4, 8], 8, prompts=2, steps=4, seed=5)

    whole = fresh()
    begin = iter(whole)
    early = [next(begin) for _ in range(4)]
    whole.update([1], [[1.0, 0.0]])
    state = json.loads(json.dumps(whole.state_dict()))
    resumed = fresh()
    resumed.load_state_dict(state)
    assert [*whole][:6] == [*resumed][:6]
    assert [whole.take(index) for index in early] == [resumed.take(index) for index in early]


def changed(**parts: object) -> dict[str, object]:
    return PromptSampler.by_rates([0, 4, 8], 8).state_dict() | parts


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "not one of a PromptSampler"),
        ({"law": LAW}, "not one of a PromptSampler: KeyError: 'step'"),
        (changed(drawn=None), "not one of a PromptSampler"),
        (changed(drawn={"x": [1.0]}), "not one of a PromptSampler"),
        (changed(seen=[[1.0]]), "counts of shape"),
        (changed(step=-1), "step is -1"),
        (PromptSampler(LAW).state_dict(), "has a fixed law: this sampler has a law by rates"),
    ],
)
def test_a_broken_state_is_refused_and_changes_nothing(state, words) -> None:
    sampler = PromptSampler.by_rates([0, 4, 8], 8)
    before = sampler.state_dict()
    with pytest.raises(ValueError, match=words):
        sampler.load_state_dict(state)
    assert sampler.state_dict() == before


def test_an_unknown_prompt_changes_no_counts() -> None:
    sampler = PromptSampler.by_rates([0, 4, 8], 8)
    before = sampler.state_dict()
    with pytest.raises(ValueError, match="index is 7"):
        sampler.update([0, 7], [[1.0], [1.0]])
    assert sampler.state_dict() == before


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: PromptSampler([1.0, 0.0]), "positive entry"),
        (lambda: PromptSampler(LAW, probs=[0.5, 0.5]), "positive entry"),
        (lambda: PromptSampler(LAW, repeat=0), "repeat is 0"),
        (lambda: PromptSampler(LAW).update([0], [[1.0]]), "this law is fixed"),
        (lambda: PromptSampler.by_rates([1], 2).update([0], [[0.5]]), "0 or 1"),
        (lambda: PromptSampler.by_rates([1], 2).update([0, 0], [[1.0]]), "one per index"),
        (lambda: PromptSampler.by_rates([1], 2).update([1], [[1.0]]), "index is 1"),
        (lambda: PromptSampler.by_rates([1], 2, memory=2.0), "memory is 2"),
        (lambda: PromptSampler.by_rates([1, 1], [2, 2, 2]), "rollouts has shape"),
        (lambda: PromptSampler(LAW).load_state_dict(changed()), "has a law by rates"),
        (
            lambda: PromptSampler(LAW).load_state_dict(PromptSampler([1.0]).state_dict()),
            "the state has 1 prompts",
        ),
    ],
)
def test_what_is_refused(call, words) -> None:
    with pytest.raises(ValueError, match=words):
        call()
