"""The constants against dense grids, the assumptions against problems on which they fail."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.landscapes import bump, hills, other_bump
from ustat_pg.problems import (
    LocationBandit,
    Neighbourhood,
    SoftmaxBandit,
    check_assumptions,
    constants,
    escape_to_infinity,
    mixture_problem,
    random_problem,
)
from ustat_pg.problems.enclosures import fourth_derivative_bounds
from ustat_pg.validation import InputError

A, B, FLAT = bump(), other_bump(), bump(flat_dimensions=2)
MIXTURE = mixture_problem()
RATIOS = ("pl", "weak", "growth")
NAMES = ("smoothness", *RATIOS)


def two_hills(left=0.6, right=0.8):
    return hills((right, 1.0), (left, -1.0), radius=1.5)


def ratios(gradient, gap, away):
    """What the constants bound, for gradients in the frame (n, r) and how far points are (n, r)."""
    square = (away**2).sum(axis=1)
    return {
        "pl": (gradient**2).sum(axis=1) / (2 * gap),
        "weak": -(gradient * away).sum(axis=1) / square,
        "growth": 2 * gap / square,
    }


def brute(problem, region):
    """The four constants on a dense polar or linear grid of the ball, from the derivatives of J."""
    frame = problem.identifiable
    if frame.shape[1] == 1:
        points = region.radius * np.linspace(-1, 1, 4001)[:, None]
    else:
        angle, share = np.meshgrid(np.linspace(0, 2 * np.pi, 181), np.linspace(0.002, 1, 120))
        radii = (region.radius * share)[..., None]
        points = (radii * np.stack([np.cos(angle), np.sin(angle)], axis=-1)).reshape(-1, 2)
    theta = region.centre + points @ frame.T
    away = (theta - problem.maximiser) @ frame
    far = np.linalg.norm(away, axis=1)
    theta, away = theta[far > 1e-3], away[far > 1e-3]
    gradient, hessian = problem.gradient(theta) @ frame, frame.T @ problem.hessian(theta) @ frame
    quotients = ratios(gradient, problem.gap(theta), away)
    least = {name: values.min() for name, values in quotients.items()}
    return least | {"smoothness": np.abs(np.linalg.eigvalsh(hessian)).max()}


CASES = {
    "A-near": (A, Neighbourhood(A.maximiser, 0.4)),
    "A-wide": (A, Neighbourhood(A.maximiser, 1.0)),
    "A-elsewhere": (A, Neighbourhood([0.6, 0.2], 0.3)),
    "B-near": (B, Neighbourhood(B.maximiser, 0.3)),
    "flat": (FLAT, Neighbourhood(FLAT.maximiser, 0.5)),
    "mixture": (MIXTURE, Neighbourhood(MIXTURE.maximiser, 1.0)),
    "hill": (two_hills(), Neighbourhood(two_hills().maximiser, 0.4)),
}
each = pytest.mark.parametrize(("problem", "region"), CASES.values(), ids=CASES)


@each
def test_constants_against_dense_grids(problem, region):
    """A grid can only see part: no point of it lies outside the proved end, and it comes near."""
    found = constants(problem, region)
    seen = brute(problem, region)
    for name, value in seen.items():
        enclosure = getattr(found, name)
        assert 0 < enclosure.lower <= enclosure.upper
        if name == "smoothness":
            assert value <= enclosure.upper * (1 + 1e-6), name
            assert value >= enclosure.lower * 0.99, name
            assert enclosure.value == enclosure.upper
        else:
            assert value >= enclosure.lower * (1 - 1e-5), name
            assert value <= enclosure.upper * 1.01, name
            assert enclosure.value == enclosure.lower
        assert enclosure.error <= 0.0102 * enclosure.upper, name
        assert float(enclosure) == enclosure.value


@each
def test_the_attained_end_is_attained_where_it_says(problem, region):
    found = constants(problem, region)
    theta = np.array(found.smoothness.where)
    frame = problem.identifiable
    hessian = frame.T @ problem.hessian(theta) @ frame
    assert np.abs(np.linalg.eigvalsh(hessian)).max() == pytest.approx(found.smoothness.lower)
    for name in RATIOS:
        enclosure = getattr(found, name)
        theta = np.array(enclosure.where)
        away = (theta - problem.maximiser) @ frame
        assert np.linalg.norm(frame.T @ (theta - region.centre)) <= region.radius * (1 + 1e-9)
        if away @ away < 1e-12:
            assert enclosure.upper == problem.curvatures[0]
            continue
        (value,) = ratios(problem.gradient(theta)[None] @ frame, problem.gap(theta), away[None])[
            name
        ]
        assert value == pytest.approx(enclosure.upper, rel=1e-9), name


@pytest.mark.parametrize("problem", [A, B, FLAT, MIXTURE], ids=["A", "B", "flat", "mixture"])
@pytest.mark.parametrize("radius", [0.1, 0.5])
def test_lemma_16_and_the_order_of_the_constants(problem, radius):
    """The positive eigenvalues of -∇²J(θ*) lie in [μ, L], and μ' gives μ only with μ'²/L."""
    found = constants(problem, radius)
    for name in RATIOS:
        assert getattr(found, name).upper <= problem.curvatures[0] * (1 + 1e-12)
    assert problem.curvatures[-1] <= found.smoothness.upper
    assert found.weak.lower**2 / found.smoothness.upper <= found.pl.upper
    # PL with μ gives quadratic growth with μ (Karimi et al. 2016); μ and μ' are different numbers.
    assert found.growth.upper >= found.pl.lower
    if radius == 0.5:
        assert found.weak.lower > found.pl.upper


def test_a_small_region_leaves_the_curvatures():
    found = constants(A, 1e-3)
    for name in RATIOS:
        assert getattr(found, name).lower == pytest.approx(A.curvatures[0], rel=0.012)
    assert found.smoothness.upper == pytest.approx(A.curvatures[-1], rel=0.012)


def test_flat_dimensions_change_no_constant():
    one, other = constants(A, 0.5), constants(FLAT, 0.5)
    for name in NAMES:
        assert getattr(one, name).upper == pytest.approx(getattr(other, name).upper, rel=0.02)


def test_constants_scale_as_derivatives_do():
    """Parameters three times as strong: second derivatives 9 times, third ones 27 times as large."""
    strong = bump(mixing=3 * np.eye(2), radius=1.0)
    one, other = constants(A, 0.6), constants(strong, 0.2)
    assert other.third == pytest.approx(27 * one.third, rel=1e-6)
    for name in NAMES:
        assert getattr(other, name).upper == pytest.approx(9 * getattr(one, name).upper, rel=0.02)


def test_three_identifiable_directions_are_enclosed_though_less_tightly():
    rng = np.random.default_rng(1)
    problem = LocationBandit.bump(rng.normal(size=(6, 2)), rng.uniform(-0.5, 0.5, 6), radius=4)
    region = Neighbourhood(problem.maximiser, 0.2)
    found = constants(problem, region, tolerance=0.3, budget=50_000)
    points = rng.normal(size=(20_000, 3))
    points *= 0.2 * rng.random((20_000, 1)) ** (1 / 3) / np.linalg.norm(points, axis=1)[:, None]
    theta = problem.maximiser + points @ problem.identifiable.T
    gradient = problem.gradient(theta) @ problem.identifiable
    for name, values in ratios(gradient, problem.gap(theta), points).items():
        enclosure = getattr(found, name)
        assert 0 < enclosure.lower <= values.min()
        assert enclosure.upper <= values.min() * 1.05
    norms = np.abs(np.linalg.eigvalsh(problem.hessian(theta))).max(axis=1)
    assert norms.max() <= found.smoothness.upper <= 1.31 * norms.max()


def test_a_finer_tolerance_lies_within_a_coarser_one():
    coarse, fine = constants(B, 0.5, tolerance=0.1), constants(B, 0.5, tolerance=0.005)
    for name in NAMES:
        wide, narrow = getattr(coarse, name), getattr(fine, name)
        assert wide.lower <= narrow.upper
        assert narrow.lower <= wide.upper
        assert narrow.error < wide.error
        assert narrow.boxes > wide.boxes
        assert "proved" in wide.method


def test_a_spent_budget_widens_the_enclosure_and_keeps_it_true():
    fine, spent = constants(A, 1.0), constants(A, 1.0, budget=60)
    for name in NAMES:
        wide, narrow = getattr(spent, name), getattr(fine, name)
        assert wide.lower <= narrow.upper
        assert narrow.lower <= wide.upper
        assert wide.error > narrow.error
    report = check_assumptions(A, 1.0, budget=60)
    assert report[4].holds is None
    assert not report.holds
    assert "not decided" in str(report)


@pytest.mark.parametrize("problem", [A, FLAT, MIXTURE], ids=["A", "flat", "mixture"])
def test_the_third_derivative_is_bounded(problem):
    """T against differences of the Hessian along random directions, anywhere in the compact set."""
    bound = constants(problem, budget=1).third
    rng = np.random.default_rng(1)
    rank = len(problem.curvatures)
    step, largest = 1e-4, 0.0
    for point in rng.uniform(-1, 1, (300, rank)) * problem.radius:
        theta = problem.identifiable @ point
        unit = problem.identifiable @ (lambda v: v / np.linalg.norm(v))(rng.normal(size=rank))
        change = problem.hessian(theta + step * unit) - problem.hessian(theta - step * unit)
        largest = max(largest, np.abs(np.linalg.eigvalsh(change)).max() / (2 * step))
    assert largest <= bound
    assert bound < 20 * largest


def test_the_fourth_derivative_is_bounded():
    """Against differences of the third, which are differences of the return's."""
    for problem in (A, B, MIXTURE, two_hills()):
        bound = fourth_derivative_bounds(problem)
        m = np.repeat(np.linspace(-4, 4, 2001)[:, None], problem.contexts, axis=1)
        step = 1e-4
        third = problem.curve(m + step, 3)[3] - problem.curve(m - step, 3)[3]
        seconds = problem.curve(m + step, 2)[2] - problem.curve(m - step, 2)[2]
        assert np.allclose(seconds / (2 * step), problem.curve(m, 3)[3], rtol=0, atol=1e-4)
        largest = np.abs(third / (2 * step)).max(axis=0)
        assert (largest <= bound).all()


def test_the_assumptions_hold_on_the_test_beds():
    for problem in (A, B, FLAT, MIXTURE):
        for region in (0.5, None):
            report = check_assumptions(problem, region)
            assert report.holds, str(report)
            assert [check.number for check in report.checks] == [3, 4, 7, 9]
            assert all(check.evidence > 0 for check in report.checks)
    assert f"up to {2} flat directions, rank 2" in check_assumptions(FLAT, 0.5)[7].explanation


def test_scores_stay_below_their_bound():
    rng = np.random.default_rng(2)
    for problem in (A, FLAT, MIXTURE):
        words = check_assumptions(problem, 0.3)[3].explanation
        bound = float(words.split("<=")[-1])
        norms = [
            np.sqrt(problem.at(theta).policy.squared_norms.max())
            for theta in rng.normal(0, 2, (50, problem.d))
        ]
        assert bound / 2 < max(norms) <= bound * 1.001


def test_wrong_constants_are_refused():
    found = constants(A, 0.5)
    right = check_assumptions(
        A, 0.5, smoothness=found.smoothness.value, pl=found.pl.value, weak=found.weak.value
    )
    assert right.holds
    wrong = check_assumptions(
        A,
        0.5,
        smoothness=0.98 * found.smoothness.lower,
        pl=1.02 * found.pl.upper,
        weak=1.02 * found.weak.upper,
    )
    assert [wrong[n].holds for n in (3, 4, 7, 9)] == [False, False, True, False]
    # The rivals: μ' for μ, the least curvature for μ, the greatest for L.
    assert check_assumptions(A, 0.5, pl=found.weak.value)[4].holds is False
    assert check_assumptions(A, 0.5, pl=A.curvatures[0])[4].holds is False
    assert check_assumptions(A, 0.5, smoothness=A.curvatures[-1])[3].holds is False
    between = (found.pl.lower + found.pl.upper) / 2
    assert check_assumptions(A, 0.5, pl=between)[4].holds is None


def test_a_second_hill_breaks_pl_and_weak_concavity_but_not_uniqueness():
    problem = two_hills()
    report = check_assumptions(problem)
    assert [report[n].holds for n in (3, 4, 7, 9)] == [True, False, True, False]
    worst = np.array(report[4].where)
    # The ratio is 0 at the stationary points that are not maximisers.
    assert np.linalg.norm(problem.gradient(worst)) < 1e-3
    assert problem.gap(worst) > 0.01
    assert check_assumptions(problem, 0.4).holds


def test_two_equal_hills_break_the_convexity_of_the_maximisers():
    problem = two_hills(0.7, 0.7)
    report = check_assumptions(problem)
    assert report[7].holds is False
    assert "perhaps more than one" in report[7].explanation
    assert np.allclose(report[7].where, -problem.maximiser, rtol=0, atol=1e-3)


def test_a_missed_maximum_is_found_by_the_check():
    """Negative control: the wrong hill planted as the maximiser."""
    problem = two_hills()
    lower = np.array(problem.certificate.other_maxima[0][0])
    curvature = -problem.hessian(lower)[0]
    planted = two_hills()
    planted.__dict__["_optimum"] = (lower, planted.certificate, np.array([[curvature[0], 1.0]]))
    planted.__dict__.pop("maximum", None)
    assert planted.gap(lower) == 0
    assert planted.maximum < problem.maximum
    report = check_assumptions(planted)
    assert report[7].holds is False
    assert planted.objective(report[7].where) > planted.maximum
    assert check_assumptions(planted, 0.3).holds


def test_pl_fails_at_infinity_for_tabular_softmax():
    for seed in range(3):
        for kind in ("plain", "binary", "one-context", "two-arms"):
            problem = random_problem(seed, kind)
            ray = escape_to_infinity(problem)
            best = problem.context_probs @ problem.mean_rewards.max(axis=1)
            for i, t in enumerate(ray.steps):
                there = problem.with_theta(problem.policy.theta + t * ray.direction)
                gap = best - there.objective()
                assert ray.gaps[i] == pytest.approx(gap, rel=1e-6, abs=1e-14)
                if t <= 16:
                    gradient = there.gradient()
                    ratio = gradient @ gradient / (2 * ray.gaps[i])
                    assert ray.ratios[i] == pytest.approx(ratio, rel=1e-4)
            assert (ray.gaps > 0).all()
            assert (np.diff(ray.gaps) < 0).all()
            assert (ray.ratios <= ray.ceilings * (1 + 1e-12)).all()
            assert ray.ratios[-1] < 1e-10
            report = check_assumptions(problem)
            assert [report[n].holds for n in (3, 4, 7, 9)] == [True, False, False, False]
            assert report[4].evidence == ray.ratios[-1]
            assert "FAILS" in str(report)
            assert "tends to 0 at infinity" in str(report)


def test_the_decay_of_the_ratio_is_exponential_at_the_rate_of_the_margin():
    bandit = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    ray = escape_to_infinity(bandit, np.arange(1.0, 30.0))
    # p = sigmoid(t): the gap is 1 - p, ∇J = p(1-p)(1, -1), the ratio p²(1-p).
    p = 1 / (1 + np.exp(-ray.steps))
    q = 1 / (1 + np.exp(ray.steps))
    assert np.allclose(ray.gaps, q, rtol=1e-12, atol=0)
    assert np.allclose(ray.ratios, p**2 * q, rtol=1e-12, atol=0)
    assert np.polyfit(ray.steps[10:], np.log(ray.ratios[10:]), 1)[0] == pytest.approx(-1, rel=1e-4)


def test_smoothness_of_a_softmax_bandit_is_bounded_everywhere():
    problem = random_problem(0, "plain")
    bound = check_assumptions(problem)[3].evidence
    rng = np.random.default_rng(0)
    norms = [
        np.abs(np.linalg.eigvalsh(problem.with_theta(theta).hessian())).max()
        for theta in rng.normal(0, 1.5, (200, problem.d))
    ]
    assert max(norms) <= bound


def test_features_that_separate_the_best_arms_escape_and_others_are_not_decided():
    values = np.array([[[1.0], [0.5], [0.0]]])
    law = np.ones_like(values)
    separable = SoftmaxBandit.linear([1.0], [[[2.0], [1.0], [0.0]]], [0.3], values, law)
    report = check_assumptions(separable)
    assert report[4].holds is False
    middle = SoftmaxBandit.linear([1.0], [[[1.0], [2.0], [0.0]]], [0.3], values, law)
    assert escape_to_infinity(middle) is None
    report = check_assumptions(middle)
    assert [report[n].holds for n in (3, 4, 7, 9)] == [True, None, None, None]
    shared = SoftmaxBandit.shared_linear([1.0], [[1.0, 0.5]], np.zeros((3, 2)), values, law)
    assert check_assumptions(shared)[4].holds is False
    # The interior optimum of a location bandit, as a softmax bandit, is not taken for an escape.
    assert escape_to_infinity(A.at(A.maximiser)) is None


def test_ties_among_the_best_and_constant_returns():
    values = np.array([[[1.0], [1.0], [0.0]], [[0.3], [0.3], [0.3]]])
    tied = SoftmaxBandit.tabular([0.5, 0.5], np.zeros((2, 3)), values, np.ones_like(values))
    ray = escape_to_infinity(tied)
    assert (np.diff(ray.gaps) < 0).all()
    assert ray.gaps[-1] < 1e-13
    constant = SoftmaxBandit.tabular([1.0], np.zeros((1, 3)), values[1:], np.ones((1, 3, 1)))
    assert escape_to_infinity(constant) is None
    assert check_assumptions(constant).holds


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: constants(random_problem(0)), "for a LocationBandit only"),
        (lambda: constants(A, Neighbourhood([0.0], 1.0)), "1 entries: the problem has d = 2"),
        (lambda: constants(A, -1.0), "radius is -1"),
        (lambda: constants(A, np.nan), "radius holds nan"),
        (lambda: Neighbourhood([0.0, np.inf], 1.0), "centre holds inf"),
        (lambda: constants(A, tolerance=0.0), "tolerance is 0"),
        (lambda: constants(A, budget=0), "budget is 0"),
        (lambda: check_assumptions(A, pl=0.0), "pl is 0.0: it must be positive"),
        (lambda: check_assumptions(A, smoothness=np.nan), "smoothness holds nan"),
        (lambda: check_assumptions(random_problem(0), 1.0), "no region, no constants"),
        (lambda: check_assumptions(random_problem(0), weak=1.0), "no region, no constants"),
        (lambda: check_assumptions("A"), "not a str"),
        (lambda: escape_to_infinity(A), "not a LocationBandit"),
        (lambda: escape_to_infinity(random_problem(0), [2.0, 1.0]), "must increase"),
        (lambda: escape_to_infinity(random_problem(0), [0.0, 1.0]), "must increase"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_a_report_knows_its_assumptions_only():
    report = check_assumptions(MIXTURE, 0.5)
    with pytest.raises(KeyError):
        _ = report[8]
    assert str(report).count("\n") == 4
