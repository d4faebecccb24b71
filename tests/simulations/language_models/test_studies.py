"""Claims on language models: what they ask, and that wrong formulas do not pass."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec

import pytest

from simulations import ON_LANGUAGE_MODELS, STEMS, Suite
from simulations.__main__ import main
from simulations.language_models import gradient_mse_lm, group_size_lm, studies
from tests.support.commands import refusal_of
from ustat_pg.checks import Verdict, decide
from ustat_pg.experiment import Options
from ustat_pg.experiment.measurements import Measurements

pytestmark = [
    pytest.mark.skipif(
        not all(find_spec(name) for name in ("torch", "transformers")), reason="no language models"
    ),
]

MEMBER = "embedded:base"
REPLICATIONS = 32


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
    return studies.study(MEMBER, suite)


@pytest.fixture(scope="module")
def cell():
    from simulations.language_models.cells import LmCell

    return LmCell((MEMBER,), (2, 3, 6), 12, 2, 8, (studies.NORMALISED,))


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
            check.statement,
            check.functional.evidence(sums, 0.01, sums),
            required.get(check.name, ()),
        )
        for check in checks
    }


def agreement(cell, study):
    """The checks of both claims that hold sampled numbers against formulas, at any model."""
    return [
        *gradient_mse_lm._agree(cell, study, 0.5),
        *gradient_mse_lm._apart(cell, study, 0.5),
        *gradient_mse_lm._normalised(cell, study),
        *gradient_mse_lm._signals(cell, study),
        gradient_mse_lm._excess(cell, study),
        *group_size_lm._agree(cell, study, 0.5),
        *group_size_lm._constants(cell, study, 0.5),
    ]


def test_the_true_formulas_are_not_refuted(cell, study):
    found = verdicts(cell, agreement(cell, study), {})
    assert len(found) == 5 + 2 + 2 + 2 + 1 + 3 + 2
    assert all(decision.verdict != Verdict.REFUTED for decision in found.values()), found
    confirmed = [name for name, d in found.items() if d.verdict == Verdict.CONFIRMED]
    assert any("grpo, sampled over predicted" in name for name in confirmed), found


def wrong(values, what):
    """Estimates of a pool by a wrong formula."""
    sizes = sorted({size for _, size in values if size})
    found = dict(values)
    for size in sizes:
        second = values["grpo", size] - values["oracle", size]
        if what == "G^2 for G(G-1)":
            found["grpo", size] = values["oracle", size] + second * (size - 1) / size
        elif what == "no second order":
            found["grpo", size] = values["oracle", size]
        elif what == "the oracle's for vanilla's":
            found["vanilla", size] = values["oracle", size]
        elif what == "not divided by G":
            for baseline in ("vanilla", "grpo", "oracle"):
                found[baseline, size] = values[baseline, size] * size
    if what == "c3 halved":
        found["c3", 0] = values["c3", 0] / 2
    elif what == "c1 without the cross term":
        found["c1", 0] = 4 * abs(values["c1", 0]) + values["c2", 0] + values["c3", 0]
    elif what == "a prompt paired with itself":
        for size in sizes:
            found["signal grpo", size] += values["noise grpo", size] / 8
    elif what == "c1 that is c2":
        found["c1", 0] = values["c2", 0]
    return found


PLANTED = {
    "G^2 for G(G-1)": "base G=2: grpo less oracle",
    "no second order": "base G=2: grpo, sampled",
    "the oracle's for vanilla's": "base G=2: vanilla less oracle",
    "not divided by G": "base G=2: vanilla, sampled",
    "c3 halved": "base: c3",
    "c1 without the cross term": "base G=2: error over prompts",
    "c1 that is c2": "base: c1",
    "a prompt paired with itself": "base G=6: signal of grpo",
}


OPEN = ("c3 halved", "the oracle's for vanilla's")
"""Not refuted by so few draws, or by a ratio to a difference that is 0."""


@pytest.mark.parametrize("what", PLANTED)
def test_wrong_formulas_are_not_confirmed(what, cell, study, monkeypatch, record_property):
    from simulations.language_models import cells

    record_property("mutant", f"language models: {what}")
    kept = cells._replication

    def planted(member, sizes, seed, number):
        """The true replication's draws, with the planted formula in place of the pool's."""
        found = dict(kept(member, sizes, seed, number))
        asked = (*cells.BASELINES, cells.BATCH, f"{cells.SIGNAL} grpo")
        keys = [(w, g) for w in asked for g in sizes[0]]
        keys += [(w, 0) for w in cells.CONSTANTS]
        values = {(w, g): found[cells.pooled(member.name, w, g).label] for w, g in keys}
        for (w, g), value in wrong(values, what).items():
            found[cells.pooled(member.name, w, g).label] = value
        return found

    monkeypatch.setattr(cells, "_replication", planted)
    checks = [c for c in agreement(cell, study) if c.name.startswith(PLANTED[what])]
    assert checks
    # To be confirmed each rival of the check has to be refuted, as a run plans it.
    required = {check.name: tuple(check.statement.rivals) for check in checks}
    for name, decision in verdicts(cell, checks, required).items():
        if what not in OPEN:
            assert decision.verdict == Verdict.REFUTED, (name, decision)
        assert decision.verdict != Verdict.CONFIRMED, (name, decision)


def test_an_excess_of_first_order_is_refuted(cell, study, monkeypatch):
    """Fresh groups whose excess falls as 1/G only."""
    from simulations.language_models import cells

    kept = cells._replication

    def planted(member, sizes, *words):
        found = dict(kept(member, sizes, *words))
        group_sizes, least = sizes[0], sizes[0][0]

        def label(what, size):
            return cells.drawn(member.name, what, size).label

        for size in group_sizes[1:]:
            excess = found[label("grpo", least)] - found[label("oracle", least)]
            found[label("grpo", size)] = found[label("oracle", size)] + excess * least / size
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
    members = [member.removeprefix("embedded:") for member in studies.SIZES["smoke"].members]
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
        asked = studies.SIZES["smoke"].members
        for member in map(studies.short, asked):
            assert any(check.name.startswith(member) for check in claim.checks)
    points = list(gradient_mse_lm.curves(suite))
    assert {point.at["panel"] for point in points} == set(members)
    sampled = [point for point in points if point.functional is not None]
    assert {point.at["group_size"] for point in sampled} == set(studies.SIZES["smoke"].group_sizes)
    assert {point.series for point in group_size_lm.curves(suite)} == set(members)


def test_a_study_is_kept_and_read_again(study, suite, monkeypatch, tmp_path):
    from ustat_pg.llm import rollouts

    small = replace(studies.SIZES["smoke"], prompts=3, rollouts=4)
    monkeypatch.setitem(studies.SIZES, "smoke", small)
    first = studies._study.__wrapped__(MEMBER, "smoke", 5, tmp_path)

    def none(*words):
        assert not words[1], "sampled again"
        return iter(())

    monkeypatch.setattr(rollouts, "transformers_draw", none)
    again = studies._study.__wrapped__(MEMBER, "smoke", 5, tmp_path)
    assert again.error("grpo", 2) == first.error("grpo", 2)
    assert first.pool.size == 3
    assert (tmp_path / "base-smoke-5" / "rollouts.jsonl").is_file()


def test_order_is_asked_in_the_direction_that_the_moments_say(cell, study):
    class Other:
        """A pool that is sure of something else."""

        member, clear, apart = MEMBER, 0.2, studies.Study.apart

        def __init__(self, errors, larger):
            self.errors, self.sure = errors, larger

        def error(self, baseline, size):
            return self.errors[baseline]

        def larger(self, first, second, size):
            return self.sure

    def asked(errors, larger):
        return list(gradient_mse_lm._order(cell, Other(errors, larger)))

    (check,) = asked({"grpo": 1.0, "vanilla": 2.0}, "vanilla")
    assert check.name.endswith("vanilla above grpo")
    assert not check.statement.rivals
    (check,) = asked({"grpo": 2.0, "vanilla": 1.0}, "grpo")
    assert check.name.endswith("grpo above vanilla")
    assert set(check.statement.rivals) == {gradient_mse_lm.READING}
    assert asked({"grpo": 2.0, "vanilla": 1.0}, "open") == []
    assert asked({"grpo": 2.0, "vanilla": 1.9}, "grpo") == []


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
    monkeypatch.setattr("simulations.language_models.cells._BLOCK", 2)
    name = "base G=2: vanilla, sampled over predicted"
    words = ("--on", "language-model", "--size", "smoke", "--replications", "8", "--workers", "1")
    code = main(["check", "gradient_mse_lm", name, *words, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == name
    assert code in (0, 3)
