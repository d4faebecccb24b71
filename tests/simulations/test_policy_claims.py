"""Claims on whole training runs: equal bytes in any circumstance, planted errors seen, designs sound."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from math import log
from multiprocessing import get_context

import numpy as np
import pytest
from attrs import evolve

from simulations import Suite
from simulations import claim as claim_of
from simulations.problems.landscapes import triple
from simulations.problems.optima import ball, covariance_of
from ustat_pg.checks import RivalVerdict, Verdict, equal, positive
from ustat_pg.distributions import WeightedChi2
from ustat_pg.engines import Decay, Estimator, Gap, GapTransform, Pit, Training
from ustat_pg.experiment import (
    Check,
    Claim,
    Interrupted,
    LawDistance,
    LawExcess,
    LawShare,
    Linear,
    LogSlope,
    Options,
    Ratio,
    Store,
    mean_of,
    options,
    run_claims,
)
from ustat_pg.experiment.measurements import Measurements
from ustat_pg.experiment.runner import check_alone
from ustat_pg.predictions import finite_weights, sup_distance
from ustat_pg.results import plain

GRPO, ORACLE = Estimator("grpo"), Estimator("oracle")
LANDSCAPE = triple()
STEPS, EARLY = 50, 25
SCHEDULE = Decay(2.0 / float(LANDSCAPE.curvatures[0]), 100.0)
OTHER = "oracle's weights"
DIGITS = 0.02
"""Own error of the linear recursion after so few steps."""


def training(group_size=2):
    """Runs from the optimum, on a ball which makes the range of gaps small."""
    return Training(LANDSCAPE, group_size, STEPS, SCHEDULE, projection=ball(LANDSCAPE, 1.0))


@lru_cache
def weights(baseline, group_size=2, steps=STEPS):
    """Weights of the gap's law, by the linear recursion."""
    noise = covariance_of(LANDSCAPE, baseline, group_size)
    return tuple(finite_weights(LANDSCAPE.curvatures, noise, SCHEDULE.rates(steps)).tolist())


def transform(own, rate):
    return float(np.prod((1 + 2 * rate * np.array(own)) ** -0.5))


def small_claim(factor: float = 1.0, law: float = 1.0) -> Claim:
    """A check of each kind; weights times ``factor`` in a prediction, ``law`` in a distribution."""
    runs, own, wrong = training(), weights("grpo"), weights("oracle")
    rate = 1 / sum(own)
    said = tuple(factor * weight for weight in own)
    pit, against = (Pit(e, STEPS, tuple(law * w for w in own)) for e in (GRPO, ORACLE))
    apart = sup_distance(WeightedChi2(wrong), WeightedChi2(own))
    early = Gap(GRPO, EARLY)
    checks = [
        Check(
            "transform",
            "made-up",
            mean_of(runs, GapTransform(GRPO, STEPS, rate)),
            equal(transform(said, rate), {OTHER: transform(wrong, rate)}, scale=1.0, digits=DIGITS),
        ),
        Check(
            "order",
            "made-up",
            Linear(runs, ((Gap(GRPO, STEPS), 1.0), (Gap(ORACLE, STEPS), -1.0))),
            positive(sum(own) - sum(wrong), [OTHER], scale=sum(own)),
        ),
        Check(
            "growth",
            "made-up",
            Ratio(mean_of(runs, Gap(GRPO, STEPS)), mean_of(runs, early), sum(weights("grpo", 2, EARLY))),
            equal(sum(said) / sum(weights("grpo", 2, EARLY)), digits=0.1, relative_margin=0.2),
        ),
        Check(
            "ratio across cells",
            "made-up",
            LogSlope(
                (0.0, 1.0),
                (mean_of(runs, Gap(GRPO, STEPS)), mean_of(training(4), Gap(GRPO, STEPS))),
                (sum(own), sum(weights("grpo", 4))),
            ),
            equal(
                log(sum(weights("grpo", 4)) / sum(said)), scale=1.0, digits=0.05, relative_margin=0.2
            ),
        ),
        Check(
            "distribution",
            "made-up",
            LawDistance(runs, pit),
            equal(0.0, {OTHER: apart}, scale=1.0, relative_margin=0.05, digits=2 * DIGITS),
        ),
        Check(
            "excess",
            "made-up",
            LawExcess(runs, against, pit),
            equal(apart, {OTHER: 0.0}, scale=1.0, relative_margin=0.1, digits=2 * DIGITS),
        ),
        Check(
            "share",
            "made-up",
            LawShare(runs, pit, 0.5),
            equal(0.5, scale=1.0, relative_margin=0.05, digits=DIGITS),
        ),
    ]  # fmt: skip
    return Claim("limit_law", (OTHER,), tuple(checks))


def claims_of(run) -> str:
    return json.dumps([plain(result) for result in run.claims])


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(options, "LARGEST_BLOCK", 2048)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(options, "LARGEST_BLOCK", 2048)
        return run_claims(
            [small_claim()], Options("smoke"), Store(tmp_path_factory.mktemp("whole"))
        )


# Runs.


def test_a_true_claim_is_confirmed_and_its_rival_refuted(whole):
    (result,) = whole.claims
    for check in result.checks:
        for kind, found in check.found.items():
            assert found.verdict == Verdict.CONFIRMED, (check.name, kind)
    assert result.verdict == Verdict.CONFIRMED
    (rival,) = result.rivals
    assert rival.exact == rival.simulation == rival.verdict == RivalVerdict.REFUTED


def test_which_checks_have_which_evidence(whole):
    exact = [c.name for c in whole.claims[0].checks if "exact" in c.found]
    assert exact == ["transform", "order", "growth", "ratio across cells"]
    for check in whole.claims[0].checks:
        assert "simulation" in check.found
        said = check.not_enumerated
        assert (said is None) == (check.name in exact)
        assert said is None or "compared by simulation" in said


def test_several_blocks_are_merged(whole):
    drawn = [c.found["simulation"].replications for c in whole.claims[0].checks]
    assert min(drawn) >= 2 * options.LARGEST_BLOCK


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_no_byte(workers, whole, tmp_path):
    run = run_claims([small_claim()], Options("smoke", workers=workers), Store(tmp_path))
    assert claims_of(run) == claims_of(whole)


def test_processes_change_no_byte(whole, tmp_path):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        run = run_claims([small_claim()], Options("smoke"), Store(tmp_path), pool)
    assert claims_of(run) == claims_of(whole)


def test_interruptions_change_no_byte_and_lose_no_block(whole, tmp_path):
    finished = 0
    for allowed in (1, 3):
        left = [allowed]

        def interrupt(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

        with pytest.raises(Interrupted):
            run_claims([small_claim()], Options("smoke"), Store(tmp_path), on_done=interrupt)
        now = len(list(tmp_path.glob("*.json")))
        assert now >= finished + allowed
        finished = now
    count = [0]

    def tick() -> None:
        count[0] += 1

    run = run_claims([small_claim()], Options("smoke"), Store(tmp_path), on_done=tick)
    assert claims_of(run) == claims_of(whole)
    assert count[0] == len(list(tmp_path.glob("*.json"))) - finished > 0


def test_other_seeds_draw_something_else(whole, tmp_path):
    run = run_claims([small_claim()], Options("smoke", seed=1), Store(tmp_path))
    assert run.claims[0].verdict == Verdict.CONFIRMED
    for one, two in zip(run.claims[0].checks, whole.claims[0].checks, strict=True):
        drawn = [c.found["simulation"].estimate for c in (one, two)]
        assert drawn[0] != drawn[1]
        assert ("exact" in one.found) == ("exact" in two.found)
        if "exact" in one.found:
            assert one.exact == two.exact


def test_the_reference_engine_gives_the_same_verdicts(whole, tmp_path):
    claim = small_claim()
    keep = ("transform", "distribution", "share")
    part = Claim(claim.stem, claim.rivals, tuple(c for c in claim.checks if c.name in keep))
    run = run_claims([part], Options("smoke", engine="reference"), Store(tmp_path))
    compiled = {c.name: c for c in whole.claims[0].checks}
    assert run.claims[0].verdict == Verdict.CONFIRMED
    for check in run.claims[0].checks:
        other = compiled[check.name]
        for kind, found in check.found.items():
            decided = other.found[kind]
            assert (found.verdict, found.rivals) == (decided.verdict, decided.rivals)


def test_the_exact_engine_alone(tmp_path):
    claim = small_claim()
    part = Claim(claim.stem, claim.rivals, claim.checks[:4])
    run = run_claims([part], Options("smoke", engine="exact"), Store(tmp_path))
    assert run.claims[0].verdict == Verdict.CONFIRMED
    assert run.claims[0].evidence("simulation") is None


# Planted errors.


@pytest.mark.parametrize("factor", [1.25, 0.8, 2.0])
def test_a_wrong_prediction_is_refuted_by_both_kinds_of_evidence(factor, tmp_path):
    run = run_claims([small_claim(factor)], Options("smoke"), Store(tmp_path))
    (result,) = run.claims
    assert result.verdict == Verdict.REFUTED
    found = {c.name: c.found for c in result.checks}
    for name in ("transform", "growth", "ratio across cells"):
        for kind in ("exact", "simulation"):
            assert found[name][kind].verdict == Verdict.REFUTED, (name, kind)
    assert result.evidence("exact") == result.evidence("simulation") == Verdict.REFUTED


def test_a_wrong_law_is_refuted_by_simulation(tmp_path):
    run = run_claims([small_claim(law=1.4)], Options("smoke"), Store(tmp_path))
    found = {c.name: c.found for c in run.claims[0].checks}
    for name in ("distribution", "share"):
        assert found[name]["simulation"].verdict == Verdict.REFUTED
    # The law sets the edges alone of where two samples are compared.
    assert found["excess"]["simulation"].verdict == Verdict.CONFIRMED
    assert run.claims[0].verdict == Verdict.REFUTED


@pytest.mark.parametrize("change", ["schedule", "start", "estimator"])
def test_runs_of_something_else_are_refuted(change, tmp_path):
    """The prediction is right, and what is run is not what it is of."""
    claim = small_claim()
    check = claim.checks[0]
    rate = 1 / sum(weights("grpo"))
    asked = {"schedule": SCHEDULE, "projection": ball(LANDSCAPE, 1.0), "start": None}
    if change == "schedule":
        asked["schedule"] = Decay(SCHEDULE.c, 60.0)
    if change == "start":
        asked["start"] = LANDSCAPE.maximiser + 0.3
    estimator = ORACLE if change == "estimator" else GRPO
    runs = Training(LANDSCAPE, 2, STEPS, **asked)
    wrong = Check(
        check.name,
        check.origin,
        mean_of(runs, GapTransform(estimator, STEPS, rate)),
        check.statement,
    )
    run = run_claims([Claim(claim.stem, claim.rivals, (wrong,))], Options("smoke"), Store(tmp_path))
    for kind in ("exact", "simulation"):
        assert run.claims[0].evidence(kind) == Verdict.REFUTED


# One check alone.


@pytest.mark.parametrize("place", range(7))
def test_a_check_alone_is_the_runs_to_the_last_bit(place, whole):
    claim = small_claim()
    (plan,) = whole.plans
    name = claim.checks[place].name
    cells = dict.fromkeys(cell.name for cell in claim.checks[place].functional.cells)
    drawn = [plan.replications[cell] for cell in cells]
    alone = check_alone(claim, name, Options("smoke", workers=2), drawn, plan.required[name])
    stored = whole.claims[0].checks[place]
    assert alone.exact == stored.exact
    # Only the run's own pilots know what the check needs.
    assert alone.simulation == evolve(stored.simulation, replications_needed=0)
    assert alone.not_enumerated == stored.not_enumerated


def test_a_check_alone_with_another_number_draws_that_many():
    alone = check_alone(small_claim(), "distribution", Options("smoke"), [3000])
    assert alone.found["simulation"].replications == 3000


# The delivered designs.

LISTED = {
    "suboptimality": (
        "mu for 2 mu", "L eta/2 for L eta", "oracle's M at small G", "slope -1/2 in T",
        "no floor for the constant schedule",
    ),
    "limit_law": (
        "normal", "equal weights", "one chi-square with the same mean",
        "oracle's weights at G = 2", 'no "-1" in the Lyapunov denominator', "no 1/2",
        "G^2 for G(G-1)", "c1 dropped", "Hessian unprojected",
    ),
}  # fmt: skip
"""The wrong formulas of the theory's section 8."""


@lru_cache
def delivered(stem, seed):
    return claim_of(stem, Suite("smoke", seed))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("stem", LISTED)
class TestDesigns:
    def test_names_are_unique_and_both_groups_are_there(self, stem, seed):
        claim = delivered(stem, seed)
        assert len({check.name for check in claim.checks}) == len(claim.checks)
        assert {check.origin for check in claim.checks} >= {"made-up", "generated"}
        made_up = [c.name for c in claim.checks if c.origin == "made-up"]
        assert made_up == [c.name for c in delivered(stem, 0).checks if c.origin == "made-up"]

    def test_every_listed_rival_is_told_apart_by_both_kinds_of_evidence(self, stem, seed):
        claim = delivered(stem, seed)
        assert set(LISTED[stem]) <= set(claim.rivals)
        functionals = (check.functional for check in claim.checks)
        measured = Measurements(functionals, Options("smoke"))
        for rival in claim.rivals:
            for origin in ("made-up", "generated"):
                apart = [
                    check
                    for check in claim.checks
                    if check.origin == origin
                    and rival in check.statement.rivals
                    and check.statement.distinguishable(rival)
                    and measured.why_not_exact(check.functional) is None
                ]
                assert apart, (rival, origin)
                # Farther than what the prediction itself may be off by.
                best = max(c.statement.gap(rival) / slack(c.statement) for c in apart)
                assert best > 2, (rival, origin, best)

    def test_predictions_lie_in_their_own_regions(self, stem, seed):
        for check in delivered(stem, seed).checks:
            statement = check.statement
            assert statement.region.contains(statement.prediction), check.name
            assert np.isfinite(statement.margin)


def slack(statement):
    """How far the statement's region reaches towards larger values than predicted, or lower ones."""
    region = statement.region
    return max(min(region.high - statement.prediction, statement.prediction - region.low), 1e-12)
