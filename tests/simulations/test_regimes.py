"""Regimes that a run draws from its seed: they hold, differ by seed, and see an error there alone."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from simulations import STEMS, Suite, claim, regimes
from simulations.regimes import MODULES, checks, gradients
from ustat_pg.checks import Verdict, decide
from ustat_pg.engines import MomentSums


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
    assert not confirmed(drawn.check("two exchanged", known[[1, 0, 2]], known))
    assert not confirmed(drawn.check("beyond its limit", 1 + 1e-7, 1.0))
    assert confirmed(drawn.check("within its limit", 1 + 1e-7, 1.0, 1e-6))
    with pytest.raises(ArithmeticError, match="shapes"):
        drawn.check("another shape", known, known[:2])
