"""Regimes that a run draws from its seed: they hold, differ by seed, and see an error there alone."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from simulations import STEMS, Suite, claim, regimes
from simulations.evidence import Verdict, decide
from simulations.regimes import MODULES, checks, gradients, laws, sizes
from ustat_pg.engines import Estimator, MomentSums
from ustat_pg.predictions import MseConstants


def refuted(stem, seed=0):
    """The names of a stem's checks that are not confirmed, and of all."""
    result = list(checks(stem, Suite("smoke", seed)))
    names = [check.name for check in result]
    return [name for name, check in zip(names, result, strict=True) if not confirmed(check)], names


def confirmed(check):
    """Whether a check that reads no measurement is confirmed, by enumeration and by simulation."""
    part = check.functional
    sums = {part.cell.name: (part.quantities, MomentSums.of(np.zeros((2, 1))))}
    return decide(check.statement, part.evidence(sums, 1e-3, sums)).verdict == Verdict.CONFIRMED


ASKED = sorted(
    {stem for name in MODULES for stem in import_module(f"simulations.regimes.{name}").ASKED}
)


@pytest.mark.parametrize("stem", ASKED)
def test_every_regime_holds_and_another_seed_has_others(stem):
    assert stem in STEMS
    every = set()
    for seed in (1, 2, 3):
        wrong, names = refuted(stem, seed)
        assert not wrong
        assert len(set(names)) == len(names)
        assert not every & set(names)
        every |= set(names)


def test_a_claim_has_the_regimes_of_its_stem_on_bandits_alone():
    names = {check.name for check in claim("mse", Suite("smoke")).checks}
    assert {check.name for check in checks("mse", Suite("smoke"))} < names
    tokens = claim("mse", Suite("smoke", on="tokens"))
    assert not any("errors#" in check.name for check in tokens.checks)


def test_an_error_of_large_batches_alone_is_refuted(monkeypatch):
    def wrong(moments, name, group_size, batch_size=1, *args, **options):
        result = real(moments, name, group_size, batch_size, *args, **options)
        return replace(result, mse=result.mse * (1 + 1e-6 * (batch_size >= 32)))

    real = gradients.gradient_mse
    assert not refuted("mse")[0]
    monkeypatch.setattr(gradients, "gradient_mse", wrong)
    assert any("error of grpo" in name for name in refuted("mse")[0])


def test_arrays_are_compared_entry_by_entry():
    drawn = regimes.Drawn(np.random.default_rng(0), "arrays")
    known = np.array([1.0, 2.0, 3.0])
    assert confirmed(drawn.check("alike", known, known))
    assert not confirmed(drawn.check("two exchanged", known[[1, 0, 2]], known, 0.1))
    assert not confirmed(drawn.check("no number", np.array([1.0, np.nan, 3.0]), known, 0.1))
    # Each entry has the error of its own terms, whatever the others are.
    errors = np.array([1e-9, 1e-2, 1e-2])
    assert not confirmed(drawn.check("beyond its error", known + 1e-3, known, errors))
    assert confirmed(drawn.check("within its error", [1.0, 2.001, 3.001], known, errors))
    with pytest.raises(ArithmeticError, match="shapes"):
        drawn.check("another shape", known, known[:2])


def test_terms_that_cancel_leave_their_rounding():
    rng = np.random.default_rng(1)
    law = gradients.Law.of(gradients.problem(regimes.Drawn(rng, ""), 4), Estimator("grpo"), 5)
    gradient = law.problem.gradient()
    along = law.problem.context_probs @ law.means
    # The mean of an unbiased estimate less the gradient is all rounding, and its error knows it.
    mean, error = law.mean
    assert (np.abs(along - gradient) < 1e-3 * error).all()
    assert (error > 1e-10 * np.abs(mean)).all()
    squared, off = law.error(1, "iid")
    assert 0 < off < 1e-8 * squared


@pytest.mark.parametrize("least", [0.0, 2.5, 3.0 - 1e-12])
def test_a_search_finds_the_root_of_the_derivative(least):
    place, error = sizes.lowest(lambda u: u + 9 / u, least)
    assert place == pytest.approx(3.0, abs=error)
    assert error < 1e-8
    assert sizes.lowest(lambda u: u + 9 / u, 4.0)[0] == 4.0


@pytest.mark.parametrize("of", [lambda u: 1 / u, lambda u: u])
def test_a_search_says_that_its_bounds_bind(of):
    with pytest.raises(ArithmeticError, match="bounds bind"):
        sizes.lowest(of)


def test_places_between_which_rounding_decides_are_all_right():
    answers = [(4, 2), (5, 2)]
    assert regimes.one_of((5, 2), answers) == (5, 2)
    assert regimes.one_of((6, 2), answers) == (4, 2)
    # Both groups have the error 6, one by its last bit; a limit is met but for rounding.
    known = MseConstants(c1=1.0, c2=1.0, c3=2.0)
    assert set(sizes._nearest(known, 6, 5.0)) == {(0, 2), (0, 3)}


@pytest.mark.parametrize(
    ("question", "seed", "number"),
    [
        # G* beyond the budget's outputs, with costs and with few prompts.
        (sizes.optima, 7, 1),
        (sizes.optima, 12, 1),
        (sizes.optima, 33, 2),
        (sizes.optima, 69, 1),
        # The least group is where all prompts are in use, and rounding puts it on either side.
        (sizes.optima, 9, 2),
        # A quantile where the law is flat.
        (laws.mixtures, 3, 3),
    ],
)
def test_what_was_refuted_for_the_evidence_alone_is_confirmed(question, seed, number):
    drawn = regimes.drawn(question, seed, number)
    assert [check.name for check in question(drawn) if not confirmed(check)] == []
