"""A pool is scored once: finished prompts are found again, and never mistaken for those of another pool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.models import fresh
from tests.support.pools import ARRAYS, drawn_tokens, of_rollouts, same
from tests.support.refusals import refuses
from ustat_pg.llm import scoring
from ustat_pg.llm.estimates import constants, prompt_moments
from ustat_pg.llm.files import load_rollouts
from ustat_pg.llm.pool import ScoredPool
from ustat_pg.llm.prompts import Prompt, Task
from ustat_pg.llm.rollouts import Rollouts
from ustat_pg.llm.scores import Scores
from ustat_pg.llm.scoring import check_memory, score_pool

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
    """Norms, sums and sketches from scores held at full length."""
    pools = pool_of(7)
    pools[1] = replace(pools[1], rewards=np.ones(N))
    pools[2] = replace(pools[2], rewards=np.array([0.0, 0.5, 1.0, 0.25, 0.0]))
    scores = Scores(tiny.model, method="loop")
    result = score_pool(tiny, pools, sketch=scores.d, out=tmp_path if on_disk else None)
    for x, rollouts in enumerate(pools):
        one = scores.of(rollouts.prompt_ids, rollouts.completion_ids, gram=True)
        z = rollouts.rewards
        for name in ("gram", "squared_norms", "token_proxy", "surprise", "surprise_variance"):
            expected = getattr(one, name)
            assert np.allclose(
                getattr(result, name)[x], expected, rtol=0, atol=1e-5 * np.abs(expected).max()
            )
        weights = np.stack([np.ones(N), z - z.mean(), (z - z.mean()) ** 2])
        expected = weights @ one.gram @ weights.T
        assert np.allclose(result.sums[x], expected, rtol=0, atol=1e-5 * expected.max())
        assert result.lengths[x].tolist() == [len(c) for c in rollouts.completion_ids]
        own = (result.sketches[x] ** 2).sum()
        assert own == pytest.approx(expected[1, 1] / (N - 1) ** 2, rel=1e-5, abs=1e-12)
    assert result.prompts == tuple(r.prompt.id for r in pools)
    assert result.config["scored_parameters"] == scores.d
    assert result.config["whole_sums"]
    assert not result.sums[1, 1:].any()


def test_sums_over_lengths_are_what_differentiation_gives(tiny, tmp_path):
    pools = pool_of(4)
    pools[1] = replace(pools[1], rewards=np.ones(N))
    scores = Scores(tiny.model, method="loop")
    result = score_pool(tiny, pools, sketch=scores.d, by_length=True, out=tmp_path)
    plain = score_pool(tiny, pools, sketch=scores.d)
    assert plain.length_sums is None
    for name in ("sums", "sketches"):
        expected = getattr(plain, name)
        atol = 1e-6 * np.abs(expected).max()
        assert np.allclose(getattr(result, name), expected, rtol=0, atol=atol)
    for x, rollouts in enumerate(pools):
        gram = scores.of(rollouts.prompt_ids, rollouts.completion_ids, gram=True).gram
        z, sizes = rollouts.rewards, np.array([len(c) for c in rollouts.completion_ids])
        weights = np.stack([np.ones(N), z - z.mean()]) / sizes
        expected = weights @ gram @ weights.T
        own = result.length_sketches[x] @ result.length_sketches[x].T
        for made in (result.length_sums[x], own):
            assert np.allclose(made, expected, rtol=0, atol=1e-5 * expected.max())
    # Kept with them, and not taken for a pool without.
    again = score_pool(tiny, pools, sketch=scores.d, by_length=True, out=tmp_path)
    assert np.array_equal(again.length_sums, result.length_sums)
    other = score_pool(tiny, pools, sketch=scores.d, out=tmp_path)
    assert other.length_sums is None


@pytest.mark.parametrize("name", ["base", "short"])
def test_moments_are_those_of_the_gram_matrix(name):
    """They agree to a millionth of the largest, and in double precision in any blocks."""
    from ustat_pg.llm.models import load_model
    from ustat_pg.llm.rollouts import sample
    from ustat_pg.llm.tasks import load_task

    model, task = load_model(f"embedded:{name}"), load_task(f"embedded:{name}", limit=6)
    rollouts = sample(model, task, 16)
    for double, limit in ((False, 1e-6), (True, 1e-9)):
        model.model.double() if double else None
        whole = score_pool(model, rollouts, sketch=10**6)
        # Sums made anew, of the matrix.
        exact = replace(of_rollouts(whole, range(16)), sketches=whole.sketches)
        pools = [whole]
        if double:
            pools.append(score_pool(model, rollouts, sketch=10**6, memory=4 * 10**6))
            assert pools[1].gram is None
        for pool in pools:
            result = prompt_moments(pool)
            for field, expected in vars(prompt_moments(exact)).items():
                error = np.abs(getattr(result, field) - expected).max()
                assert error < limit * np.abs(expected).max(), field
            assert constants(pool).g_star.value == pytest.approx(
                constants(exact).g_star.value, rel=3 * limit
            )


def test_rollouts_that_are_not_the_policys_own_are_noticed(monkeypatch):
    """Temperature 1.1, and end tokens dropped; the policy's own are not."""
    from ustat_pg.llm.models import load_model
    from ustat_pg.llm.rollouts import sample
    from ustat_pg.llm.tasks import load_task

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
    options = {"parameters": ["*norm*"], "gram": False}
    z = [score_pool(model, pools, **options).on_policy_z for pools in (own, ended, warm)]
    assert abs(z[0]) < 3
    assert min(z[1:]) > 4


def test_prompts_that_are_scored_at_once_make_the_same_pool(tiny, tmp_path, monkeypatch):
    """As on a GPU: to rounding, in the order that was given, and found again."""
    pools = pool_of(6)
    pools[1] = replace(pools[1], rewards=np.ones(N))
    alone = score_pool(tiny, pools, by_length=True)
    monkeypatch.setattr("ustat_pg.llm.scores.passes._TOKENS", {"cpu": 2**15})
    result = score_pool(tiny, pools, by_length=True, out=tmp_path)
    assert result.prompts == alone.prompts
    for name in ARRAYS:
        if (expected := getattr(alone, name)) is not None:
            largest = np.abs(expected).max()
            np.testing.assert_allclose(getattr(result, name), expected, rtol=0, atol=1e-5 * largest)
    same(result, score_pool(tiny, pools, by_length=True, out=tmp_path))


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
    from ustat_pg.llm.models import load_model

    data = Path(__file__).parents[1] / "data" / "pools"
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
def test_another_verifier_scores_completions_alone_whose_rewards_change(
    tiny, tmp_path, monkeypatch, verifier
):
    pools, asked, original = pool_of(4), [], Scores.many

    def counted(self, prompts, **options):
        listed = list(prompts)
        asked.extend(len(one.completion_ids) for one in listed)
        return original(self, listed, **options)

    first = score_pool(tiny, pools, out=tmp_path)
    anew = [replace(one, rewards=verifier(one.rewards)) for one in pools]
    expected = score_pool(tiny, anew)
    monkeypatch.setattr(Scores, "many", counted)
    result = score_pool(tiny, anew, out=tmp_path)
    changed = [int((a.rewards != b.rewards).sum()) for a, b in zip(anew, pools, strict=True)]
    assert sorted(asked) == sorted(filter(None, changed))
    for name in ARRAYS:
        if (array := getattr(expected, name)) is not None:
            off = np.abs(getattr(result, name) - array).max()
            assert off <= 1e-6 * np.abs(array).max(), name
    # Both are kept.
    asked.clear()
    same(first, score_pool(tiny, pools, out=tmp_path))
    same(result, score_pool(tiny, anew, out=tmp_path))
    assert asked == []


def test_sums_over_lengths_and_pools_without_gram_matrices_are_scored_anew(tiny, tmp_path):
    pools = pool_of(2)
    anew = [replace(one, rewards=1 - one.rewards) for one in pools]
    for options in ({"by_length": True}, {"gram": False}):
        score_pool(tiny, pools, out=tmp_path, **options)
        same(score_pool(tiny, anew, out=tmp_path, **options), score_pool(tiny, anew, **options))


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
    least = scores.room.bounds[60, 64] + 3 * 4 * scores.d
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
    refuses("cannot be kept: No space left on device", score_pool, tiny, pool_of(2), out=tmp_path)
    assert list((tmp_path / "scored").iterdir()) == []


def test_a_prompt_without_room_for_its_gram_matrix_does_not_cost_the_others_theirs(
    tiny, tmp_path, monkeypatch
):
    def without(rollouts, *more):
        entry = own(rollouts, *more)
        return {name: entry[name] for name in entry if name != "gram" or rollouts is not pools[1]}

    pools, own = pool_of(3), scoring._entry
    monkeypatch.setattr(scoring, "_entry", without)
    assert score_pool(tiny, pools, out=tmp_path).gram is None
    monkeypatch.setattr(scoring, "_entry", None)
    assert score_pool(tiny, [pools[2], pools[0]], out=tmp_path).gram is not None
