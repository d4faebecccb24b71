"""Looks: verdicts asked of more and more draws, whose intervals together err no more than one may."""

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
import pytest
from scipy.stats import binom, norm

from simulations.evidence import (
    Check,
    Claim,
    Evidence,
    Interval,
    Linear,
    Options,
    Verdict,
    equal,
    plan,
    run_claims,
)
from simulations.evidence.measurements import PILOT_FIRST
from simulations.evidence.store import Memory
from ustat_pg.engines import Cell, InfeasibleError, MomentSums

RATE = 0.2
"""At which a check may err here."""
RUNS = 100


@dataclass(frozen=True)
class Draw:
    """One draw."""

    label: str = "draw"


@dataclass(frozen=True)
class Normals(Cell):
    """Standard normal draws; a pilot's have another standard deviation, as a small one's may."""

    looks: int = 4
    pilot_spread: float = 1.0

    block = outputs = 16
    batch_size = steps = group_size = 1
    engines, bounded = ("cpu",), False

    @property
    def name(self):
        return f"normals, {self.looks} looks"

    def range(self, quantity):
        return -inf, inf

    def rounding(self, quantity):
        return 0.0

    def require_quantity(self, quantity):
        pass

    def require_exact(self, quantities):
        raise InfeasibleError("normal draws cannot be listed")

    def _measure(self, engine, quantities, block):
        generator = np.random.default_rng([block.seed, block.first])
        spread = self.pilot_spread if block.first >= PILOT_FIRST else 1.0
        return MomentSums.of(spread * generator.standard_normal((block.count, 1)))


class Mean(Linear):
    """A mean of normal draws whose interval is the narrowest that errs at its rate."""

    def evidence(self, sums, alpha, pilots):
        n, mean, _ = self.moments(sums)
        half = norm.isf(alpha / 2) / sqrt(n)
        return Evidence(mean, Interval(mean - half, mean + half), 1 / sqrt(n), n, alpha)


def settled(cell, functional, margin, seed=0, **words):
    """The result of the one check that the mean is 0."""
    check = Check("mean", "made-up", functional, equal(0.0, scale=1.0, relative_margin=margin))
    run = run_claims([Claim("mse", (), (check,))], Options("smoke", seed=seed), Memory(), **words)
    return run.claims[0].checks[0].findings["simulation"]


def refuted(looks):
    """In how many runs a true statement is refuted, where no look but the last confirms it."""
    cell = Normals(looks)
    mean = Mean(cell, ((Draw(), 1.0),))
    # Asked for so much that each run begins with four blocks and never ends early.
    result = [settled(cell, mean, 1e-9, seed) for seed in range(RUNS)]
    assert {each.verdict for each in result} <= {Verdict.REFUTED, Verdict.INCONCLUSIVE}
    return sum(each.verdict == Verdict.REFUTED for each in result)


def test_looks_together_err_at_the_rate_of_one(monkeypatch):
    monkeypatch.setattr(plan, "alpha_of", lambda claim: RATE)
    most = binom.isf(1e-4, RUNS, RATE)
    assert binom.ppf(1e-4, RUNS, RATE / 4) < refuted(looks=4) <= most
    assert refuted(looks=1) <= most
    # Four looks at the whole rate each would err more often.
    monkeypatch.setattr(plan, "looks_of", lambda claim: 1)
    assert refuted(looks=4) > most


@pytest.mark.parametrize(("looks", "verdict"), [(1, Verdict.INCONCLUSIVE), (4, Verdict.CONFIRMED)])
def test_a_pilot_that_sees_too_little_costs_looks_not_the_verdict(looks, verdict):
    cell = Normals(looks, pilot_spread=0.5)
    drawn: list[None] = []
    result = settled(cell, Linear(cell, ((Draw(), 1.0),)), 0.1, on_done=lambda: drawn.append(None))
    assert result.verdict == verdict
    planned = -(-result.replications_needed // cell.block) * cell.block
    assert result.replications == looks * planned
    # A pilot, and every block once: those of earlier looks are kept.
    assert len(drawn) == 1 + result.replications // cell.block


def test_a_claim_that_is_refuted_is_looked_at_no_more():
    cell = Normals(4)
    mean = Linear(cell, ((Draw(), 1.0),))
    wrong, never_known = (
        Check(name, "made-up", mean, equal(value, scale=1.0, relative_margin=margin))
        for name, value, margin in (("wrong", 1.0, 0.1), ("never known", 0.0, 1e-9))
    )
    for checks, looks in (((never_known,), 4), ((wrong, never_known), 1)):
        run = run_claims([Claim("mse", (), checks)], Options("smoke"), Memory())
        assert [plan.look for plan in run.plans] == [looks]
