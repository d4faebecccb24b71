"""Claims on a model of one's own: groups' errors by hand, and that wrong formulas do not pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from simulations import Suite, claim, curves
from simulations.__main__ import main
from simulations.evidence import Verdict, decide
from simulations.language_models import real, real_cells
from tests.support.commands import refusal_of
from tests.support.refusals import refuses
from ustat_pg.llm.models import load_model, tokenise
from ustat_pg.llm.tasks import load_task

MEMBER = "embedded:short"


@pytest.fixture(scope="module")
def strength(tmp_path_factory):
    """The strength of a small model that ships with the library, on its own task."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real, "TASK", MEMBER)
        every = real.Size({2: (2, 4)}, 4, 48, 0.8, 0.2, closely=True)
        patch.setitem(real.SIZES, "smoke", every)
        folder = tmp_path_factory.mktemp("pools")
        suite = Suite("smoke", on="language-model", folder=folder, model=MEMBER)
        (one,) = real.strengths(suite)
        built = claim("gradient_mse_lm", suite)
        return one, built, curves("gradient_mse_lm", suite)


def gradient(model, ids, answer):
    """∇ log π of one answer, by a pass of its own."""
    row = torch.tensor([[*ids, *answer]])
    logs = torch.log_softmax(model(row).logits[0, :-1], dim=-1)
    chosen = logs.gather(1, row[0, 1:, None])[len(ids) - 1 :, 0].sum()
    parts = torch.autograd.grad(chosen, list(model.parameters()))
    return float(chosen.detach()), torch.cat([part.flatten() for part in parts]).double().numpy()


def test_errors_of_groups_are_those_of_their_completions_gradients():
    language_model, task = load_model(MEMBER), load_task(MEMBER, limit=1)
    ids = tokenise(language_model, task.prompts[0])
    answers = [(5, 6, 7), (8,), (9, 10), (5, 6), (11, 12, 13, 14), (7,)]
    rewards, values = np.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.0]), (0.3, 0.6)
    logs, scores = zip(*(gradient(language_model.model, ids, one) for one in answers), strict=True)
    packed = real_cells.log_probs(language_model.model, ids, answers)
    assert packed.tolist() == pytest.approx(logs, abs=1e-5)

    s, z = np.array(scores).reshape(2, 3, -1), rewards.reshape(2, 3)

    def distance(advantages):
        first, second = (advantages[..., None] * s).mean(axis=1)
        return first - second

    vanilla, ones = distance(z), distance(np.ones((2, 3)))
    grpo = distance((3 * z - z.sum(axis=1, keepdims=True)) / 2)
    by_hand = {
        "vanilla": vanilla @ vanilla / 2,
        "grpo": grpo @ grpo / 2,
        "oracle": (vanilla - values[0] * ones) @ (vanilla - values[1] * ones) / 2,
    }
    errors = real_cells.group_errors(language_model.model, ids, answers, rewards, values)
    assert errors == pytest.approx(by_hand, rel=1e-4)


def test_a_model_whose_answers_cannot_share_a_prompt_is_refused(monkeypatch):
    language_model, task = load_model(MEMBER), load_task(MEMBER, limit=1)
    model, whole = language_model.model, language_model.model.forward
    real_cells.require_packed(language_model, task)

    def without_masks(*given, attention_mask=None, logits_to_keep=0, **named):
        return whole(*given, logits_to_keep=logits_to_keep, **named)

    monkeypatch.setattr(model, "forward", without_masks)
    refuses(
        "attends otherwise than by one causal mask", real_cells.require_packed, language_model, task
    )
    monkeypatch.setattr(model, "forward", lambda **named: whole(**named))
    refuses("takes no logits_to_keep", real_cells.require_packed, language_model, task)


def test_a_pool_without_some_rollouts_is_that_of_the_others(strength):
    """By inner products alone: all errors of all baselines."""
    one, _, _ = strength
    left_out = np.arange(one.pool.rollouts) % 3 == 0
    fewer = real.without(one.pool, left_out)
    assert fewer.rollouts == (~left_out).sum()
    whole = real.without(one.pool, np.zeros(one.pool.rollouts, dtype=bool))
    for baseline in ("vanilla", "grpo", "oracle"):
        number = one.error(4, **{baseline: 1.0})
        assert number(whole) == pytest.approx(number(one.pool), rel=1e-4)
    value, twice = one.known(one.error(2, grpo=1.0))
    assert 0 < twice < value


def test_the_true_formulas_are_not_refuted_and_wrong_ones_are(strength):
    one, built, points = strength
    cell = one.cell
    sums = {
        cell.name: (cell.quantities, cell.measure("autograd", cell.quantities, replications=40))
    }
    verdicts = {}
    for check in built.checks:
        evidence = check.functional.evidence(sums, 0.01, sums)
        verdicts[check.name] = decide(check.statement, evidence, ())
    assert {v.verdict for v in verdicts.values()} <= {Verdict.CONFIRMED, Verdict.INCONCLUSIVE}
    refuted = {
        rival
        for decision in verdicts.values()
        for rival, verdict in decision.rivals.items()
        if verdict == Verdict.REFUTED
    }
    assert {real.NO_SECOND, real.FLAT} <= refuted
    assert {real.NO_SECOND, real.FLAT, real.SQUARE, real.FIRST_ORDER} <= set(built.rivals)
    assert {check.origin for check in built.checks} == {"real"}
    assert {point.at["panel"] for point in points} == {one.name}


def test_a_model_that_is_always_right_or_wrong_is_said(strength, monkeypatch):
    """Nothing is divided by an error of 0, and nothing is confirmed of what a pool does not know."""
    one, _, _ = strength
    never = replace(one.pool, rewards=np.zeros_like(one.pool.rewards))
    whole = real.without(never, np.zeros(never.rollouts, dtype=bool))
    silent = replace(one, pool=replace(whole, gram=never.gram))
    monkeypatch.setattr(real, "strengths", lambda suite: [silent])
    suite = Suite("smoke", on="language-model", model=MEMBER)
    refuses("nearly all right, or nearly all wrong", claim, "gradient_mse_lm", suite)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("mse", "--model", "smollm2"), "only --on language-model takes a model"),
        (
            ("group_size_lm", "--on", "language-model", "--model", "smollm2"),
            "takes gradient_mse_lm, not group_size_lm",
        ),
    ],
)
def test_what_a_model_is_not_asked(words, message, capsys):
    assert message in refusal_of(capsys, main, "verify", *words)
