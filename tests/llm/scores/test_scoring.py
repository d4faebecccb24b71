"""A pool is scored once: finished prompts are found again, and never mistaken for those of another pool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.models import fresh
from tests.support.pools import ARRAYS, drawn_tokens, same
from tests.support.refusals import refuses
from ustat_pg.llm.pool.estimates import constants, curves
from ustat_pg.llm.pool.scored import ScoredPool, TokenWeights
from ustat_pg.llm.prompts import Prompt, Task
from ustat_pg.llm.rollouts.files import load_rollouts
from ustat_pg.llm.rollouts.stored import Rollouts
from ustat_pg.llm.scores import Scores, scoring
from ustat_pg.llm.scores.scoring import check_memory, score_pool

N = 5


def pool_of(prompts, *, count=N, seed=0):
    """Rollouts that nobody sampled: random tokens and rewards."""
    generator = np.random.default_rng(seed)
    return [
        Rollouts(
            prompt=Prompt(f"prompt {x}", "text"),
            prompt_ids=drawn_tokens(generator, 2, 6),
            completion_ids=tuple(drawn_tokens(generator, 1, 6) for _ in range(count)),
            texts=("",) * count,
            rewards=generator.integers(0, 2, count).astype(float),
        )
        for x in range(prompts)
    ]


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_pool_is_what_differentiation_gives(tiny, tmp_path, on_disk):
    """Norms, products and gradients from scores held at full length."""
    pools = pool_of(7)
    pools[1] = replace(pools[1], rewards=np.ones(N))
    pools[2] = replace(pools[2], rewards=np.array([0.0, 0.5, 1.0, 0.25, 0.0]))
    d = Scores(tiny.model).d
    scores = Scores(tiny.model, method="loop", sketch=d)
    result = score_pool(tiny, pools, sketch=d, out=tmp_path if on_disk else None)
    for x, rollouts in enumerate(pools):
        one = scores.of(rollouts.prompt_ids, rollouts.completion_ids)
        for name in ("scores", "squared_norms", "token_proxy", "surprise", "surprise_variance"):
            expected = getattr(one, name)
            assert np.allclose(
                getattr(result, name)[x], expected, rtol=0, atol=1e-5 * np.abs(expected).max()
            )
        gram = one.scores.astype(float) @ one.scores.T.astype(float)
        assert np.allclose(result.gram[x], gram, rtol=0, atol=1e-5 * gram.max())
        assert result.rewards[x].tolist() == rollouts.rewards.tolist()
        assert result.lengths[x].tolist() == [len(c) for c in rollouts.completion_ids]
    assert result.prompts == tuple(r.prompt.id for r in pools)
    assert result.config["scored_parameters"] == d
    assert not result.gradients[1].any()


@pytest.mark.parametrize("name", ["base", "short"])
def test_a_sketch_adds_little_to_the_errors_of_a_pool(name):
    """A tenth of their own standard errors at most, in sketches of the size that is kept."""
    from ustat_pg.llm.models.loading import load_model
    from ustat_pg.llm.rollouts.stored import sample
    from ustat_pg.llm.tasks.named import load_task

    model, task = load_model(f"embedded:{name}"), load_task(f"embedded:{name}", limit=12)
    rollouts = sample(model, task, 16)
    found = score_pool(model, rollouts)
    exact = score_pool(model, rollouts, sketch=10**6)
    assert found.scores.shape == (12, 16, 4096)
    assert exact.scores.shape[2] == exact.config["scored_parameters"]
    np.testing.assert_array_equal(found.squared_norms, exact.squared_norms)
    one, other = constants(found), constants(exact)
    for what, estimate in other.estimates.items():
        assert abs(one.estimates[what].value - estimate.value) < 0.1 * estimate.se, what
    sizes, names = [2, 8], ["grpo", "norm-weighted", "std"]
    curve, expected = curves(found, sizes, names), curves(exact, sizes, names)
    assert ((curve["mse"] - expected["mse"]).abs() < 0.1 * expected["se"]).all()


@pytest.mark.parametrize("memory", [None, 4 * 10**6])
def test_blocks_that_fit_the_memory_give_the_same_pool(memory):
    from ustat_pg.llm.models.loading import load_model
    from ustat_pg.llm.rollouts.stored import sample
    from ustat_pg.llm.tasks.named import load_task

    model, task = load_model("embedded:base"), load_task("embedded:base", limit=2)
    rollouts = sample(model, task, 16)
    model.model.double()
    whole = score_pool(model, rollouts)
    loop = score_pool(model, rollouts, memory=memory, method="hooks" if memory else "loop")
    for name in ("scores", "squared_norms"):
        expected = getattr(whole, name)
        assert np.abs(getattr(loop, name) - expected).max() < 1e-9 * np.abs(expected).max()


def test_rollouts_that_are_not_the_policys_own_are_noticed(monkeypatch):
    """Temperature 1.1, and end tokens dropped; the policy's own are not."""
    from ustat_pg.llm.models.loading import load_model
    from ustat_pg.llm.rollouts.stored import sample
    from ustat_pg.llm.tasks.named import load_task

    model, task = load_model("embedded:short"), load_task("embedded:short", limit=80)
    own, end = sample(model, task, 32), model.tokenizer.eos_token_id
    ended = [
        replace(
            one,
            completion_ids=tuple(
                c[:-1] if len(c) > 1 and c[-1] == end else c for c in one.completion_ids
            ),
        )
        for one in own
    ]
    plain = model.model.forward

    def warmer(*arguments, **given):
        result = plain(*arguments, **given)
        result.logits = result.logits / 1.1
        return result

    with monkeypatch.context() as patch:
        patch.setattr(model.model, "forward", warmer)
        warm = sample(model, task, 32)
    options = {"parameters": ["*norm*"]}
    z = [score_pool(model, pools, **options).on_policy_z for pools in (own, ended, warm)]
    assert abs(z[0]) < 3
    assert min(z[1:]) > 4


def test_prompts_that_are_scored_at_once_make_the_same_pool(tiny, tmp_path, monkeypatch):
    """As on a GPU: to rounding, in the order that was given, and found again."""
    pools = pool_of(6)
    pools[1] = replace(pools[1], rewards=np.ones(N))
    alone = score_pool(tiny, pools)
    monkeypatch.setattr("ustat_pg.llm.scores.passes._TOKENS", {"cpu": 2**15})
    result = score_pool(tiny, pools, out=tmp_path)
    assert result.prompts == alone.prompts
    for name in ARRAYS:
        if (expected := getattr(alone, name)) is not None:
            largest = np.abs(expected).max()
            np.testing.assert_allclose(getattr(result, name), expected, rtol=0, atol=1e-5 * largest)
    same(result, score_pool(tiny, pools, out=tmp_path))


# Going on after an interruption.


def test_a_pool_takes_the_prompts_of_the_last_one(tiny, tmp_path, scored_prompts):
    """More prompts, fewer and in another order: each is scored once, and none is lost."""
    pools, calls = pool_of(5), []
    for chosen, anew in (([0, 1], 2), ([3, 1, 0], 1), ([1, 4], 1), ([4, 3, 2, 1, 0], 1), ([0], 0)):
        given, config = [pools[place] for place in chosen], {"seed": len(chosen)}
        scored_prompts.clear()
        pool = score_pool(
            tiny, given, out=tmp_path, config=config, progress=lambda *now: calls.append(now)
        )
        assert len(scored_prompts) == anew
        assert calls[-1] == ("scored", len(chosen), len(chosen))
        same(pool, score_pool(tiny, given, config=config))
        same(pool, ScoredPool.load(tmp_path / "scored.npz"))
    assert len(list((tmp_path / "scored").iterdir())) == 5


def test_scores_are_those_of_an_earlier_version():
    from ustat_pg.llm.models.loading import load_model

    data = Path(__file__).parents[2] / "data" / "pools"
    model, before = load_model("embedded:short"), ScoredPool.load(data / "scored.npz")
    rollouts = load_rollouts(data / "rollouts.jsonl", model)
    now = score_pool(model, rollouts, parameters=["*norm*"], sketch=64, config={"seed": 2})
    for name in ARRAYS:
        if (expected := getattr(before, name)) is not None:
            largest = np.abs(expected).max()
            np.testing.assert_allclose(getattr(now, name), expected, rtol=0, atol=1e-5 * largest)
    assert now.config["weights"] == before.config["weights"]


def test_an_interrupted_scoring_goes_on(tiny, tmp_path, monkeypatch, scored_prompts):
    pools = pool_of(6)
    whole = score_pool(tiny, pools)
    scored_prompts.clear()
    counted = Scores.many

    def interrupted(self, asked, **options):
        for made in counted(self, asked, **options):
            if len(scored_prompts) > 3:
                raise KeyboardInterrupt
            yield made

    monkeypatch.setattr(Scores, "many", interrupted)
    with pytest.raises(KeyboardInterrupt):
        score_pool(tiny, pools, out=tmp_path)
    assert len(list((tmp_path / "scored").iterdir())) == 3
    monkeypatch.setattr(Scores, "many", counted)
    first = scored_prompts[:3]
    scored_prompts.clear()
    same(whole, score_pool(tiny, pools, out=tmp_path))
    # The rest, and nothing twice.
    assert sorted(first + scored_prompts) == sorted(rollouts.prompt_ids for rollouts in pools)


@pytest.mark.parametrize("damage", [b"", b"not a prompt", "cut"])
def test_a_damaged_file_is_scored_again(tiny, tmp_path, scored_prompts, damage):
    pools = pool_of(4)
    whole = score_pool(tiny, pools, out=tmp_path)
    file = sorted((tmp_path / "scored").iterdir())[0]
    file.write_bytes(file.read_bytes()[:-1000] if damage == "cut" else damage)
    scored_prompts.clear()
    same(whole, score_pool(tiny, pools, out=tmp_path))
    assert len(scored_prompts) == 1


def other_model(tiny):
    model = fresh(tiny)
    model.model.model.norm.weight.data[3] += 1e-6
    return model


def with_another_completion(rollouts):
    return replace(rollouts, completion_ids=((7, 8), *rollouts.completion_ids[1:]))


CHANGES = {
    "weights": (4, lambda tiny, first: (other_model(tiny), first, {})),
    "parameters": (4, lambda tiny, first: (tiny, first, {"parameters": ["*mlp*"]})),
    "sketch": (4, lambda tiny, first: (tiny, first, {"sketch": 512})),
    "completion": (1, lambda tiny, first: (tiny, with_another_completion(first), {})),
}
"""How many of four prompts are scored anew, and with what model, first prompt and options."""


@pytest.mark.parametrize(("anew", "change"), CHANGES.values(), ids=CHANGES)
def test_other_scores_are_not_mixed_up(tiny, tmp_path, scored_prompts, change, anew):
    pools = pool_of(4)
    first = score_pool(tiny, pools, out=tmp_path)
    model, changed, options = change(tiny, pools[0])
    others = [changed, *pools[1:]]
    scored_prompts.clear()
    result = score_pool(model, others, out=tmp_path, **options)
    assert len(scored_prompts) == anew
    same(result, score_pool(model, others, **options))
    # What was there stays, and serves as before.
    scored_prompts.clear()
    same(first, score_pool(tiny, pools, out=tmp_path))
    assert scored_prompts == []


VERIFIERS = {
    "one": lambda rewards: np.where(np.arange(N) == 2, 1 - rewards, rewards),
    "graded": lambda rewards: np.array([0.0, 0.25, 1.0, 0.5, 0.25]),
    "equal": lambda rewards: np.ones(N),
}


@pytest.mark.parametrize("verifier", VERIFIERS.values(), ids=VERIFIERS)
def test_another_verifier_scores_nothing_anew(tiny, tmp_path, scored_prompts, verifier):
    pools = pool_of(4)
    first = score_pool(tiny, pools, out=tmp_path)
    anew = [replace(one, rewards=verifier(one.rewards)) for one in pools]
    expected = score_pool(tiny, anew)
    scored_prompts.clear()
    same(expected, score_pool(tiny, anew, out=tmp_path))
    same(first, score_pool(tiny, pools, out=tmp_path))
    assert scored_prompts == []


def test_rewards_by_which_weights_are_clipped_are_no_others(tiny, tmp_path):
    """With the sign of the advantage the score itself changes."""
    pools = [
        replace(one, log_probs=tuple((-9.0,) * len(ids) for ids in one.completion_ids))
        for one in pool_of(2)
    ]
    anew = [replace(one, rewards=1 - one.rewards) for one in pools]
    how = {"token_weights": TokenWeights(clip=0.2)}
    first = score_pool(tiny, pools, out=tmp_path, **how)
    second = score_pool(tiny, anew, out=tmp_path, **how)
    same(second, score_pool(tiny, anew, **how))
    assert not np.array_equal(first.squared_norms, second.squared_norms)


def test_files_made_by_other_code_are_not_found(tiny, tmp_path, monkeypatch, scored_prompts):
    pools = pool_of(2)
    score_pool(tiny, pools, out=tmp_path)
    monkeypatch.setattr(scoring, "source_digest", lambda file: "another")
    score_pool(tiny, pools, out=tmp_path)
    assert len(scored_prompts) == 4


# What cannot be done is refused before anything is sampled.


def task_of(*texts, longest):
    prompts = tuple(Prompt(f"p{i}", text, {}) for i, text in enumerate(texts))
    return Task("own", prompts, lambda prompts, completions, **_: [0.0] * len(prompts), longest)


def test_memory_is_asked_for_the_longest_that_may_come(tiny):
    """It is checked for the longest prompt and completion, up to the context."""
    short, long = task_of("1+1=", longest=8), task_of("1+1=", "1" * 60, longest=64)
    check_memory(tiny, long, memory=10**7)
    scores = Scores(tiny.model)
    scores.require(60, 64)
    least = scores.room.bounds[60, 64] + 4 * scores.sketch
    check_memory(tiny, short, memory=least * 8 // 7)
    text = "completions of 64 tokens after a prompt of 60 take"
    refuses(text, check_memory, tiny, long, memory=least)
    refuses("completions of 196 tokens after a prompt of 60", check_memory, tiny,
            task_of("1" * 60, longest=9999), memory=least)  # fmt: skip


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
        (lambda p: [cut(p[0], 3)], "prompt 'prompt 0' has 3 rollouts .* at least 4"),
        (lambda p: [p[0], cut(p[1], 4)], "prompt 'prompt 1' has 4 rollouts and 'prompt 0' 5"),
    ],
)
def test_bad_rollouts_are_refused(tiny, spoil, message):
    refuses(message, score_pool, tiny, spoil(pool_of(2)))


def test_a_prompt_that_cannot_be_written_whole_is_not_there(tiny, tmp_path, monkeypatch):
    def torn(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", torn)
    refuses("cannot be saved: No space left on device", score_pool, tiny, pool_of(2), out=tmp_path)
    assert list((tmp_path / "scored").iterdir()) == []
