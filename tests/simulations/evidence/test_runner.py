"""The runner: equal results whatever the workers and interruptions; open ends said so."""

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from simulations.engines import Constant, Gap, Training
from simulations.evidence import (
    Check,
    Claim,
    Interrupted,
    Linear,
    LogSlope,
    Options,
    Ratio,
    RivalVerdict,
    Store,
    Verdict,
    equal,
    mean_of,
    options,
    run_claims,
)
from simulations.evidence.report import exit_code, remarks
from simulations.evidence.runner import check_alone
from simulations.evidence.store import Memory
from simulations.paper import RESULTS
from simulations.problems import mse_of
from simulations.problems.landscapes import triple
from tests.support.claims import claim_of_runs, claims_of, small_claim
from tests.support.refusals import refusals, refuses
from ustat_pg.engines import Estimator, GradientCell
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import SoftmaxBandit

CLAIMS = {"gradients": small_claim, "whole runs": claim_of_runs}
OPTIONS = Options("smoke", "reference")
BLOCKS = {"gradients": options.LARGEST_BLOCK, "whole runs": 2048}


@pytest.fixture(scope="module", params=CLAIMS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def whole(kind, tmp_path_factory):
    """An undisturbed run of a claim of that kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(options, "LARGEST_BLOCK", BLOCKS[kind])
        return run_claims([CLAIMS[kind]()], Options("smoke"), Store(tmp_path_factory.mktemp("a")))


@pytest.fixture
def claim(kind, monkeypatch):
    """The claim of that run, and blocks as there."""
    monkeypatch.setattr(options, "LARGEST_BLOCK", BLOCKS[kind])
    return CLAIMS[kind]()


def test_a_true_claim_is_confirmed_and_its_rival_refuted(whole):
    (result,) = whole.claims
    for check in result.checks:
        for evidence, findings in check.findings.items():
            assert findings.verdict == Verdict.CONFIRMED, (check.name, evidence)
    assert result.verdict == Verdict.CONFIRMED
    (rival,) = result.rivals
    assert rival.exact == rival.simulation == rival.verdict == RivalVerdict.REFUTED
    assert exit_code(whole.claims) == 0
    assert remarks(whole.claims, whole.set_aside) == []


@pytest.mark.parametrize("factor", [1.25, 0.8])
def test_a_wrong_prediction_is_refuted_by_both_kinds_of_evidence(factor, kind, claim, tmp_path):
    false = CLAIMS[kind](factor)
    run = run_claims([false], Options("smoke"), Store(tmp_path))
    (result,) = run.claims
    changed = 0
    for true, text, check in zip(claim.checks, false.checks, result.checks, strict=True):
        if text.statement.prediction != true.statement.prediction:
            verdicts = {evidence: findings.verdict for evidence, findings in check.findings.items()}
            assert verdicts == dict.fromkeys(("exact", "simulation"), Verdict.REFUTED), text.name
            changed += 1
    assert changed >= 2
    assert result.verdict == Verdict.REFUTED
    assert result.evidence("exact") == result.evidence("simulation") == Verdict.REFUTED
    assert exit_code(run.claims) == 1
    assert "REFUTED by simulation" in "\n".join(remarks(run.claims, run.set_aside))


def test_three_interruptions_change_no_byte_and_lose_no_block(claim, whole, tmp_path):
    finished = 0
    for _ in range(3):

        def interrupt() -> None:
            raise KeyboardInterrupt

        with pytest.raises(Interrupted):
            run_claims([claim], Options("smoke"), Store(tmp_path), on_done=interrupt)
        now = len(list(tmp_path.glob("*.json")))
        # Blocks that were under way are finished and kept as well.
        assert finished + 1 <= now <= finished + 3
        finished = now
    done: list[None] = []
    run = run_claims([claim], Options("smoke"), Store(tmp_path), on_done=lambda: done.append(None))
    assert claims_of(run) == claims_of(whole)
    # Three may have finished all of a small claim already.
    assert len(done) == len(list(tmp_path.glob("*.json"))) - finished


def test_a_rival_too_near_is_inconclusive_with_the_number_it_would_take(tmp_path):
    run = run_claims([small_claim(rival=1.0005)], Options("smoke"), Store(tmp_path))
    (result,) = run.claims
    assert result.verdict == Verdict.INCONCLUSIVE
    assert result.rivals[0].exact == RivalVerdict.REFUTED
    assert result.rivals[0].simulation == RivalVerdict.SURVIVED
    assert exit_code(run.claims) == 3
    needed = max(check.findings["simulation"].replications_needed for check in result.checks)
    assert needed > Options("smoke").drawn.budget
    assert f"would need {needed:,} replications" in "\n".join(remarks(run.claims, run.set_aside))


def test_what_cannot_be_enumerated_is_inconclusive_and_says_how_large(tmp_path):
    contexts, arms = 40, 12
    rng = np.random.default_rng(0)
    shape = (contexts, arms, 1)
    problem = SoftmaxBandit.tabular(
        np.full(contexts, 1 / contexts),
        rng.normal(size=shape[:2]),
        rng.random(shape),
        np.ones(shape),
    )
    value = gradient_mse(problem.moments(), "grpo", 2, 3).mse
    check = Check(
        "large", "made-up", mean_of(GradientCell(problem, 2, 3), mse_of("grpo")), equal(value)
    )
    run = run_claims([Claim("mse", (), (check,))], Options("smoke"), Store(tmp_path))
    assert run.claims[0].verdict == Verdict.INCONCLUSIVE
    assert run.claims[0].evidence("simulation") == Verdict.CONFIRMED
    assert "outcomes" in "\n".join(remarks(run.claims, run.set_aside))


class Lost(Linear):
    """A mean whose enumeration gives no number."""

    value = nan

    def exact(self, sums):
        return self.value


class Infinite(Lost):
    value = -inf


@pytest.mark.parametrize("kind", [Lost, Infinite])
@pytest.mark.parametrize("engine", ["exact", "reference"])
def test_a_value_that_is_no_number_leaves_its_claim_open(kind, engine):
    claim = small_claim()
    check = claim.checks[0]
    lost = replace(check, name="lost", asks=kind(check.functional.cell, check.functional.weights))
    asked = replace(claim, checks=(*claim.checks, lost))
    how = Options("smoke", engine)
    (result,) = run_claims([asked], how, Memory()).claims
    *others, found = result.checks
    assert result.evidence("exact") == result.verdict == Verdict.INCONCLUSIVE
    assert (found.exact.verdict, found.not_enumerated) == (Verdict.INCONCLUSIVE, None)
    assert {each.exact.verdict for each in others} == {Verdict.CONFIRMED}
    assert exit_code([result]) == 3
    assert "mse: lost is INCONCLUSIVE by exact: no number, predicted" in remarks([result], ())[0]


class Unsettled(Training):
    """Runs of which an enumeration is uncertain at the first step."""

    def _measure(self, engine, quantities, block):
        sums = super()._measure(engine, quantities, block)
        if engine == "exact":
            sums.mean[[quantity.step == 1 for quantity in quantities]] = nan
        return sums


class Settled(Unsettled):
    """The same, of a kind of cell that finds every mean."""

    settles = True


@pytest.mark.parametrize("kind", [Unsettled, Settled])
def test_what_a_cell_says_is_uncertain_is_not_enumerated_and_nothing_else(kind):
    cell = kind(triple(), 2, 2, Constant(0.3))
    first, last = (mean_of(cell, Gap(Estimator("grpo"), step)) for step in (1, 2))
    checks = [
        Check(name, "made-up", asked, equal(value))
        for name, asked, value in (
            ("first", first, 1.0),
            ("last", last, float(last.exact(exact_sums(cell)))),
            ("slope", LogSlope((0.0, 1.0), (first, last), (1.0, 1.0)), 1.0),
            # A formula that has no value where all that it reads is known.
            ("no ratio", Ratio(last, Linear(cell, ((last.quantities[0], 0.0),))), 1.0),
        )
    ]
    options = Options("smoke", "exact")
    (result,) = run_claims([Claim("mse", (), tuple(checks))], options, Memory()).claims
    said = "backward induction did not settle on the finest grid that is feasible"
    found = {each.name: each for each in result.checks}
    for name in ("first", "slope"):
        open_ = found[name].exact
        assert found[name].not_enumerated == (None if cell.settles else said)
        assert (open_ and open_.verdict) == (Verdict.INCONCLUSIVE if cell.settles else None)
    assert found["last"].exact.verdict == Verdict.CONFIRMED
    assert found["no ratio"].exact.verdict == Verdict.INCONCLUSIVE
    assert result.verdict == Verdict.INCONCLUSIVE


def exact_sums(cell):
    asked = tuple(Gap(Estimator("grpo"), step) for step in (1, 2))
    return {cell.name: (asked, cell.measure("exact", asked))}


def test_the_plan_is_what_the_run_does(tmp_path):
    run = run_claims([small_claim()], Options("smoke"), Store(tmp_path))
    (plan,) = run.plans
    drawn = {c.name: c.findings["simulation"] for c in run.claims[0].checks}
    for name, needed in plan.needed.items():
        assert drawn[name].replications_needed == needed
        assert drawn[name].replications >= needed


# One check alone.


def test_a_check_alone_is_one_block_unless_more_is_asked_for():
    """That it is the run's to the last bit is in ``simulations/test_check_command.py``."""
    claim, how = small_claim(), Options("smoke", "reference")
    usual = check_alone(claim, "G=2", how)
    assert usual.simulation.replications == options.block_of(claim.checks[0].functional.cells[0])
    assert (usual.simulation.replications_needed, usual.planned_for) == (0, ())
    asked = check_alone(claim, "G=2", how, [2], ["other"])
    assert (asked.simulation.replications, asked.planned_for) == (2, ("other",))


def two_cells():
    """A claim of a slope through both cells of the small one."""
    claim = small_claim()
    points = tuple(check.functional for check in claim.checks)
    slope = LogSlope((0.0, 1.0), points, (1.0, 1.0))
    return replace(claim, checks=(*claim.checks, Check("slope", "made-up", slope, equal(1.0))))


def test_each_cell_of_a_check_has_its_number_or_all_one():
    claim, how = two_cells(), Options("smoke", "reference")
    for numbers, total in (([8], 16), ([8, 12], 20)):
        assert check_alone(claim, "slope", how, numbers).simulation.replications == total
    # What cannot be shared out is refused.
    for name, numbers, said in (
        ("slope", [2, 2, 2], "3 numbers of replications: 'slope' has 2 cells; give one"),
        ("G=2", [2, 2], "2 numbers of replications: 'G=2' has 1 cell; give one"),
    ):
        refuses(said, check_alone, claim, name, how, numbers)


test_what_a_check_alone_refuses = refusals(
    (("G=22",), "check of mse 'G=22' is unknown; the nearest of 2: 'G=2', 'G=3'$"),
    (("§",), "check of mse '§' is unknown; the nearest of 2: 'G=2', 'G=3'$"),
    (
        ("G=2", OPTIONS, (), ("others",)),
        "rival of 'G=2' 'others' is unknown; the nearest of 1: 'other'$",
    ),
    (("G=2", OPTIONS, [1]), "replications is 1"),
    (("G=2", OPTIONS, [10**10 + 1]), "replications is 10000000001"),
    of=lambda words: check_alone(small_claim(), *words, *([OPTIONS] if len(words) == 1 else [])),
)


def test_a_name_that_is_unknown_lists_three_at_most():
    many = replace(
        small_claim(),
        checks=tuple(replace(small_claim().checks[0], name=f"check number {n}") for n in range(9)),
    )
    said = refuses("is unknown", check_alone, many, "check number", OPTIONS)
    assert str(said).count("'check number") == 4
    refuses("the nearest of 0: there are none", check_alone, Claim("mse", (), ()), "one", OPTIONS)


def test_claims_that_failed_stand_in_the_papers_order():
    run = run_claims([small_claim()], Options("smoke", "exact"), Memory())
    both = run.with_failed({"oracle": "nan", "ustatistic": "division by zero"})
    assert [claim.stem for claim in both.claims] == [
        stem for stem in RESULTS if stem in ("mse", "oracle", "ustatistic")
    ]
    assert [claim.verdict for claim in both.claims].count(Verdict.REFUTED) == 2
    assert run.with_failed({}).claims == run.claims
    assert run.seconds >= 0
    assert run.controls == ()


test_options_are_checked = refusals(
    ({"size": "huge"}, "size 'huge'"),
    ({"seed": -1}, "seed is -1"),
    ({"device": "tpu"}, "device is 'tpu': choose cpu, cuda or cuda:N"),
    of=lambda options: Options(**options),
)
