"""Rollouts of an older policy: token weights are those that TRL's losses have by autograd."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.models import fresh
from tests.support.pools import drawn_tokens
from tests.support.refusals import refuses
from ustat_pg.llm.advice.commands import divergence
from ustat_pg.llm.pool.estimates import constants, noise_to_signal
from ustat_pg.llm.pool.scored import TokenWeights
from ustat_pg.llm.pool.tables import raw_moments
from ustat_pg.llm.prompts import Prompt
from ustat_pg.llm.rollouts.files import load_rollouts
from ustat_pg.llm.rollouts.stored import Rollouts, sample
from ustat_pg.llm.scores import Scores
from ustat_pg.llm.scores.scoring import score_pool
from ustat_pg.predictions import count_table

N, LOW, HIGH = 5, 0.1, 0.3


@pytest.fixture(scope="module")
def policies(tiny):
    """The policy now, and an older one not far from it."""
    old = fresh(tiny)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in old.model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return tiny, old


@pytest.fixture(scope="module")
def pools(policies):
    """Rollouts of unequal lengths, with the older policy's log-probabilities."""
    old, generator, result = Scores(policies[1].model), np.random.default_rng(0), []
    for x in range(3):
        prompt = drawn_tokens(generator, 2, 6)
        completions = tuple(drawn_tokens(generator, 1, 7) for _ in range(N))
        logs = tuple(tuple(row.tolist()) for row in old.log_probs(prompt, completions))
        rewards = np.array([1.0, 0.0, 1.0, 0.0, 0.0])
        result.append(
            Rollouts(Prompt(f"p{x}", "text"), prompt, completions, ("",) * N, rewards, logs)
        )
    return result


def log_probs(model, prompt, completion):
    ids = torch.tensor([[*prompt, *completion]])
    logits = model(input_ids=ids[:, :-1]).logits[0, len(prompt) - 1 :]
    return torch.log_softmax(logits, dim=-1).gather(1, ids[0, len(prompt) :, None])[:, 0]


def ratios(kind, log_ratio):
    """TRL's ``coef_1``, one for each token."""
    return torch.exp(
        {
            "token": log_ratio,
            "sequence": log_ratio.sum().expand_as(log_ratio),
            "gspo": log_ratio.mean().expand_as(log_ratio),
        }[kind]
    )


def loss(weights, log, old, advantage, by_length):
    """A completion's part of TRL's loss, ``loss_type`` grpo, dr_grpo or cispo."""
    ratio = ratios(weights.ratio, log - old)
    if weights.truncate is not None:
        each = ratio.clamp(max=weights.truncate).detach() * advantage * log
    else:
        each = ratio * advantage
        if weights.clip is not None:
            high = weights.clip if weights.clip_high is None else weights.clip_high
            each = torch.min(each, ratio.clamp(1 - weights.clip, 1 + high) * advantage)
    # The ratio of a whole completion is one number, however many tokens repeat it.
    whole = weights.ratio == "sequence"
    return each.mean() if by_length or whole else each.sum()


def groups(model, rollouts, weights, table, by_length):
    """The gradient of every group of the pool, by autograd."""
    parameters = list(model.parameters())
    for chosen in itertools.combinations(range(N), table.group_size):
        won = int(rollouts.rewards[list(chosen)].sum())
        total = 0.0
        for i in chosen:
            column = table.successes if rollouts.rewards[i] else table.failures
            log = log_probs(model, rollouts.prompt_ids, rollouts.completion_ids[i])
            old = torch.tensor(rollouts.log_probs[i], dtype=log.dtype)
            total = total + loss(weights, log, old, float(column[won]), by_length)
        made = torch.autograd.grad(total / table.group_size, parameters, allow_unused=True)
        yield torch.cat([g.flatten() for g in made if g is not None]).double().numpy()


@pytest.mark.parametrize(
    ("weights", "by_length", "name"),
    [
        (TokenWeights(clip=LOW, clip_high=HIGH), False, "std"),
        (TokenWeights(clip=LOW), True, "grpo"),
        (TokenWeights(truncate=1.05), False, "grpo"),
        (TokenWeights(ratio="sequence", clip=LOW), False, "grpo"),
        (TokenWeights(ratio="gspo", clip=0.02), True, "std"),
        (TokenWeights(), False, "count-table:.3,2,-1,.5"),
    ],
)
def test_noise_and_mean_are_those_of_all_groups_by_autograd(
    policies, pools, weights, by_length, name
):
    now = policies[0]
    size = 2
    table = count_table(name, size)
    d = Scores(now.model).d
    pool = score_pool(now, pools, token_weights=weights, sketch=d)
    result = raw_moments(pool, table, by_length=by_length)
    for x, rollouts in enumerate(pools):
        every = np.stack(list(groups(now.model, rollouts, weights, table, by_length)))
        assert result.second[x] == pytest.approx((every**2).sum(axis=1).mean(), rel=1e-4)
        mean = result.vectors[x]
        # Sketches of that many numbers hold parameters in their order of scoring.
        assert mean @ mean == pytest.approx((every.mean(axis=0) ** 2).sum(), rel=1e-4)
    if weights.clip is not None or weights.truncate is not None:
        assert 0 < pool.bound.sum() < pool.lengths.sum()
    free = score_pool(now, pools, token_weights=TokenWeights(ratio=weights.ratio))
    other = raw_moments(free, table, by_length=by_length)
    if name != "count-table:.3,2,-1,.5":
        assert np.abs(result.second / other.second - 1).max() > 1e-3


def test_divergences_are_those_of_the_policies(policies, pools):
    """k1 by its definition, and k3 by its own."""
    pool = score_pool(policies[0], pools, token_weights=TokenWeights())
    for x, rollouts in enumerate(pools):
        for i, completion in enumerate(rollouts.completion_ids):
            with torch.no_grad():
                log = log_probs(policies[0].model, rollouts.prompt_ids, completion).numpy()
            apart = log - np.array(rollouts.log_probs[i])
            expected = [-apart.sum(), (apart**2).sum() / 2, (np.exp(apart) - 1 - apart).sum()]
            assert pool.divergences[x, i] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    frame = divergence(pool).set_index("name")
    each = pool.divergences.mean(axis=1)[:, 2]
    assert frame.loc["k3", "value"] == pytest.approx(each.mean())
    assert frame.loc["k3", "se"] == pytest.approx(each.std(ddof=1) / 3**0.5)


def test_sampled_rollouts_keep_the_log_probabilities_that_scoring_finds(small, tmp_path):
    from ustat_pg.llm.prompts import Task

    task = Task("t", (Prompt("a", "1+1="),), lambda completions, **_: [1.0] * len(completions), 5)
    (drawn,) = sample(small, task, 6, store=tmp_path / "pool.jsonl")
    result = Scores(small.model).log_probs(drawn.prompt_ids, drawn.completion_ids)
    for own, other in zip(drawn.log_probs, result, strict=True):
        assert own == pytest.approx(other, abs=1e-4)
    (again,) = load_rollouts(tmp_path / "pool.jsonl", stale=True)
    assert again.log_probs == drawn.log_probs
    (third,) = sample(small, task, 6, store=tmp_path / "pool.jsonl")
    assert third.log_probs == drawn.log_probs


@pytest.mark.parametrize(
    ("log_probs", "said"),
    [
        (None, "has no log_probs: the log-probability of each token under the policy that drew"),
        ([[-1.0]] * 4, "one number for each of its tokens"),
        ([[-1.0, float("nan")]] * 4, "log-probability nan"),
    ],
)
def test_files_without_good_log_probabilities_are_refused(tmp_path, log_probs, said):
    row = {"prompt": "a", "prompt_ids": [3], "completion_ids": [[4, 5]] * 4}
    row |= {"completions": ["x"] * 4, "rewards": [1, 0, 1, 0]}
    if log_probs is not None:
        row["log_probs"] = log_probs
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(row) + "\n")
    refuses(said, load_rollouts, file, stale=True)


def test_what_weighted_pools_refuse(policies, pools):
    now = policies[0]
    pool = score_pool(now, pools, token_weights=TokenWeights(clip=0.2))
    refuses("noise and the signal of that weighted gradient", constants, pool)
    refuses("oracle is not a table by counts", noise_to_signal, pool, [2], ["oracle"])
    negative = "count-table:-1,2,-1,.5"
    refuses("clipped by the sign of centred", noise_to_signal, pool, [2], [negative])
    without = [replace(each, log_probs=None) for each in pools]
    text = "prompt 'p0': its rollouts have no log-probabilities"
    refuses(text, score_pool, now, without, token_weights=TokenWeights())
    other = [replace(each, rewards=each.rewards / 2) for each in pools]
    refuses("rewards hold 0.5", score_pool, now, other, token_weights=TokenWeights(clip=0.2))
