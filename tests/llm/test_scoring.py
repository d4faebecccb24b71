"""A pool is scored once: folds are found again, and never mistaken for those of another pool."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from tests.support.models import fresh
from tests.support.pools import same
from tests.support.refusals import refuses
from ustat_pg.llm import scoring
from ustat_pg.llm.models import LanguageModel
from ustat_pg.llm.rollouts import Rollouts
from ustat_pg.llm.scored import ScoredPool
from ustat_pg.llm.scores import Scores
from ustat_pg.llm.scoring import score_pool
from ustat_pg.llm.tasks import Prompt
from ustat_pg.memory import ChunkWarning

N = 5


def pool_of(prompts, *, count=N, seed=0):
    """Rollouts that nobody sampled: random tokens and rewards."""
    generator = np.random.default_rng(seed)

    def tokens(low, high):
        return tuple(generator.integers(2, 60, generator.integers(low, high)).tolist())

    return [
        Rollouts(
            prompt=Prompt(f"prompt {x}", "text"),
            prompt_ids=tokens(2, 6),
            completion_ids=tuple(tokens(1, 6) for _ in range(count)),
            texts=("",) * count,
            rewards=generator.integers(0, 2, count).astype(float),
        )
        for x in range(prompts)
    ]


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_pool_is_what_differentiation_gives(tiny, tmp_path, on_disk):
    """Every Gram matrix, and the folds' inner products from gradients held at full length."""
    pools = pool_of(7)
    found = score_pool(tiny, pools, folds=3, out=tmp_path if on_disk else None)
    loop = Scores(tiny.model, method="loop")
    sums = torch.zeros(3, loop.d, dtype=torch.float64)
    assert np.bincount(found.folds).tolist() == [3, 2, 2]
    for x, (rollouts, fold) in enumerate(zip(pools, found.folds, strict=True)):
        z = rollouts.rewards
        weights = [z[i] - np.delete(z, i).mean() for i in range(N)]
        one = loop.of(rollouts.prompt_ids, rollouts.completion_ids, weights)
        sums[fold] += one.gradient.double()
        assert np.allclose(found.gram[x], one.gram, rtol=0, atol=1e-5 * one.gram.max())
        assert np.allclose(found.token_proxy[x], one.token_proxy, rtol=1e-5)
        assert found.lengths[x].tolist() == [len(c) for c in rollouts.completion_ids]
    expected = (sums @ sums.T).numpy()
    assert np.allclose(found.fold_gram, expected, rtol=0, atol=1e-5 * expected.max())
    assert found.prompts == tuple(r.prompt.id for r in pools)
    assert found.config["folds"] == 3
    assert found.config["scored_parameters"] == loop.d
    assert isinstance(found, ScoredPool)


def test_reading_in_small_blocks_changes_nothing(tiny, tmp_path):
    pools = pool_of(4)
    whole = score_pool(tiny, pools, folds=4, out=tmp_path)
    folds = [scoring._Fold(*(np.zeros(1),) * 3, path) for path in sorted(tmp_path.iterdir())]
    d = folds[0].size()
    assert d == whole.config["scored_parameters"]
    one, many = scoring._between(folds, 10**9), scoring._between(folds, 32 * 4 * 100)
    assert np.allclose(one, many, rtol=1e-12)
    assert np.allclose(np.sort(np.diag(one)), np.sort(np.diag(whole.fold_gram)), rtol=1e-12)


# Going on after an interruption.


def test_finished_folds_are_not_scored_again(tiny, tmp_path, scored_prompts):
    pools = pool_of(6)
    first = score_pool(tiny, pools, folds=3, out=tmp_path)
    assert len(scored_prompts) == 6
    assert len(list(tmp_path.iterdir())) == 3
    same(first, score_pool(tiny, pools, folds=3, out=tmp_path))
    assert len(scored_prompts) == 6
    same(first, score_pool(tiny, pools, folds=3))
    assert len(scored_prompts) == 12


def test_an_interrupted_scoring_goes_on(tiny, tmp_path, monkeypatch, scored_prompts):
    pools = pool_of(6)
    whole = score_pool(tiny, pools, folds=3)
    scored_prompts.clear()
    counted = Scores.of

    def interrupted(self, *arguments):
        if len(scored_prompts) == 3:
            raise KeyboardInterrupt
        return counted(self, *arguments)

    monkeypatch.setattr(Scores, "of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        score_pool(tiny, pools, folds=3, out=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(Scores, "of", counted)
    scored_prompts.clear()
    same(whole, score_pool(tiny, pools, folds=3, out=tmp_path))
    left = sorted(np.flatnonzero(whole.folds), key=lambda x: whole.folds[x])
    assert scored_prompts == [pools[x].prompt_ids for x in left]


def test_a_fold_that_cannot_be_written_whole_is_not_there(tiny, tmp_path, monkeypatch):
    def torn(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scoring.np, "savez", torn)
    refuses("cannot be kept: No space left on device", score_pool, tiny, pool_of(2), out=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"not a fold", "cut"])
def test_a_damaged_fold_is_scored_again(tiny, tmp_path, scored_prompts, damage):
    pools = pool_of(4)
    whole = score_pool(tiny, pools, folds=2, out=tmp_path)
    file = sorted(tmp_path.iterdir())[0]
    file.write_bytes(file.read_bytes()[:-1000] if damage == "cut" else damage)
    scored_prompts.clear()
    same(whole, score_pool(tiny, pools, folds=2, out=tmp_path))
    assert len(scored_prompts) == 2


def other_model(tiny):
    model = fresh(tiny)
    model.model.model.norm.weight.data[3] += 1e-6
    return model


def with_another_completion(rollouts):
    return replace(rollouts, completion_ids=((7, 8), *rollouts.completion_ids[1:]))


CHANGES = {
    "weights": (2, lambda tiny, first: (other_model(tiny), first, {})),
    "parameters": (2, lambda tiny, first: (tiny, first, {"parameters": ["*mlp*"]})),
    "method": (2, lambda tiny, first: (tiny, first, {"method": "loop"})),
    "rewards": (1, lambda tiny, first: (tiny, replace(first, rewards=1 - first.rewards), {})),
    "completion": (1, lambda tiny, first: (tiny, with_another_completion(first), {})),
}
"""How many of two folds are scored anew, and with what model, first prompt and options."""


@pytest.mark.parametrize(("folds", "change"), CHANGES.values(), ids=CHANGES)
def test_folds_of_other_scores_are_not_mixed_up(tiny, tmp_path, scored_prompts, change, folds):
    pools = pool_of(4)
    first = score_pool(tiny, pools, folds=2, out=tmp_path)
    model, changed, options = change(tiny, pools[0])
    others = [changed, *pools[1:]]
    scored_prompts.clear()
    found = score_pool(model, others, folds=2, out=tmp_path, **options)
    assert len(scored_prompts) == 2 * folds
    same(found, score_pool(model, others, folds=2, **options))
    # What was there stays, and serves as before.
    scored_prompts.clear()
    same(first, score_pool(tiny, pools, folds=2, out=tmp_path))
    assert scored_prompts == []


def test_folds_made_by_other_code_are_not_found(tiny, tmp_path, monkeypatch, scored_prompts):
    pools = pool_of(2)
    score_pool(tiny, pools, out=tmp_path)
    monkeypatch.setattr(scoring, "_code", lambda: "another")
    score_pool(tiny, pools, out=tmp_path)
    assert len(scored_prompts) == 4


def test_progress_counts_prompts(tiny, tmp_path):
    pools, said = pool_of(5), []
    score_pool(tiny, pools, folds=2, out=tmp_path, progress=lambda *pair: said.append(pair))
    assert said == [(k, 5) for k in (1, 2, 3, 4, 5)]
    said.clear()
    score_pool(tiny, pools, folds=2, out=tmp_path, progress=lambda *pair: said.append(pair))
    assert said == [(3, 5), (5, 5)]


# How many folds.


def test_folds_are_fewer_where_their_sums_do_not_fit(tiny, tmp_path):
    pools, each = pool_of(12), 4 * Scores(tiny.model).d
    with pytest.warns(ChunkWarning, match="9 folds of prompts instead of 12: .* raise disk="):
        found = score_pool(tiny, pools, out=tmp_path, disk=9 * each)
    assert found.config["folds"] == len(found.fold_gram) == 9
    disk = 8 * each - 1
    said = rf"disk is {disk} bytes: .* 8 folds .* raise disk="
    refuses(said, score_pool, tiny, pools, out=tmp_path, disk=disk)
    said = rf"memory is {14 * each} bytes, of which one half .* raise memory=, or give a folder"
    refuses(said, score_pool, tiny, pools, memory=14 * each)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(score_pool(tiny, pools, out=tmp_path, disk=12 * each).fold_gram) == 12
        # With fewer prompts than 8, as many folds as prompts are enough.
        assert len(score_pool(tiny, pools[:3], out=tmp_path, disk=3 * each).fold_gram) == 3


def test_sums_in_memory_are_taken_from_the_flag_and_the_message_states_both(tiny):
    each = 4 * Scores(tiny.model).d
    said = f"memory is {8 * each} bytes, {4 * each} of them for sums of gradients: completions of"
    refuses(said, score_pool, tiny, pool_of(4), memory=8 * each)


@pytest.fixture(scope="module")
def half_billion():
    """A model of the size of Qwen2.5-0.5B, without weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    shape |= {"num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True}
    config = Qwen2Config(vocab_size=151_936, **shape)
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config).eval()
    return LanguageModel(model, None, "0.5B", "meta", 1024)


def test_large_models_have_room_unless_told_otherwise(half_billion, tmp_path):
    model = half_billion.model
    # The hooks look at the layers' numbers, which are not there.
    scores = Scores(model, method="loop")
    each = 4 * scores.d
    assert scores.d == sum(p.numel() for p in model.parameters()) > 4.9e8
    on_disk = scoring._room(scores, 500, None, 30, True, scoring.DISK)
    assert on_disk.memory == 6 * each
    assert on_disk.left == 5 * each
    in_memory = scoring._room(scores, 500, None, 8, False, scoring.DISK)
    assert (in_memory.memory, in_memory.left, in_memory.folds) == (16 * each, 8 * each, 8)
    # A few parameters need no more than ever.
    norms = Scores(model, parameters="*norm*", method="loop")
    few = scoring._room(norms, 500, None, 50, False, scoring.DISK)
    assert few.memory == 2**31
    scoring.check_memory(half_billion, 500, method="loop")
    scoring.check_memory(half_billion, 500, method="loop", out=tmp_path / "never made")
    assert not (tmp_path / "never made").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"memory": 2**31}, "memory is 2147483648 bytes, .* 8 folds take"),
        ({"memory": 2**31, "out": "folds"}, "memory is 2147483648 bytes: sums .* raise memory="),
        ({"disk": 2**33, "out": "folds"}, "disk is 8589934592 bytes: .* raise disk="),
        ({"memory": 0}, "memory is 0"),
    ],
)
def test_too_little_room_is_told_without_scoring(half_billion, options, said):
    refuses(said, scoring.check_memory, half_billion, 500, method="loop", **options)


# Which fold.


def dealt(tiny, monkeypatch, prompts, folds):
    """The folds of a pool whose scores nobody computes."""

    def nothing(scores, part, progress):
        count = len(part)
        zeros = np.zeros((count, N))
        return scoring._Fold(np.zeros((count, N, N)), zeros, zeros, np.zeros(1))

    monkeypatch.setattr(scoring, "_score", nothing)
    return score_pool(tiny, pool_of(prompts), folds=folds).folds


def test_standard_errors_do_not_depend_on_the_order_of_the_file(tiny, monkeypatch):
    folds = dealt(tiny, monkeypatch, 400, 20)
    assert set(np.bincount(folds)) == {20}
    kinds = np.repeat([0.0, 1.0, 2.0, 3.0], 100)
    for values in (kinds, kinds.reshape(4, 100).T.ravel()):
        means = np.array([values[folds == fold].mean() for fold in range(20)])
        error, true = means.std(ddof=1) / np.sqrt(20), values.std(ddof=1) / 20
        # Twenty folds tell an error to a sixth; folds of neighbours give 4.5 and 0 times it.
        assert 0.6 < error / true < 1.4
    assert np.array_equal(folds, dealt(tiny, monkeypatch, 400, 20))


def test_one_prompt_and_equal_rewards(tiny):
    (rollouts,) = pool_of(1)
    found = score_pool(tiny, [replace(rollouts, rewards=np.ones(N))])
    assert found.fold_gram.tolist() == [[0.0]]
    assert (np.diag(found.gram[0]) > 0).all()


# Bad input.


def cut(rollouts, count):
    return replace(
        rollouts,
        completion_ids=rollouts.completion_ids[:count],
        texts=rollouts.texts[:count],
        rewards=rollouts.rewards[:count],
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: [], "there are no rollouts"),
        (lambda p: [p[0], cut(p[1], 3)], "prompt 'prompt 1' has 3 rollouts: at least 4"),
        (lambda p: [p[0], cut(p[1], 4)], "prompt 'prompt 1' has 4 rollouts and 'prompt 0' 5"),
        (lambda p: [p[0], p[0]], "prompt 'prompt 0' occurs twice"),
    ],
)
def test_bad_rollouts_are_refused(tiny, spoil, message):
    refuses(message, score_pool, tiny, spoil(pool_of(2)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rewards": np.full(N, np.nan)}, " has rewards"),
        ({"rewards": np.ones(4)}, " has rewards"),
        ({"prompt_ids": (5,) * 300}, " and its longest completion have 30. tokens: .* is 256"),
        ({"prompt_ids": (10**6,)}, ": token 1000000 is not one of the model's"),
    ],
)
def test_a_bad_prompt_is_named(tiny, change, said):
    first, second = pool_of(2)
    refuses(f"prompt 'prompt 1'{said}", score_pool, tiny, [first, replace(second, **change)])


def test_bad_options_are_refused(tiny, tmp_path):
    refuses("folds is 0", score_pool, tiny, pool_of(2), folds=0)
    (tmp_path / "file").write_text("")
    refuses("folds cannot be kept here", score_pool, tiny, pool_of(2), out=tmp_path / "file")
    training = fresh(tiny)
    training.model.train()
    refuses("training mode", score_pool, training, pool_of(2))
