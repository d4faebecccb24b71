"""Claims on language models: what they ask, and that wrong formulas do not pass."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from simulations import Suite, claim
from simulations.__main__ import main
from simulations.evidence import Verdict, decide
from simulations.language_models import cells, gradient_mse_lm, group_size_lm, studies
from tests.support.commands import refusal_of

MEMBER = "embedded:base"


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    return Suite("smoke", on="language-model", folder=tmp_path_factory.mktemp("pools"))


@pytest.fixture(scope="module")
def study(suite):
    """What a small pool predicts."""
    return studies.study(MEMBER, suite)


@pytest.fixture(scope="module")
def cell():
    return cells.LmCell((MEMBER,), (2, 3, 6), 12, 2)


def test_the_true_formulas_are_not_refuted(cell, study):
    """The checks of both claims that hold sampled numbers against formulas, at any model."""
    checks = [
        *gradient_mse_lm._agree(cell, study, 0.5),
        *gradient_mse_lm._apart(cell, study, 0.5),
        *gradient_mse_lm._normalised(cell, study),
        *gradient_mse_lm._signals(cell, study),
        gradient_mse_lm._excess(cell, study),
        *group_size_lm._agree(cell, study, 0.5),
        *group_size_lm._constants(cell, study, 0.5),
    ]
    asked = tuple(sorted(cell.quantities, key=lambda quantity: quantity.label))
    sums = {cell.name: (asked, cell.measure("autograd", asked, replications=16))}
    result = {}
    for check in checks:
        evidence = check.functional.evidence(sums, 0.01, sums)
        result[check.name] = decide(check.statement, evidence, ()).verdict
    assert len(result) == 5 + 2 + 2 + 2 + 1 + 3 + 2
    assert Verdict.REFUTED not in result.values(), result
    assert result["base G=2: grpo, sampled over predicted"] == Verdict.CONFIRMED


def test_the_claims_of_a_suite(suite):
    """Every rival is told apart by some check, and curves have a point for each model."""
    size = studies.SIZES["smoke"]
    members = {studies.short(member) for member in size.members}
    for module, needless in ((gradient_mse_lm, {gradient_mse_lm.READING}), (group_size_lm, set())):
        built = claim(module.STEM, suite)
        statements = [check.statement for check in built.checks]
        text = {rival for one in statements for rival in one.rivals if one.distinguishable(rival)}
        # Whether a reading fails somewhere is for the models to say.
        assert set(built.rivals) - needless <= text
        assert built.by_simulation == built.rivals
        assert {check.problem for check in built.checks} == members
    points = list(gradient_mse_lm.curves(suite))
    assert {point.at["panel"] for point in points} == members
    sampled = {point.at["group_size"] for point in points if point.functional is not None}
    assert sampled == set(size.group_sizes)
    assert {point.series for point in group_size_lm.curves(suite)} == members


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gradient_mse_lm",), "--on language-model"),
        (("mse", "--on", "language-model"), "not mse"),
        (("--on", "language-model", "--engine", "exact"), "cannot be listed"),
    ],
)
def test_what_is_refused(words, message, capsys, tmp_path):
    assert message in refusal_of(capsys, main, "verify", *words, "--out", tmp_path)
