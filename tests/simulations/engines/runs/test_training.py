"""Cells of whole training runs: names, both engines, blocks, exact means, ranges, refusals."""

from itertools import combinations

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import chi2

from simulations.engines import Away, Ball, Constant, Coordinate, Decay, Gap, GapTransform, Training
from simulations.engines.runs import chain
from simulations.engines.runs.cell import BINS
from simulations.evidence import ConditionalPit, Pit
from simulations.interior_problems.location_bandit import LocationBandit, mixture_problem
from simulations.problems.landscapes import plane, triple, uneven
from simulations.shared.runs import ball
from tests.support.refusals import refuses
from ustat_pg.distributions import WeightedChi2
from ustat_pg.engines import Estimator, InfeasibleError, SquaredError
from ustat_pg.validation import InputError

GRPO, ORACLE, VANILLA = Estimator("grpo"), Estimator("oracle"), Estimator("vanilla")
ONE, PAIR, FLAT, PLANE, BENT = triple(), triple(0.25), triple(flat=True), plane(), uneven()
BUMP = LocationBandit.bump([-1.0, 0.0, 1.0], [-0.7, 0.8, 0.3], arms=np.linspace(-2, 2, 5))
MIXTURE = mixture_problem()


def away(landscape, *distances):
    """The optimum, moved in the identifiable directions."""
    return landscape.maximiser + landscape.identifiable @ np.resize(
        distances, len(landscape.curvatures)
    )


def cell(landscape=ONE, **changed):
    """A small cell, one thing changed."""
    asked = {
        "group_size": 2,
        "steps": 30,
        "schedule": Decay(6.0, 20.0),
        "start": away(landscape, 0.1),
    }
    return Training(landscape, **(asked | changed))


# Names.

CHANGES = {
    "nothing": {},
    "group size": {"group_size": 3},
    "steps": {"steps": 31},
    "c": {"schedule": Decay(6.5, 20.0)},
    "t0": {"schedule": Decay(6.0, 21.0)},
    "constant rate": {"schedule": Constant(0.2)},
    "batch size": {"batch_size": 2},
    "design": {"design": "epochs"},
    "start": {"start": away(PAIR, 0.11)},
    "start at the optimum": {"start": None},
    "spread": {"start_scale": 0.1},
    "ball": {"projection": ball(PAIR, 0.5)},
    "radius": {"projection": ball(PAIR, 0.6)},
    "centre": {"projection": Ball(PAIR.maximiser + 0.01, 0.5, PAIR.identifiable)},
    "whole ball": {"projection": Ball(PAIR.maximiser, 0.5)},
}
PROBLEMS = {
    "rewards": triple(0.26),
    "another optimum": triple(0.25, 0.31),
    "flat": FLAT,
    "arms": LocationBandit.bump([1.0], [0.3], arms=np.linspace(-1.5, 1.5, 5)),
    "width": LocationBandit.bump([1.0], [0.3], arms=np.linspace(-1.5, 1.5, 5), tau=0.9),
    "bends": BENT,
    "other bends": uneven(1.41),
}


def test_everything_that_is_asked_is_in_the_name():
    cells = {name: cell(PAIR, **change) for name, change in CHANGES.items()}
    cells |= {name: cell(landscape) for name, landscape in PROBLEMS.items()}
    for (one, first), (two, second) in combinations(cells.items(), 2):
        assert first.name != second.name, (one, two)
        assert first != second


def test_quantities_have_names_of_their_own():
    quantities = [
        *(Gap(GRPO, 3), Gap(GRPO, 4), Gap(ORACLE, 3), Gap(GRPO, 3, 2.0), Gap(GRPO, 3, 0.5)),
        *(GapTransform(GRPO, 3, 1.0), GapTransform(GRPO, 4, 1.0), GapTransform(GRPO, 3, 2.0)),
        *(Pit(GRPO, 3, (1.0,)), Pit(GRPO, 3, (2.0,)), Pit(GRPO, 3, (1.0, 2.0))),
        *(ConditionalPit(GRPO, 3, 0, 1.0, 2.0), ConditionalPit(GRPO, 3, 1, 1.0, 2.0)),
        *(ConditionalPit(GRPO, 3, 0, 1.1, 2.0), ConditionalPit(GRPO, 3, 0, 1.0, 2.1)),
        Gap(Estimator("constant", 0.5), 3),
        Gap(Estimator("constant", 0.25), 3),
    ]
    assert len({quantity.label for quantity in quantities}) == len(quantities)


# What is measured.


def panel(landscape, last):
    """Every kind of quantity, two estimators, three steps."""
    weight = 0.003
    return (
        Gap(GRPO, last),
        Gap(ORACLE, 0),
        GapTransform(ORACLE, last, 7.0),
        Gap(ORACLE, last // 2, 3.0),
        Pit(GRPO, last, (weight,)),
        Pit(ORACLE, last // 2, (weight, 0.3 * weight)),
        ConditionalPit(GRPO, last, landscape.d - 1, weight, 2 * weight),
    )


ENGINE_CASES = {
    "one prompt": cell(),
    "two prompts, projected": cell(PAIR, projection=ball(PAIR, 0.12), batch_size=2),
    "epochs": cell(PAIR, design="epochs", group_size=3),
    "flat, spread": cell(FLAT, start_scale=[0.3, 0.1]),
    "plane": cell(PLANE),
    "bends": cell(BENT, schedule=Constant(0.1)),
    "second action": cell(MIXTURE, start_scale=[0.0, 2.0]),
}


@pytest.mark.parametrize("name", ENGINE_CASES)
def test_values_are_those_of_the_runs(name):
    training = ENGINE_CASES[name]
    landscape, quantities = training.landscape, panel(training.landscape, 30)
    where = {"seed": 3, "first": 2**33, "replications": 150}
    result = training.measure("cpu", quantities, **where)
    theta = {
        estimator: training.trajectory(estimator, (0, 15, 30)).run("cpu", **where)
        for estimator in (GRPO, ORACLE)
    }

    def gap(estimator, place):
        return landscape.maximum - landscape.objective(theta[estimator][:, place])

    last = theta[GRPO][:, 2, -1]
    wanted = np.stack(
        [
            gap(GRPO, 2),
            gap(ORACLE, 0),
            np.exp(-7 * gap(ORACLE, 2)),
            3 * gap(ORACLE, 1),
            chi2.cdf(gap(GRPO, 2) / 0.003, 1),
            WeightedChi2([0.003, 0.0009]).cdf(gap(ORACLE, 1)),
            chi2.cdf(gap(GRPO, 2) / (0.003 * (1 + expit(last))), 1),
        ],
        axis=1,
    )
    assert np.allclose(result.mean, wanted.mean(axis=0), rtol=1e-9, atol=1e-10)
    assert np.allclose(np.diag(result.covariance), wanted.var(axis=0, ddof=1), rtol=1e-5)
    assert result.n == 150
    assert result.covariance[0, 0] > 0
    assert list(result.counts) == [quantity.label for quantity in quantities[4:]]
    for label, column in zip(result.counts, wanted.T[4:], strict=True):
        assert np.array_equal(result.counts[label], np.histogram(column, BINS, (0, 1))[0])


# Blocks.


@pytest.mark.parametrize("cut", [1, 128, 333])
def test_two_blocks_merged_are_one(cut):
    training, quantities = ENGINE_CASES["plane"], panel(PLANE, 30)

    def block(first, replications):
        return training.measure("cpu", quantities, seed=2, first=first, replications=replications)

    whole, merged = block(0, 500), block(0, cut).merge(block(cut, 500 - cut))
    assert merged.n == whole.n
    assert np.allclose(merged.mean, whole.mean, rtol=1e-12)
    assert np.allclose(merged.products, whole.products, rtol=1e-10, atol=1e-15)
    assert list(merged.counts) == list(whole.counts)
    for label, count in whole.counts.items():
        assert np.array_equal(merged.counts[label], count)
        assert len(count) == BINS


# Exact means.


def test_an_expectation_that_does_not_settle_is_no_number(monkeypatch):
    monkeypatch.setattr(chain, "WORK_LIMIT", 8e3)
    training = cell(steps=4, projection=ball(ONE, 0.11))
    result = training.measure("exact", (Gap(GRPO, 4), Gap(GRPO, 0)))
    assert np.isnan(result.mean[0])


# Ranges.

WAYS = {
    "narrow ball": lambda land: ball(land, 0.05),
    "ball": lambda land: ball(land, 0.7),
    "wide ball": lambda land: ball(land, 4.0),
    "in all directions": lambda land: Ball(land.maximiser, 0.7),
    "off the optimum": lambda land: Ball(away(land, 0.3), 0.6, land.identifiable),
    "no set": lambda land: None,
}
LANDSCAPES = {
    "one": ONE, "pair": PAIR, "flat": FLAT, "plane": PLANE, "bump": BUMP, "bent": BENT,
    "mixture": MIXTURE,
}  # fmt: skip


def probes(landscape, theta_set, count=20_000):
    """Gaps at random points of Θ, many of them on its edge."""
    rng = np.random.default_rng(10)
    scale = 10.0 ** rng.uniform(-2, 2, (count, 1))
    theta = landscape.maximiser + scale * rng.normal(size=(count, landscape.d))
    return landscape.gap(theta if theta_set is None else theta_set.project(theta))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LANDSCAPES)
def test_no_gap_is_beyond_the_largest(name, way):
    landscape = LANDSCAPES[name]
    theta_set = WAYS[way](landscape)
    training = cell(landscape, projection=theta_set)
    result = probes(landscape, theta_set).max()
    assert result <= training.largest_gap + 1e-12
    if "ball" in way:
        assert training.largest_gap <= 1.02 * result + 1e-12


def test_runs_stay_within_their_quantities_ranges():
    training = cell(PAIR, projection=ball(PAIR, 0.1), schedule=Constant(1.0))
    drawn = training.trajectory(GRPO, tuple(range(31))).run("cpu", seed=1, replications=500)
    gaps = PAIR.gap(drawn)
    for quantity in (Gap(GRPO, 30), Gap(GRPO, 30, 5.0), GapTransform(GRPO, 30, 9.0)):
        low, high = training.range(quantity)
        values = quantity.of(gaps)
        assert low <= values.min()
        assert values.max() <= high
    # The edge is met, so that a smaller range would be seen.
    assert gaps.max() > 0.95 * training.largest_gap / 1.01
    assert training.range(Pit(GRPO, 30, (1.0,))) == (0.0, 1.0)


# What is refused.


@pytest.mark.parametrize(
    ("quantities", "message"),
    [
        ((), "at least one quantity"),
        ((Gap(GRPO, 31),), "step is 31: the runs take 30"),
        ((Gap(GRPO, 3), GapTransform(GRPO, 40, 1.0)), "step is 40"),
        ((Gap(GRPO, -1),), "step is -1"),
        ((Gap(GRPO, 2.5),), "step is 2.5"),
        ((SquaredError(GRPO),), "not a quantity of a Training"),
    ],
)
@pytest.mark.parametrize("engine", ["cpu", "reference", "exact"])
def test_quantities_that_runs_do_not_have(engine, quantities, message):
    with pytest.raises(InputError, match=message):
        cell().measure(engine, quantities, replications=10)


def test_leave_one_out_in_a_group_of_one():
    training = cell(group_size=1)
    assert training.measure("cpu", (Gap(VANILLA, 3),), replications=10).n == 10
    refuses("at least 2", training.measure, "cpu", (Gap(GRPO, 3),), replications=10)


@pytest.mark.parametrize(
    "quantity",
    [Pit(GRPO, 3, (1.0,)), ConditionalPit(GRPO, 3, 0, 1.0, 2.0), Away(GRPO, 3, 0.1)],
)
def test_a_distribution_is_not_enumerated(quantity):
    for call in (
        lambda: cell().require_exact((quantity,)),
        lambda: cell().measure("exact", (Gap(GRPO, 3), quantity)),
    ):
        with pytest.raises(InfeasibleError, match="compared by simulation"):
            call()


def test_runs_that_are_far_from_the_optimum_are_counted():
    radius = 0.3
    training = cell(projection=ball(ONE, radius), schedule=Constant(0.3))
    theta = training.trajectory(GRPO, (4,)).run("cpu", seed=0, replications=1000)[:, 0]
    off = np.abs((theta - ONE.maximiser) @ ONE.identifiable[:, 0])
    inside, edge = Away(GRPO, 4, radius / 2), Away(GRPO, 4, radius)

    result = training.measure("cpu", (inside, edge), replications=1000)

    assert (training.range(inside), edge.label) == ((0.0, 1.0), "away[grpo,4,0.3]")
    # The projection leaves runs on the edge, some of them a rounding error within it.
    stopped = np.isclose(off, radius, rtol=1e-9)
    assert 0.01 < stopped.mean() < 0.99
    expected = [(off >= radius / 2).mean(), stopped.mean()]
    assert result.mean == pytest.approx(expected, rel=1e-12)


def test_a_parameter_is_enumerated_and_simulated_within_bounds():
    where = Coordinate(GRPO, 3, 0)
    with pytest.raises(InfeasibleError, match="within a bounded set only"):
        cell().measure("exact", (where,))
    assert cell().range(where) == (-np.inf, np.inf)
    within = cell(projection=ball(ONE, 4.0))
    assert within.range(where) == (ONE.maximiser[0] - 4.0, ONE.maximiser[0] + 4.0)
    both = (Gap(GRPO, 2), where)
    mean = within.measure("exact", both).mean
    drawn = within.measure("cpu", both, replications=4000)
    deviation = np.sqrt(np.diagonal(drawn.covariance) / drawn.n)
    assert (np.abs(mean - drawn.mean) < 4 * deviation).all()
