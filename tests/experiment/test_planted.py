"""Controls: an error planted in what draws, merges, measures or decides is noticed by every run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.claims import claim_of_runs, small_claim
from ustat_pg import rng
from ustat_pg.checks import Decision, Evidence, Interval, Verdict, intervals
from ustat_pg.engines import GradientCell, MomentSums, Training
from ustat_pg.engines.base import Replications
from ustat_pg.experiment import (
    Options,
    Store,
    functionals,
    measurements,
    plan,
    planted,
    run_claims,
    runner,
)
from ustat_pg.experiment.planted import run_controls
from ustat_pg.experiment.provenance import document
from ustat_pg.report import exit_code, html, markdown, remarks, verdict_table
from ustat_pg.results import load_run

CLAIMS = (small_claim(), claim_of_runs())
OPTIONS = Options("smoke")


def failed(options=OPTIONS):
    return {control.name for control in run_controls(CLAIMS, options) if not control.held}


@pytest.mark.parametrize("seed", [0, 1, 2, 31337])
def test_a_sound_program_passes_its_controls(seed):
    found = run_controls(CLAIMS, Options("smoke", seed=seed, workers=2))
    assert [control.said for control in found] == [""] * 5


def test_by_enumeration_alone_there_is_nothing_drawn_to_control():
    names = [control.name for control in run_controls(CLAIMS, Options("smoke", "exact"))]
    assert names == ["planted effects", "verdicts", "false alarms"]


def merged(change):
    """Merging with another mean or products."""
    true = MomentSums.merge
    return MomentSums, "merge", lambda self, other: change(true(self, other), self, other)


def drawn(kind, stride):
    """Replications that come again after so many."""
    true = kind._measure

    def measure(self, engine, quantities, block):
        if engine == "exact":
            return true(self, engine, quantities, block)
        parts, first, left = [], block.first % stride, block.count
        while left:
            count = min(left, stride - first)
            parts.append(true(self, engine, quantities, Replications(block.seed, first, count)))
            first, left = 0, left - count
        total = parts[0]
        for part in parts[1:]:
            total = total.merge(part)
        return total

    return kind, "_measure", measure


def apart(found, one, other):
    """Merged sums whose means' distance is missing from the products of two quantities."""
    products = found.products.copy()
    off = ~np.eye(len(products), dtype=bool)
    products[off] = (one.products + other.products)[off]
    return replace(found, products=products)


def restarted(seam):
    """A block that runs past a seam goes on with the first replication."""
    true = GradientCell._measure

    def measure(self, engine, quantities, block):
        before = seam - block.first
        if engine == "exact" or not 0 < before < block.count:
            return true(self, engine, quantities, block)
        pieces = (block.first, before), (0, block.count - before)
        first, second = (
            true(self, engine, quantities, Replications(block.seed, *piece)) for piece in pieces
        )
        return first.merge(second)

    return GradientCell, "_measure", measure


def histogram(self, engine, quantities, block):
    """Runs whose histograms begin with the second bin."""
    found = measured(self, engine, quantities, block)
    return replace(found, counts={name: np.roll(n, -1) for name, n in found.counts.items()})


def without_covariances(self, sums):
    """Moments of a combination whose terms count as uncorrelated."""
    labels, block = sums[self.cell.name]
    n, mean, _ = moments(self, sums)
    weights = dict.fromkeys(labels, 0.0)
    for quantity, weight in self.weights:
        weights[quantity] += weight
    return n, mean, float(np.array(list(weights.values())) ** 2 @ np.diagonal(block.covariance))


def evidence(functional, change):
    """Evidence of a functional, changed."""
    true = functional.evidence

    def changed(self, sums, alpha, pilots):
        found = true(self, sums, alpha, pilots)
        return replace(found, **change(found))

    return functional, "evidence", changed


def narrower(share):
    def change(found):
        off = found.interval.half_width * share
        return {"interval": Interval(found.estimate - off, found.estimate + off)}

    return change


reaches, key, words = intervals.Forecast._reaches, rng.cell_key, rng.words
measured, moments = Training._measure, functionals.Linear.moments
equal, decide = planted.equal, runner.decide


def wide(prediction, rivals=None, **words):
    return equal(prediction, rivals, **{"digits": 0.03 * abs(prediction), **words})


def never_refuted(statement, evidence, required=None):
    found = decide(statement, evidence, required)
    kind = Verdict.CONFIRMED if found.verdict == Verdict.REFUTED else found.verdict
    return Decision(kind, found.rivals)


ERRORS = {
    "products averaged": [
        merged(lambda f, a, b: replace(f, products=(a.products + b.products) / 2))
    ],
    "means averaged": [merged(lambda f, a, b: replace(f, mean=(a.mean + b.mean) / 2))],
    "between blocks forgotten": [
        merged(lambda f, a, b: replace(f, products=0.999 * f.products)),
    ],
    "variance by n": [
        (MomentSums, "covariance", property(lambda self: self.products / max(self.n, 1))),
    ],
    "variance of several quantities by n": [
        (
            MomentSums,
            "covariance",
            property(lambda self: self.products / max(self.n - (len(self.mean) == 1), 1)),
        ),
    ],
    "products of two quantities without their means": [merged(apart)],
    "a block begins again at 2^32": [restarted(1 << 32)],
    "every 16384th replication again": [drawn(GradientCell, 16_384)],
    "every 1024th replication again": [drawn(GradientCell, 1024)],
    "every 8192nd run again": [drawn(Training, 8192)],
    "cells share their draws": [(rng, "cell_key", lambda seed, cell: key(seed, ""))],
    "interval half as wide": [
        (intervals.Forecast, "_reaches", lambda *a: tuple(side / 2 for side in reaches(*a))),
    ],
    "interval's sides exchanged": [
        (intervals.Forecast, "_reaches", lambda *a: reaches(*a)[::-1]),
    ],
    "interval about a centre that is not the forecast's": [
        (
            intervals.Forecast,
            "interval",
            lambda self, n, mean, variance, alpha: Interval(
                *(
                    mean + s * b
                    for s, b in zip((-1, 1), self._reaches(n, variance, alpha), strict=True)
                )
            ),
        ),
    ],
    "covariances of quantities left out": [(functionals.Linear, "moments", without_covariances)],
    "a law's histogram one bin off": [(Training, "_measure", histogram)],
    "every 1024th replication of NumPy's words again": [
        (rng, "words", lambda key, r, *more: words(key, np.asarray(r) % 1024, *more)),
    ],
    "mean's interval half as wide": [evidence(functionals.Linear, narrower(0.5))],
    "ratio's interval a third as wide": [evidence(functionals.Ratio, narrower(1 / 3))],
    "slope's interval half as wide": [evidence(functionals.LogSlope, narrower(0.5))],
    "law's band half as wide": [
        (functionals, "_band", lambda n, a: (np.log(2 / a) / (8 * n)) ** 0.5)
    ],
    "an eigenvalue's interval a quarter narrower": [
        evidence(functionals.Eigenvalue, narrower(0.75))
    ],
    "the range of a sum is that of its first term": [
        (
            functionals.Linear,
            "range",
            property(lambda self: self.cell.ends(self.weights[0][0])),
        ),
    ],
    "pilots on the replications of verdicts": [(measurements, "PILOT_FIRST", 0)],
    "standard error too small": [
        evidence(functionals.Linear, lambda found: {"standard_error": 0.9 * found.standard_error}),
    ],
    "rates of a half": [(plan, "allotted_alpha", lambda stem, checks: 0.5 / 16 / checks)],
    "regions of 3%": [(planted, "equal", wide)],
    "never REFUTED": [(runner, "decide", never_refuted)],
    "the decider's verdicts all CONFIRMED": [
        (
            planted,
            "decide",
            lambda s, e, r=None: Decision(Verdict.CONFIRMED, decide(s, e, r).rivals),
        ),
    ],
}


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_of_the_machinery_is_noticed(error, monkeypatch):
    for place, name, wrong in ERRORS[error]:
        monkeypatch.setattr(place, name, wrong)
    assert failed()


def test_a_control_that_cannot_be_asked_has_not_held(monkeypatch):
    def shapes(*_):
        raise ValueError("all input arrays must have the same shape")

    monkeypatch.setattr(rng, "words", shapes)
    said = {control.name: control.said for control in run_controls(CLAIMS, OPTIONS)}
    assert said["draws and sums"] == "ValueError: all input arrays must have the same shape"
    assert not said["intervals"]


def test_a_failed_control_leaves_nothing_confirmed(tmp_path, monkeypatch):
    run = run_claims([small_claim()], OPTIONS, Store(tmp_path))
    assert exit_code(run.claims) == 0
    sound = run.controlled(run_controls(CLAIMS, OPTIONS))
    assert sound.claims == run.claims
    assert exit_code(sound.claims, sound.controls) == 0
    assert "5 of 5 held" in verdict_table(sound.claims, controls=sound.controls)
    with monkeypatch.context() as patch:
        patch.setattr(plan, "allotted_alpha", lambda stem, checks: 0.5)
        doubted = run.controlled(run_controls(CLAIMS, OPTIONS))
    assert [claim.verdict for claim in doubted.claims] == [Verdict.INCONCLUSIVE]
    assert exit_code(doubted.claims, doubted.controls) == 1
    assert "FAILED" in verdict_table(doubted.claims, controls=doubted.controls)
    (remark,) = remarks(doubted.claims, (), doubted.controls)
    assert remark.startswith("control of false alarms FAILED, so that this run confirms nothing")
    for found, words in ((sound, "draws and sums held."), (doubted, "false alarms FAILED")):
        results = document(found, OPTIONS)
        (tmp_path / "verdicts.json").write_text(results.json())
        assert load_run(tmp_path) == results
        assert words in markdown(results)
        assert words in html(results)


def test_evidence_without_a_number_confirms_nothing():
    none = Evidence(float("nan"), Interval(-float("inf"), float("inf")))
    assert decide(equal(1.0), none).verdict == Verdict.INCONCLUSIVE
