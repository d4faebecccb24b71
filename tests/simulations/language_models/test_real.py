"""Claims on a model of one's own: groups' errors by hand, and that wrong formulas do not pass."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from simulations import Suite, claim, curves
from simulations.__main__ import main
from simulations.evidence import Verdict, decide
from simulations.evidence.plan import alpha_of, looks_of
from simulations.language_models import passes, real
from tests.support.commands import refusal_of
from tests.support.refusals import refuses
from ustat_pg.files.digests import sources_of
from ustat_pg.llm.models.loading import load_model, tokenise
from ustat_pg.llm.pool import tables
from ustat_pg.llm.tasks.named import load_task

MEMBER = "embedded:strong"

REPLICATIONS = 10


def _grpo(m, size, tau=None, phi=1.0, pairs=None):
    """grpo's errors by moments, true unless another part is given."""
    tau = m.norm_squared_advantage if tau is None else tau
    second = phi * m.variance_trace + m.gradient_sq
    return (tau - m.gradient_sq) / size + second / (pairs or size * (size - 1))


WRONG = {
    real.SQUARE: lambda m, size: _grpo(m, size, pairs=size**2),
    real.TWICE: lambda m, size: _grpo(m, size, phi=2.0),
    real.NO_CRITIC: lambda m, size: _grpo(m, size, tau=m.norm_squared_reward),
}
"""Formulas of grpo's error that the claim must refuse, by the rivals' names."""


@pytest.fixture(scope="module")
def strength(tmp_path_factory):
    """The strength of a small model that ships with the library, on its own task."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real, "TASK", MEMBER)
        every = real.Size({2: (2, 4)}, 4, 48, 0.3, 0.2, closely=True)
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
    packed = passes.log_probs(language_model.model, ids, answers)
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
    errors = passes.group_errors(language_model.model, ids, answers, rewards, values)
    assert errors == pytest.approx(by_hand, rel=1e-4)


def test_a_model_whose_answers_cannot_share_a_prompt_is_refused(monkeypatch):
    language_model, task = load_model(MEMBER), load_task(MEMBER, limit=1)
    model, whole = language_model.model, language_model.model.forward
    passes.require_packed(language_model, task)

    def without_masks(*given, attention_mask=None, logits_to_keep=0, **named):
        return whole(*given, logits_to_keep=logits_to_keep, **named)

    monkeypatch.setattr(model, "forward", without_masks)
    refuses(
        "attends otherwise than by one causal mask", passes.require_packed, language_model, task
    )
    monkeypatch.setattr(model, "forward", lambda **named: whole(**named))
    refuses("takes no logits_to_keep", passes.require_packed, language_model, task)


def test_an_error_of_a_pool_has_an_interval_by_rollouts_left_out(strength):
    one, _, _ = strength
    value, twice = one.known(one.error(2, grpo=1.0))
    assert 0 < twice < value


def decisions(cell, built):
    """Each check's decision, by name, on replications whose rollouts and scores are kept."""
    sums = {
        cell.name: (
            cell.quantities,
            cell.measure("autograd", cell.quantities, replications=REPLICATIONS),
        )
    }
    alpha = alpha_of(built) / looks_of(built)
    return {
        check.name: decide(check.statement, check.functional.evidence(sums, alpha, sums), ())
        for check in built.checks
    }


def test_the_true_formulas_are_not_refuted_and_wrong_ones_are(strength):
    one, built, points = strength
    verdicts = decisions(one.cell, built)
    assert {v.verdict for v in verdicts.values()} <= {Verdict.CONFIRMED, Verdict.INCONCLUSIVE}
    refuted = {
        rival
        for decision in verdicts.values()
        for rival, verdict in decision.rivals.items()
        if verdict == Verdict.REFUTED
    }
    assert {real.NO_SECOND, real.FLAT, *WRONG} <= refuted
    assert {real.FIRST_ORDER, *refuted} <= set(built.rivals)
    assert {check.origin for check in built.checks} == {"real"}
    assert {point.at["panel"] for point in points} == {one.name}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_formula_in_the_library_is_refuted(name, strength, monkeypatch):
    """By the errors that the public function makes of it; nothing is drawn or scored anew."""
    one, built, _ = strength
    decisions(one.cell, built)

    def anew(*_):
        raise AssertionError

    monkeypatch.setattr(passes.Source, "_made", anew)
    monkeypatch.setattr(tables, "grpo_errors", WRONG[name])
    verdicts = decisions(one.cell, built)
    refuted = {check for check, decision in verdicts.items() if decision.verdict == "REFUTED"}
    assert {"2 examples G=2: grpo, over predicted"} <= refuted
    assert all("grpo" in check for check in refuted)


def test_what_is_drawn_depends_on_no_formula():
    """So a changed formula leaves the rollouts and scores that are kept, which others would not."""
    read = {path.as_posix() for path in sources_of(Path(passes.__file__))}
    formulas = ("predictions/", "llm/estimates", "llm/moments", "llm/tables", "llm/weighted")
    assert not [file for file in read if any(f"ustat_pg/{part}" in file for part in formulas)]
    assert any(file.endswith("ustat_pg/llm/scores/passes.py") for file in read)


def test_kept_replications_are_those_that_are_made(strength):
    one, _, _ = strength
    kept = one.cell
    assert kept.folder is not None
    alone = replace(kept, folder=None)
    assert alone.name == kept.name
    first = kept._replication(5, 0)
    file = kept.folder / f"{kept.source.key}-cpu-5-0.npz"
    whole = file.read_bytes()
    assert kept._replication(5, 0) == first == alone._replication(5, 0)
    file.write_bytes(whole[:-200])
    assert kept._replication(5, 0) == first
    assert file.read_bytes() == whole
    other = replace(kept.source, values=kept.source.values + 1)
    assert other.key != kept.source.key


def test_wrong_inner_products_leave_the_mean_of_the_passes(strength, monkeypatch):
    """What scores pools enters measured errors through noise alone."""
    one, _, _ = strength
    source = replace(one.cell.source, prompts=1, rollouts=8)
    pool = source.replication(3, 0)
    monkeypatch.setattr(passes.Source, "replication", lambda *_: pool)
    cell = replace(one.cell, source=source)
    true = cell._replication(3, 0)
    wrong = replace(pool, scores=0 * pool.scores, squared_norms=0 * pool.squared_norms)
    monkeypatch.setattr(passes.Source, "replication", lambda *_: wrong)
    for quantity in cell.quantities:
        label = quantity.label
        if quantity.method == "drawn":
            passed = pool.config["passed"][str(quantity.group_size)][quantity.what]
            assert cell._replication(3, 0)[label] == pytest.approx(passed)
            assert true[label] != passed


def test_a_model_that_is_always_right_or_wrong_is_said(strength, monkeypatch):
    """Nothing is divided by an error of 0, and nothing is confirmed of what a pool does not know."""
    one, _, _ = strength
    never = replace(one.pool, rewards=np.zeros_like(one.pool.rewards))
    silent = replace(one, pool=never)
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
