"""Claims on language models: what they ask, and that wrong formulas do not pass."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from simulations import ON_LANGUAGE_MODELS, STEMS, Suite
from simulations.__main__ import main
from simulations.language_models import gradient_mse_lm, group_size_lm
from simulations.problems import language_models
from tests.support.commands import refusal_of
from ustat_pg.checks import Verdict, decide
from ustat_pg.experiment import Options
from ustat_pg.experiment.measurements import Measurements

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(find_spec(name) for name in ("torch", "transformers")), reason="no language models"
    ),
]

MEMBER = "embedded:base"
REPLICATIONS = 64


# Verdicts on a few prompts of one model.


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A run's folder, in which the pools of all tests here are kept."""
    return tmp_path_factory.mktemp("runs") / "results" / "smoke-language-model"


@pytest.fixture(scope="module")
def pools(out):
    return out / "pools"


@pytest.fixture(scope="module")
def study(suite):
    """What a small pool predicts."""
    return language_models.study(MEMBER, suite)


@pytest.fixture(scope="module")
def cell():
    from ustat_pg.llm.cells import LmCell

    return LmCell((MEMBER,), (2, 4), 12, 2, 4)


def measured(cell, checks, replications=REPLICATIONS):
    """Sums of all that the checks ask for, by the cell's name."""
    measurements = Measurements((check.functional for check in checks), Options())
    ((name, task),) = measurements.pilot_tasks.items()
    asked = task.quantities
    return {name: (asked, cell.measure("autograd", asked, replications=replications))}


def verdicts(cell, checks, required):
    """The decider's verdicts at a false-alarm rate of one in a hundred, check by check."""
    sums = measured(cell, checks)
    return {
        check.name: decide(
            check.statement, check.functional.evidence(sums, 0.01), required.get(check.name, ())
        )
        for check in checks
    }


def agreement(cell, study):
    """The checks of both claims at the smaller group size, and the excess."""
    mse = [check for check in gradient_mse_lm._agree(cell, study, 0.5) if "G=2" in check.name]
    noise = list(group_size_lm._agree(cell, study, (2,), 0.5))
    return [*mse, gradient_mse_lm._excess(cell, study), *noise]


def test_the_true_formulas_are_not_refuted(cell, study):
    found = verdicts(cell, agreement(cell, study), {})
    assert len(found) == 5
    assert all(decision.verdict != Verdict.REFUTED for decision in found.values()), found
    confirmed = [name for name, d in found.items() if d.verdict == Verdict.CONFIRMED]
    assert any("grpo, sampled over predicted" in name for name in confirmed), found


def second_order(factor):
    """grpo's error with the second-order term times a factor that may depend on G."""

    def change(values, size):
        oracle = values["oracle", size]
        second = values["grpo", size] - oracle
        return {("grpo", size): oracle + second * factor(size)}

    return change


def not_divided(values, size):
    return {(name, size): values[name, size] * size for name in ("vanilla", "grpo", "oracle")}


def without_cross_term(values, size):
    c1, c2, c3 = (values[name, 0] for name in ("c1", "c2", "c3"))
    return {("c1", 0): 4 * abs(c1) + c2 + c3}


PLANTED = {
    "G^2 for G(G-1)": ("grpo", second_order(lambda size: (size - 1) / size), False),
    "no second order": ("grpo", second_order(lambda size: 0.0), True),
    "not divided by G": ("vanilla", not_divided, True),
    "c3 halved": ("error over prompts", lambda v, size: {("c3", 0): v["c3", 0] / 2}, False),
    "c1 without the cross term": ("error over prompts", without_cross_term, True),
}
"""Wrong formulas of a pool: which check must see each, its estimates, whether they are refuted."""


@pytest.mark.parametrize("what", PLANTED)
def test_wrong_formulas_are_not_confirmed(what, cell, study, monkeypatch, record_property):
    from ustat_pg.llm import cells

    record_property("mutant", f"language models: {what}")
    seen_by, change, refuted = PLANTED[what]
    kept = cells._replication

    def planted(member, group_sizes, *words):
        """The true replication's draws, with the planted formula in place of the pool's."""
        found = dict(kept(member, group_sizes, *words))
        keys = [(w, g) for w in cells.BASELINES for g in group_sizes]
        keys += [(w, 0) for w in cells.CONSTANTS]
        labels = {key: cells.pooled(member.name, *key).label for key in keys}
        values = {key: found[label] for key, label in labels.items()}
        for size in group_sizes:
            found |= {labels[key]: value for key, value in change(values, size).items()}
        return found

    monkeypatch.setattr(cells, "_replication", planted)
    checks = [c for c in agreement(cell, study) if c.name.startswith(f"base G=2: {seen_by}")]
    assert checks
    # To be confirmed each rival of the check has to be refuted, as a run plans it.
    required = {check.name: tuple(check.statement.rivals) for check in checks}
    for name, decision in verdicts(cell, checks, required).items():
        assert not refuted or decision.verdict == Verdict.REFUTED, (name, decision)
        assert decision.verdict != Verdict.CONFIRMED, (name, decision)


def test_an_excess_of_first_order_is_refuted(cell, study, monkeypatch):
    """Fresh groups whose excess falls as 1/G only."""
    from ustat_pg.llm import cells

    kept = cells._replication

    def planted(member, group_sizes, *words):
        found = dict(kept(member, group_sizes, *words))
        grpo, oracle = (
            [cells.drawn(member.name, what, size).label for size in group_sizes]
            for what in ("grpo", "oracle")
        )
        excess = found[grpo[0]] - found[oracle[0]]
        for size, own, other in zip(group_sizes, grpo, oracle, strict=True):
            found[own] = found[other] + excess * group_sizes[0] / size
        return found

    monkeypatch.setattr(cells, "_replication", planted)
    (decision,) = verdicts(cell, [gradient_mse_lm._excess(cell, study)], {}).values()
    assert decision.verdict == Verdict.REFUTED


# What is asked.


@pytest.fixture(scope="module")
def suite(pools):
    return Suite("smoke", on="language-model", folder=pools)


def test_the_claims_of_a_suite(suite):
    """Every rival is told apart by some check, and curves have a point for each model."""
    asked = language_models.SIZES["smoke"]
    members = set(map(language_models.short, asked.members))
    for module, needless in ((gradient_mse_lm, {gradient_mse_lm.READING}), (group_size_lm, set())):
        claim = module.claim(suite)
        told = {
            rival
            for check in claim.checks
            for rival in check.statement.rivals
            if check.statement.distinguishable(rival)
        }
        # Whether a reading fails somewhere is for the models to say.
        assert set(claim.rivals) - needless <= told
        assert claim.by_simulation == claim.rivals
        for member in members:
            assert any(check.name.startswith(member) for check in claim.checks)
    points = list(gradient_mse_lm.curves(suite))
    assert {point.at["panel"] for point in points} == members
    sampled = {point.at["group_size"] for point in points if point.functional is not None}
    assert sampled == set(asked.group_sizes)
    assert {point.series for point in group_size_lm.curves(suite)} == members


def test_a_study_is_kept_and_read_again(study, suite, monkeypatch, tmp_path):
    from ustat_pg.llm import rollouts

    small = replace(language_models.SIZES["smoke"], prompts=3, rollouts=4)
    monkeypatch.setitem(language_models.SIZES, "smoke", small)
    first = language_models._study.__wrapped__(MEMBER, "smoke", 5, tmp_path)

    def none(*words):
        assert not words[1], "sampled again"
        return iter(())

    monkeypatch.setattr(rollouts, "transformers_draw", none)
    again = language_models._study.__wrapped__(MEMBER, "smoke", 5, tmp_path)
    assert again.error("grpo", 2) == first.error("grpo", 2)
    assert first.pool.size == 3
    assert (tmp_path / "base-smoke-5" / "rollouts.jsonl").is_file()


@pytest.mark.parametrize(
    ("oracle", "vanilla", "larger", "name", "rivals"),
    [
        (1.0, 2.0, "vanilla", "vanilla above oracle", set()),
        (2.0, 1.0, "oracle", "oracle above vanilla", {gradient_mse_lm.READING}),
        (2.0, 1.0, "open", None, None),
        (2.0, 1.9, "oracle", None, None),
    ],
)
def test_order_is_asked_in_the_direction_that_the_moments_say(
    oracle, vanilla, larger, name, rivals, cell
):
    """By a pool that is sure of what is given."""
    errors = {"oracle": oracle, "vanilla": vanilla}
    pool = SimpleNamespace(
        member=MEMBER,
        error=lambda baseline, size: errors[baseline],
        larger=lambda first, second, size: larger,
    )
    checks = list(gradient_mse_lm._order(cell, pool, "oracle", "vanilla"))
    assert len(checks) == (name is not None)
    for check in checks:
        assert check.name.endswith(name)
        assert set(check.statement.rivals) == rivals


# The command.


def test_stems_of_language_models_stand_apart(capsys):
    assert not set(ON_LANGUAGE_MODELS) & set(STEMS)
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for stem in ON_LANGUAGE_MODELS:
        (line,) = [line for line in text.splitlines() if line.startswith(f"{stem} ")]
        assert "verified" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gradient_mse_lm",), "--on language-model"),
        (("mse", "--on", "language-model"), "not mse"),
        (("--on", "language-model", "--engine", "exact"), "cannot be listed"),
        (("--on", "language-model", "--problem", "p.json"), "takes no --problem"),
    ],
)
def test_what_is_refused(words, message, capsys, tmp_path):
    assert message in refusal_of(capsys, main, "verify", *words, "--out", tmp_path)


def test_a_check_alone(capsys, suite, out, monkeypatch):
    # Where a command that is told no folder looks.
    out.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(out.parents[1])
    name = "base G=2: vanilla, sampled over predicted"
    words = ("--on", "language-model", "--size", "smoke", "--replications", "8", "--workers", "1")
    code = main(["check", "gradient_mse_lm", name, *words, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == name
    assert code in (0, 3)
