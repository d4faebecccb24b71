"""Approximate evidence knows its own error: the seeds at which it did not, and what it rests on."""

import numpy as np
import pytest

from simulations import Suite, claim
from simulations.evidence import Options, Verdict, mean_of
from simulations.evidence.runner import check_alone
from simulations.problems import landscapes, mse_of
from simulations.problems.landscapes import Landscapes, apart
from simulations.shared.argmin import Lowest
from simulations.shared.basins import Scan, largest
from ustat_pg.engines import GradientCell


def test_a_pilot_that_sees_no_run_stopped_leaves_no_verdict_open():
    designed = claim("suboptimality", Suite("smoke", 3))
    name = "dome#3.0 G=2 T=80, decay rate: stops at the edge of the ball, a run"
    found = check_alone(designed, name, Options("smoke", seed=3), (9216,))
    assert found.verdict == Verdict.CONFIRMED
    assert found.findings["simulation"].interval.low == 0


@pytest.mark.parametrize("radius", [0.01, 1.0])
def test_a_scans_derivatives_and_ratios_are_those_of_the_return(radius):
    landscape = Suite("smoke", 1).landscapes["shoulder"][1].problem
    scan = Scan.of(landscape, radius)
    theta = landscape.maximiser + scan.away[:, None] * landscape.identifiable[:, 0]
    gradient = landscape.gradient(theta) @ landscape.identifiable[:, 0]
    bend = -np.array([float(landscape.hessian(each)[0, 0]) for each in theta])
    assert 0 < scan.error < 1e-10
    assert np.abs(scan.slope + gradient).max() < 1e-12
    assert np.abs(scan.bend - bend).max() < scan.error
    away = np.delete(scan.away, len(theta) // 2)
    pulls, ratios = (np.delete(values, len(theta) // 2) for values in (scan.pulls, scan.ratios))
    slope, gap = (
        np.delete(values, len(theta) // 2) for values in (-gradient, landscape.gap(theta))
    )
    assert np.abs(pulls - slope / away).max() < scan.error
    assert np.abs(ratios - slope**2 / (2 * gap)).max() < scan.error
    assert scan.ratios[len(theta) // 2] == pytest.approx(scan.curvature, abs=scan.error)


def test_a_least_value_between_the_points_of_a_grid_is_within_its_error():
    landscape = Suite("smoke").landscapes["shoulder"][0].problem
    coarse, fine = (Scan.of(landscape, 1.0, points) for points in (41, 4001))
    for name in ("ratios", "pulls", "bend", "noise"):
        for sign in (1.0, -1.0):
            one, other = (scan.least(sign * getattr(scan, name)) for scan in (coarse, fine))
            assert other.error < 1e-3 * one.error < 1e-3 * 0.02 * np.ptp(getattr(fine, name))
            assert abs(one.value - other.value) <= one.error
    low, high = coarse.between(coarse.bend, 0.33)
    inside = fine.bend[np.abs(fine.away) <= 0.33]
    assert low <= inside.min()
    assert inside.max() <= high


@pytest.mark.parametrize("place", [(0.123, 0.3), (0.9, -0.8), (0.0, 0.0)])
def test_a_search_on_a_ball_says_what_it_may_have_missed(place):
    place = np.array(place)
    nearest = place / max(1.0, float(np.linalg.norm(place)))
    found, missed = largest(lambda at: -((at - place) ** 2).sum(axis=1), 1.0, 2, 7)
    true = -float(((nearest - place) ** 2).sum())
    assert found <= true + 1e-15 <= found + missed + 2e-15
    assert missed < 0.02


@pytest.mark.parametrize("cost", [0.5, 4.0, 1e6])
def test_the_least_place_where_prompts_cost_has_no_bound_to_stop_at(cost):
    sizes, curve = (2, 5, 24), np.array([1.0, 1.0, 0.1])
    values = np.array([[size, 1, 1 / (size - 1)] for size in sizes]) @ curve
    cell = GradientCell(Suite("smoke").landscapes["lopsided"][0].problem.at([0.0]), 2)
    points = tuple(mean_of(cell, mse_of("grpo")) for _ in sizes)
    where = Lowest(sizes, points, tuple(values), cost=cost).of(values)
    # The derivative of (1 + q/G)(a G + b + c/(G-1)), in parts.
    rise = curve[0] - curve[2] * (1 + cost) / (where - 1) ** 2
    fall = cost * (curve[1] - curve[2]) / where**2
    assert rise == pytest.approx(fall, rel=1e-9)


def test_a_generator_whose_draws_are_all_alike_takes_the_furthest(monkeypatch):
    monkeypatch.setattr(landscapes, "APART", 10.0)
    monkeypatch.setattr(landscapes, "DRAWS", 5)
    first, drawn = (entry.problem for entry in Landscapes(1, 3)["bowl"])
    rng = np.random.default_rng([3, 0, 11])
    family = landscapes.FAMILIES["bowl"]
    assert apart(first, drawn) == max(apart(first, family.drawn(rng)) for _ in range(5))


@pytest.mark.parametrize("seed", [0, 3015])
def test_a_critic_that_learned_elsewhere_has_an_error_that_shows(seed):
    """At 3015 values two steps uphill cost as much as they save, and no simulation told them from none."""
    found = [
        check.statement
        for check in claim("optimality", Suite("smoke", seed)).checks
        if "at other parameters" in check.name
    ]
    assert found
    for statement in found:
        (wrong,) = statement.rivals
        assert statement.gap(wrong) > 0.04 * abs(statement.prediction)
