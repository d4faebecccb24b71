"""What each control says where one thing is wrong, and that it says nothing where nothing is."""

from dataclasses import replace
from math import isfinite, sqrt
from types import SimpleNamespace

import numpy as np
import pytest
from attrs import evolve

from simulations.engines import Constant, Gap, Training
from simulations.evidence import (
    Below,
    Check,
    ChiSquares,
    Claim,
    Evidence,
    Interval,
    Options,
    RivalVerdict,
    TransformOf,
    Verdict,
    equal,
    measurements,
    plan,
    planted,
    results,
    runner,
)
from simulations.problems.landscapes import triple
from tests.support.claims import claim_of_runs, small_claim
from tests.support.refusals import refuses
from ustat_pg.engines import Estimator, MomentSums
from ustat_pg.validation import InputError

EXACT, DRAWN = Options("smoke", "exact"), Options("smoke", "cpu")


CLAIMS = (small_claim(),)


@pytest.fixture
def said(monkeypatch):
    """What controls say, by name; draws and intervals are controlled elsewhere."""
    monkeypatch.setattr(planted, "_drawn", lambda *_: iter(()))
    monkeypatch.setattr(planted, "_intervals", lambda: iter(()))

    def of(options=EXACT, claims=CLAIMS):
        controls = planted.run_controls(claims, options)
        assert all(control.held == (not control.said) for control in controls)
        return {control.name: control.said for control in controls}

    return of


def test_a_sound_program_is_said_nothing_of(said):
    names = ["planted effects", "verdicts", "false alarms"]
    assert said() == dict.fromkeys(names, "")


def test_the_coin_is_what_enumeration_says():
    """The numbers of the coin, and of the same coin with heads and tails exchanged."""
    p = 0.4
    assert pytest.approx(p * planted.HIGH + (1 - p) * planted.LOW) == planted.MEAN
    exact = planted.CELL.measure("exact", [planted.ERROR])
    assert exact.mean[0] == pytest.approx(planted.MEAN, rel=1e-12)
    other = (1 - p) * planted.HIGH + p * planted.LOW
    assert pytest.approx(planted.MEAN / other) == planted.EXCHANGED
    known = {planted.CELL.name: ((planted.ERROR,), exact)}
    assert planted.RATIO.exact(known) == pytest.approx(planted.EXCHANGED)
    assert planted.RATIO.denominator.exact(known) == pytest.approx(planted.RATIO.size)
    # Above 0 by less than draws can tell.
    may_be_0 = planted.MAY_BE_NOTHING.evidence(planted._tossed(800), planted.ALPHA, known)
    assert may_be_0.interval.low < 0 < may_be_0.estimate
    assert may_be_0.estimate == pytest.approx(0.01 * planted.MEAN)
    sums = planted._tossed(800)[planted.CELL.name][1]
    values = np.repeat([planted.HIGH, planted.LOW], [800, 1200])
    expected = MomentSums.of(values[:, None])
    assert (sums.n, sums.mean[0]) == (2000, pytest.approx(expected.mean[0]))
    assert sums.products[0, 0] == pytest.approx(expected.products[0, 0], rel=1e-9)


def test_intervals_hold_and_narrower_ones_are_told(monkeypatch):
    assert list(planted._intervals()) == []
    true = planted.Forecast.interval

    def narrower(self, *arguments):
        interval = true(self, *arguments)
        middle, half = (interval.low + interval.high) / 2, 0.4 * interval.half_width
        return Interval(middle - half, middle + half)

    with monkeypatch.context() as patch:
        patch.setattr(planted.Forecast, "interval", narrower)
        lines = list(planted._intervals())
    assert any(line.startswith("the interval of a mean at the rate 0.05 misses") for line in lines)
    assert any("the interval of a mean expected at 0.01 misses" in line for line in lines)
    needed = planted.replications_needed
    with monkeypatch.context() as patch:
        patch.setattr(planted, "replications_needed", lambda *words: needed(*words) * 99 // 100)
        lines = list(planted._intervals())
    assert len(lines) == 2
    assert all(line.endswith("are planned for 0.01") for line in lines)


def test_a_decider_that_errs_is_told(said, monkeypatch):
    true = planted.decide

    def blind(statement, evidence, *rest):
        return replace(true(statement, evidence, *rest), verdict=Verdict.CONFIRMED)

    with monkeypatch.context() as patch:
        patch.setattr(planted, "decide", blind)
        text = said()["verdicts"]
    assert "with a wide interval a claim is INCONCLUSIVE, its rival SURVIVED" not in text
    assert "an identity that is 1e-08 off is not REFUTED" in text

    def strict(statement, evidence, *rest):
        decision = true(statement, evidence, *rest)
        return replace(decision, rivals=dict.fromkeys(decision.rivals, RivalVerdict.REFUTED))

    with monkeypatch.context() as patch:
        patch.setattr(planted, "decide", strict)
        assert (
            "with a wide interval a claim is INCONCLUSIVE, its rival REFUTED" in said()["verdicts"]
        )


def test_effects_that_are_let_pass_are_told(said, monkeypatch):
    true = planted._claim
    monkeypatch.setattr(planted, "_claim", lambda effect: true(0.0))
    text = said()["planted effects"]
    for what in ("order", "bound", "attained", "mean", "ratio", "slope", "claim"):
        assert f"a {what} that is off by 1e-06 is CONFIRMED" in text
        assert f"a {what} that is off by 0.02 is CONFIRMED" in text
        assert f"a {what} that is off by 0 " not in text


@pytest.mark.parametrize(("share", "told"), [(0.99, False), (1.01, True)])
def test_false_alarms_are_added_up(said, monkeypatch, share, told):
    claims = (small_claim(), small_claim())
    each = share * 1e-3 / sum(plan.erring_of(claim) for claim in claims)
    monkeypatch.setattr(plan, "alpha_of", lambda claim: each)
    text = said(claims=claims)["false alarms"]
    assert bool(text) == told
    assert not told or text == ("the checks may err at 0.001 together, which must not exceed 0.001")


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("no"), RuntimeError("no"), AttributeError("no")]
)
def test_a_control_that_raises_has_not_held(said, monkeypatch, error):
    def fails(claims):
        raise error

    monkeypatch.setattr(planted, "_false_alarms", fails)
    assert said()["false alarms"] == f"{type(error).__name__}: no"


def test_what_a_user_is_to_be_told_is_no_failure_of_a_control(said, monkeypatch):
    monkeypatch.setattr(planted, "_false_alarms", lambda claims: refuse())
    refuses("the connection was lost", said)


def refuse():
    raise InputError("the connection was lost")


def test_a_control_that_never_settles_has_not_held(said, monkeypatch):
    """No number of draws gives an interval that narrow; enumeration does."""
    true = planted._claim

    def never(effect):
        claim = true(effect)
        checks = tuple(
            replace(check, states=replace(check.statement, margin=1e-12)) for check in claim.checks
        )
        return replace(claim, checks=checks)

    monkeypatch.setattr(planted, "_claim", never)
    assert said()["planted effects"] == ""
    text = said(DRAWN)["planted effects"]
    assert "a mean that is off by 0 is INCONCLUSIVE" in text
    assert "a claim that is off by 0 is INCONCLUSIVE" in text


# What makes a decider lenient, one at a time.


def not_enumerated(patch):
    """A value that is no number is taken for one that cannot be enumerated."""
    true = runner._settle

    def settle(*arguments):
        result = true(*arguments)
        if result.exact is None or isfinite(result.exact.estimate):
            return result
        return evolve(result, exact=None, not_enumerated="it did not settle")

    patch.setattr(runner, "_settle", settle)


def confirmed(patch):
    """A value that is no number is confirmed."""
    true = runner.decide

    def lenient(statement, evidence, *rest):
        decision = true(statement, evidence, *rest)
        sound = isfinite(evidence.estimate)
        return decision if sound else replace(decision, verdict=Verdict.CONFIRMED)

    patch.setattr(runner, "decide", lenient)


def some_interval(kind):
    """What may be 0 is divided by, or has a logarithm."""

    def plant(patch):
        true = kind.evidence

        def narrow(self, *arguments):
            found = true(self, *arguments)
            if isfinite(found.interval.low):
                return found
            return Evidence(1.0, Interval(0.9, 1.1), 0.02, 1000, 0.05)

        patch.setattr(kind, "evidence", narrow)

    return plant


def first_verdict(patch):
    """A rival that is refuted somewhere is refuted."""
    patch.setattr(results, "EVERYWHERE", results.ON_ONE_ORIGIN)


def real_data(patch):
    """What real data cannot tell counts."""
    patch.setattr(
        results, "_rival", lambda name, *rest, true=results._rival: true(name, *unreal(*rest))
    )


def unreal(checks, kinds):
    return [
        evolve(check, origin=check.origin.replace("real", "elsewhere")) for check in checks
    ], kinds


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (not_enumerated, "a claim with a mean that is no number is CONFIRMED"),
        (not_enumerated, "a claim with a ratio that is no number is CONFIRMED"),
        (not_enumerated, "a claim with a slope that is no number is CONFIRMED"),
        (confirmed, "a claim with a mean that is no number is CONFIRMED"),
        (some_interval(planted.Ratio), "a ratio of what may be 0 is at least 0.9"),
        (some_interval(planted.LogSlope), "a slope of what may be 0 is at least 0.9"),
        (first_verdict, "with a rival near on one origin a claim is CONFIRMED, its rival REFUTED"),
        (real_data, "with a rival near on real data a claim is INCONCLUSIVE, its rival SURVIVED"),
    ],
)
def test_a_lenient_decider_is_told(said, monkeypatch, plant, told):
    plant(monkeypatch)
    assert told in said()["verdicts"]


@pytest.mark.parametrize("times", [0.999, 1.001])
def test_a_ratio_whose_interval_is_too_narrow_or_too_wide_is_told(monkeypatch, times):
    true = planted.Ratio.evidence

    def other(self, *arguments):
        found = true(self, *arguments)
        middle, half = found.estimate, times * found.interval.half_width
        return replace(found, interval=Interval(middle - half, middle + half))

    monkeypatch.setattr(planted.Ratio, "evidence", other)
    lines = list(planted._intervals())
    assert len(lines) == 3
    assert all(line.endswith("which its mean's does not give") for line in lines)


@pytest.mark.parametrize("origin", planted.ORIGINS)
def test_a_rival_that_is_planned_for_where_it_should_not_be_is_told(monkeypatch, origin):
    assert list(planted._plans(DRAWN)) == []
    true = planted.make_plan

    def turned(*arguments):
        plan = true(*arguments)
        plan.required[origin] = () if plan.required[origin] else (planted.PLANT,)
        return plan

    monkeypatch.setattr(planted, "make_plan", turned)
    dear = "planned for" if origin == "real" else "planned for nowhere"
    assert list(planted._plans(DRAWN)) == [
        f"a rival 0.02 off on {origin} problems is planned for nowhere",
        f"a rival 1e-06 off on {origin} problems is {dear}",
    ]


def test_pilots_that_verdicts_read_are_told(monkeypatch):
    monkeypatch.setattr(measurements, "PILOT_FIRST", 2**61)
    (line,) = planted._plans(DRAWN)
    assert line == f"pilots draw from replication {2**61} on, which verdicts read too"


def test_looks_that_do_not_end_or_do_not_share_are_told(monkeypatch):
    looked = planted.mean_of(planted._Looked(planted.COIN, 1), planted.ERROR)
    check = Check("looked at", "made-up", looked, equal(planted.MEAN))
    claim = Claim("mse", (), (check,), family=1)
    assert list(planted._false_alarms([claim])) == []
    with monkeypatch.context() as patch:
        patch.setattr(plan, "looks_of", lambda claim: 1)
        (line,) = planted._false_alarms([claim])
    assert line == "the checks may err at 0.003 together, which must not exceed 0.001"
    for again, told in (
        (lambda self, undecided: True, "4 looks of 3 are taken, the last at 1 times"),
        (lambda self, undecided: False, "1 looks of 3 are taken, the last at 1 times"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(plan.Plan, "look_again", again)
            (line,) = planted._false_alarms([claim])
        assert line.startswith(told)


def test_draws_are_controlled_from_end_to_end(monkeypatch):
    """Without the claims' own runs."""
    assert list(planted._drawn((), DRAWN, None)) == []
    true = ChiSquares.name.fget
    monkeypatch.setattr(ChiSquares, "name", property(lambda self: true(replace(self, number=0))))
    assert list(planted._drawn((), DRAWN, None)) == ["two cells share their draws"]


class Bits:
    """Work on blocks whose sums are made up: those of a fair share of heads, or wrong in one way."""

    options = DRAWN

    def __init__(self, heads=0.4, wrong=lambda sums: sums):
        self.heads, self.wrong = heads, wrong

    def run(self, blocks, _):
        pass

    def sums(self, blocks):
        (block,) = blocks
        heads = round(block.replications * self.heads)
        values = np.repeat([planted.HIGH, planted.LOW], [heads, block.replications - heads])
        return self.wrong(MomentSums.of(values[:, None]))


class Draws:
    """Work on blocks that are drawn as they should be, or are wrong in one way."""

    options = DRAWN

    def __init__(self, wrong=lambda sums: sums):
        self.wrong = wrong

    def run(self, blocks, _):
        pass

    def sums(self, blocks):
        (block,) = blocks
        address = {"seed": block.seed, "first": block.first, "replications": block.replications}
        return self.wrong(block.cell.measure("reference", block.quantities, **address))


ALIKE = {
    "": lambda sums: sums,
    "replications or seeds share": lambda sums: replace(sums, mean=0 * sums.mean),
    "vary 4": lambda sums: replace(sums, products=sums.products / 4),
    "vary 0.2": lambda sums: replace(sums, products=sums.products * 4),
    "a block is not its parts merged": lambda sums: replace(
        sums, products=sums.products * (1 + 1e-6 * (sums.n > planted.LANES))
    ),
}


@pytest.mark.parametrize("told", ALIKE)
def test_draws_of_their_own_are_told_from_shared_ones(told):
    quantities = TransformOf((1.0,), 1.0), Below((2.0, 1.0), 0.1)
    lines = list(planted._addresses(ChiSquares(), quantities, Draws(ALIKE[told])))
    assert any(told in line for line in lines) if told else lines == []


class Noted(Draws):
    """Draws of few replications, that notes which were asked for."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def sums(self, blocks):
        (block,) = blocks
        self.asked.append((block.first, block.replications, block.seed))
        return super().sums([replace(block, replications=min(block.replications, 8))])


@pytest.mark.parametrize(("together", "last"), [(1, 2**62), (8, 2**62)])
def test_draws_are_compared_at_every_power_of_two_and_in_both_halves_of_a_seed(together, last):
    work = Noted()
    list(planted._addresses(ChiSquares(), (TransformOf((1.0,), 1.0),), work, together))
    starts = [0, *(2**k for k in range(63) if together <= 2**k <= last)]
    alone = [*((start, together, 0) for start in starts), (0, together, 1), (0, together, 2**32)]
    spread = [(256 * k, 256, 0) for k in range(64)]
    assert work.asked == [*alone, *spread, (0, 512, 0)]


def test_the_least_runs_of_a_prompt_a_step_and_of_several_are_drawn(monkeypatch):
    """Of 100 outputs at least."""
    chosen = []
    monkeypatch.setattr(
        planted,
        "_addresses",
        lambda cell, quantities, work, together: chosen.append((cell, together)) or (),
    )
    made = {
        (steps, batch): Training(triple(), 2, steps, Constant(0.1), batch_size=batch)
        for steps, batch in ((49, 1), (50, 1), (51, 1), (24, 2), (25, 2), (26, 2))
    }
    checks = [
        SimpleNamespace(functional=planted.mean_of(cell, Gap(Estimator("grpo"), steps)))
        for (steps, _), cell in reversed(made.items())
    ]
    claim = SimpleNamespace(checks=[SimpleNamespace(functional=planted.ONCE), *checks])
    assert list(planted._runs([claim], Draws())) == []
    assert chosen == [(made[50, 1], 8), (made[25, 2], 8)]
    assert list(planted._runs([], Draws())) == []


@pytest.mark.parametrize("moved", [0, 1, -1])
def test_a_histogram_of_other_values_is_told(moved, monkeypatch):
    """By one bin, to either side."""
    monkeypatch.setattr(planted, "_addresses", lambda *_: iter(()))

    def rolled(sums):
        return replace(
            sums, counts={name: np.roll(row, moved) for name, row in sums.counts.items()}
        )

    lines = list(planted._runs([claim_of_runs()], Draws(rolled)))
    assert {*lines} == ({"the histogram of a law is not that of its values"} if moved else set())


def test_sums_of_tosses_are_told_from_others():
    deviation = sqrt(0.4 * 0.6 / sum(planted.SIZES))
    assert list(planted._sums(Bits())) == []
    assert list(planted._sums(Bits(0.4 + 5 * deviation))) == []
    lines = list(planted._sums(Bits(0.4 + 7 * deviation)))
    assert len(lines) == 2
    assert all("heads in 65536 tosses of chance 0.4, 7.0 deviations off" in line for line in lines)

    def larger(sums):
        return MomentSums(sums.n, sums.mean, sums.products * (1 + 1e-6))

    lines = list(planted._sums(Bits(wrong=larger)))
    assert any(
        "the standard error of a block is 1 times that of their tosses" in line for line in lines
    )

    def fewer(sums):
        return MomentSums(sums.n - (sums.n == 7), sums.mean, sums.products)

    assert list(planted._sums(Bits(wrong=fewer))) == [
        "the mean of merged blocks is not that of their tosses"
    ]
