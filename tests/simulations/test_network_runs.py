"""Claims on training runs of networks: their predictions and points, before anything is drawn."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from itertools import product
from math import inf, isfinite, log

import numpy as np
import pytest

from simulations import Suite, claim
from simulations.networks import group_size, optimality, optimizers, suboptimality
from simulations.networks import learners as module
from simulations.networks.group_size import EFFECT, LARGEST, STAGES, TRAINED_RIVALS, stages, trained
from simulations.networks.learners import GRIDS, LONG, PATH, Learner, large, learners
from simulations.networks.optimality import TRAINED
from simulations.networks.suboptimality import FREE, SHRUNK, SUM
from simulations.networks.suboptimality import RIVALS as STEP_RIVALS
from simulations.problems.tokens import initial, tasks
from tests.support.claims import told_apart
from tests.support.mutants import mutated_function
from ustat_pg.engines import Estimator, Gap, MomentSums
from ustat_pg.engines.networks.cell import NetworkTraining
from ustat_pg.estimators import advantages
from ustat_pg.experiment import Claim, Linear
from ustat_pg.experiment.blocks import Block, run_task
from ustat_pg.experiment.probes import Probe
from ustat_pg.predictions import one_step_gap

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")
ON = ["tokens", pytest.param("transformer", marks=needs_torch)]
GRPO, GROUP_MEAN = Estimator("grpo"), Estimator("group-mean")
PACES = {"grpo": 1.0, "group-mean": 0.5}
"""With the own reward in the mean a step of two outputs is half as long."""


@lru_cache
def suite_of(seed=0, on="tokens"):
    return Suite("smoke", seed, on=on)


def learner_of(on="tokens"):
    """The made-up one."""
    return learners(suite_of(0, on))[0]


@lru_cache
def checks_of(seed=0, on="tokens"):
    return tuple(suboptimality.claim(suite_of(seed, on)).checks)


# Learners.


def objective(problem, policy, theta):
    """J by the outputs' probabilities."""
    probs = policy.with_theta(theta).probs
    return float(problem.probs @ (probs * problem.rewards).sum(axis=1))


def slope(problem, policy, theta, step=1e-5):
    """∇J by central differences."""
    found = np.empty(len(theta))
    for j, unit in enumerate(np.eye(len(theta))):
        ends = [objective(problem, policy, theta + sign * step * unit) for sign in (1, -1)]
        found[j] = (ends[0] - ends[1]) / (2 * step)
    return found


def constants(bandit):
    """c₁, c₂ and c₃ by hand: between prompts, of the first order, of pairs."""
    policy = bandit.policy
    gradients = np.array(
        [(policy.probs[x] * z) @ policy.scores(x) for x, z in enumerate(bandit.mean_rewards)]
    )
    mean = bandit.context_probs @ gradients
    c1 = bandit.context_probs @ ((gradients - mean) ** 2).sum(axis=1)
    c2 = c3 = 0.0
    for x, rho in enumerate(bandit.context_probs):
        probs, norms = policy.probs[x], policy.squared_norms[x]
        off = bandit.mean_rewards[x] - probs @ bandit.mean_rewards[x]
        square = gradients[x] @ gradients[x]
        c2 += rho * (probs @ (norms * off**2) - square)
        c3 += rho * ((probs @ off**2) * (probs @ norms) + square)
    return c1, c2, c3


def test_the_rate_gains_half_of_the_gap_at_the_first_pace():
    learner = learner_of()
    gradient = slope(learner.problem, learner.policy, learner.policy.theta)
    gap = 1.0 - objective(learner.problem, learner.policy, learner.policy.theta)
    assert learner.problem.optimum == 1.0
    assert learner.rate * PATH * gradient @ gradient == pytest.approx(gap / 2, rel=0.05)
    # Two digits: equal on machines whose last bits differ.
    assert learner.rate == float(f"{learner.rate:.2g}")


def test_exact_ascent_is_gradient_ascent_on_the_return_with_its_gaps_and_pl():
    learner, theta = learner_of(), learner_of().policy.theta
    found = learner.ascent(2.0, 3)
    assert len(found) == 4
    for bandit in found:
        expected = objective(learner.problem, learner.policy, theta)
        assert bandit.objective() == pytest.approx(expected, abs=1e-8)
        theta = theta + 2.0 * slope(learner.problem, learner.policy, theta)
    assert len(learner.path) == len(learner.gaps) == len(learner.pl) == LONG + 1
    assert (np.diff(learner.gaps) < 0).all(), "exact ascent in small steps never loses"
    for step in (0, 7, LONG):
        bandit = learner.path[step]
        gradient = bandit.gradient()
        assert learner.gaps[step] == pytest.approx(1.0 - bandit.objective())
        assert learner.pl[step] == pytest.approx(gradient @ gradient / (2 * learner.gaps[step]))


def test_runs_spend_the_budget():
    learner = learner_of()
    for size in (2, 4, 8):
        runs = learner.runs(size, 32, 5, 0.1, 16)
        assert runs.group_size * runs.batch_size == 32
        assert (runs.block, runs.chunk, runs.steps) == (16, 16, 5)
        assert runs.schedule.rates(5).tolist() == [0.1] * 5
    assert learner.runs(2, 32, 5, 0.1, 4096).chunk == 256


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_the_device_of_the_suite_reaches_the_runs(device):
    suite = Suite("smoke", on="tokens", device=device)
    checks = [*suboptimality.claim(suite).checks, *trained(suite)]
    assert checks
    for check in checks:
        assert {cell.device for cell in check.functional.cells} == {device}
    assert large(suite).device == device


def parameters(found):
    return [(s.name, s.policy.theta.tolist(), s.rate) for s in found]


@pytest.mark.parametrize("seed", range(4))
def test_learners_are_a_function_of_the_seed(seed):
    found = []
    for own in (seed, seed, seed + 1):
        learners.cache_clear()
        found.append(parameters(learners(Suite("smoke", own, on="tokens"))))
    first, again, other = found
    assert first == again
    assert first[0] == other[0], "the made-up one is always the same"
    assert first[1] != other[1]


@pytest.mark.parametrize(
    ("on", "seed"),
    [*(("tokens", n) for n in range(4)), pytest.param("transformer", 0, marks=needs_torch)],
)
def test_learners_are_mostly_wrong_and_nowhere_hopeless(on, seed):
    for learner in learners(suite_of(seed, on)):
        bandit = learner.problem.bandit(learner.policy)
        assert 0.75 < 1.0 - objective(learner.problem, learner.policy, learner.policy.theta) < 0.95
        passes = (learner.policy.probs * learner.problem.rewards).sum(axis=1)
        assert passes.min() > 0.05
        # The noise of one prompt a step, G = 16, over that of four outputs a prompt.
        c1, c2, c3 = constants(bandit)
        noise = {size: c1 * size + c2 + c3 / (size - 1) for size in (4, 16)}
        assert noise[16] > 1.5 * noise[4]


def test_a_larger_suite_has_more_of_them():
    small, more = (learners(Suite(size, 3, on="tokens")) for size in ("smoke", "quick"))
    assert [learner.origin for learner in more] == ["made-up", "generated", "generated"]
    assert parameters(more[:2]) == parameters(small)


# One step.


def enumerated(learner, rate, baseline, scores):
    """The mean gap after one step at G = 2, B = 1: all prompts, all ordered pairs, one by one."""
    problem, theta = learner.problem, learner.policy.theta
    mean = total = 0.0
    for x, row in enumerate(learner.policy.probs):
        for i, j in product(range(len(row)), repeat=2):
            weights = advantages(baseline, problem.rewards[x, [i, j]])
            step = weights @ scores[x][[i, j]] / 2
            chance = problem.probs[x] * row[i] * row[j]
            total += chance
            mean += chance * (1.0 - objective(problem, learner.policy, theta + rate * step))
    assert total == pytest.approx(1.0, abs=1e-12)
    return mean


def differenced(learner, step=1e-5):
    """∇ log π of every output by central differences, (X, K, d)."""
    theta, found = learner.policy.theta, []
    for unit in np.eye(len(theta)):
        ends = [learner.policy.with_theta(theta + sign * step * unit).probs for sign in (1, -1)]
        found.append((np.log(ends[0]) - np.log(ends[1])) / (2 * step))
    return np.moveaxis(np.array(found), 0, -1)


@lru_cache
def brute(on):
    """The mean gap after a long step, by baseline.

    Scores of a prefix policy are differenced; a transformer has too many parameters for that.
    """
    learner = learner_of(on)
    if on == "tokens":
        scores = differenced(learner)
    else:
        scores = [learner.policy.scores(x) for x in range(learner.problem.contexts)]
    return {name: enumerated(learner, 20 * learner.rate, name, scores) for name in PACES}


def after_one_step(on, step=Learner.after_one_step):
    """The same as the learner says it."""
    learner = learner_of(on)
    return {name: step(learner, 20 * learner.rate, pace) for name, pace in PACES.items()}


@pytest.mark.parametrize("on", ON)
def test_the_gap_after_one_step_is_that_of_all_pairs_in_their_order(on):
    assert after_one_step(on) == pytest.approx(brute(on), rel=1e-8)
    # The two differ by a million times that.
    assert abs(brute(on)["grpo"] / brute(on)["group-mean"] - 1) > 1e-2


PAIRS, STEP = one_step_gap, Learner.after_one_step
WRONG = [
    (PAIRS, "(1 + (i < j))", "1"),
    (PAIRS, "(1 + (i < j))", "2"),
    (PAIRS, "range(i, len", "range(i + 1, len"),
    (PAIRS, "(values[i] - values[j]) / 2", "(values[i] - values[j])"),
    (PAIRS, "share * probs", "probs"),
    (PAIRS, "probs[i] * probs[j]", "probs[i] * probs[i]"),
    (STEP, "rate * pace * estimate", "rate * estimate / pace"),
    (STEP, "policy.scores(x)", "policy.scores(0)"),
]
SIGN = (PAIRS, "rows[i] - rows[j]", "rows[i] + rows[j]")


@pytest.mark.parametrize(
    ("on", "function", "old", "new"),
    [
        *(("tokens", *change) for change in (*WRONG, SIGN)),
        # The same lines, on scores of another kind.
        pytest.param("transformer", *SIGN, marks=needs_torch),
    ],
)
def test_a_wrong_enumeration_and_a_wrong_step_are_refused(on, function, old, new, monkeypatch):
    wrong = mutated_function(function, old, new)
    if function is PAIRS:
        monkeypatch.setattr(module, "one_step_gap", wrong)
    found = after_one_step(on, STEP if function is PAIRS else wrong)
    assert found != pytest.approx(brute(on), rel=1e-3)


@pytest.mark.parametrize("on", ON)
def test_without_noise_is_one_step_along_the_slope(on):
    learner, rate = learner_of(on), 20 * learner_of(on).rate
    theta = learner.policy.theta
    if on == "tokens":
        along = slope(learner.problem, learner.policy, theta)
    else:
        # E z s, output by output.
        rows = enumerate(learner.policy.probs * learner.problem.rewards)
        along = sum(learner.problem.probs[x] * row @ learner.policy.scores(x) for x, row in rows)
    end = 1.0 - objective(learner.problem, learner.policy, theta + rate * along)
    assert learner.without_noise(rate) == pytest.approx(end, rel=1e-8)
    # A step so long is no straight line: noise costs, and the estimate's size counts.
    assert learner.after_one_step(rate) > end + 0.01


def test_small_steps_gain_what_the_slope_says():
    """E ĝ = ∇J, so that to first order noise does not count."""
    learner = learner_of()
    gradient, rate = slope(learner.problem, learner.policy, learner.policy.theta), 1e-4
    start = learner.problem.gap(learner.problem.bandit(learner.policy))
    gained = start - learner.after_one_step(rate)
    assert gained == pytest.approx(rate * gradient @ gradient, rel=1e-3)
    assert start - learner.without_noise(rate) == pytest.approx(gained, rel=1e-3)


def middle(region):
    return (region.low + region.high) / 2


@pytest.mark.parametrize("on", ON)
def test_one_step_is_checked_against_its_enumeration(on):
    learner, known = learner_of(on), brute(on)
    grpo, group_mean, *_ = (check for check in checks_of(0, on) if check.origin == "made-up")
    (cell,) = grpo.functional.cells
    assert isinstance(cell, NetworkTraining)
    assert (cell.group_size, cell.batch_size, cell.steps) == (2, 1, 1)
    rate = cell.schedule.rates(1)[0]
    assert rate == 20 * learner.rate
    assert cell.policy is learner.policy
    # Both estimators are asked of the same runs.
    assert group_mean.functional.cells == grpo.functional.cells
    for check, estimator in ((grpo, GRPO), (group_mean, GROUP_MEAN)):
        says = check.statement
        assert check.functional.quantities == (Gap(estimator, 1),)
        assert says.prediction == pytest.approx(known[estimator.baseline], rel=1e-8)
        assert (says.region.low, says.region.high) == pytest.approx((says.prediction,) * 2)
    # Without the own reward left out the step is half; as a sum it is twice.
    assert {name: middle(region) for name, region in grpo.statement.rivals.items()} == {
        SHRUNK: pytest.approx(known["group-mean"], rel=1e-8),
        SUM: pytest.approx(learner.after_one_step(2 * rate)),
        FREE: pytest.approx(learner.without_noise(rate)),
    }
    assert {name: middle(region) for name, region in group_mean.statement.rivals.items()} == {
        SUM: pytest.approx(known["grpo"], rel=1e-8)
    }


@pytest.mark.parametrize(
    ("on", "seed"),
    [*(("tokens", n) for n in range(4)), pytest.param("transformer", 0, marks=needs_torch)],
)
def test_every_rival_is_told_apart_on_made_up_and_on_generated_problems(seed, on):
    steps, runs = checks_of(seed, on), tuple(trained(suite_of(seed, on)))
    for checks, rivals in ((steps, STEP_RIVALS), (runs, TRAINED_RIVALS)):
        # A claim refuses names that occur twice and rivals that are not listed.
        Claim("suboptimality", rivals, checks, rivals)
        for rival, origin in product(rivals, ("made-up", "generated")):
            heard = [check.statement for check in told_apart(checks, rival, origin)]
            # A rival that one ground leaves out leaves its claim INCONCLUSIVE.
            assert heard, (rival, origin)
            if checks is steps:
                # By half a percent of the gap at least, of which the smallest size sees a half.
                assert max(says.gap(rival) / says.prediction for says in heard) > 0.005


def test_what_no_enumeration_reaches_is_left_to_simulation():
    assert len({*STEP_RIVALS, *TRAINED_RIVALS}) == 5
    if find_spec("torch") is not None:
        built = claim("suboptimality", suite_of())
        assert built.rivals == built.by_simulation == STEP_RIVALS
        assert [check.name for check in built.checks] == [check.name for check in checks_of()]
        sizes = claim("group_size", suite_of())
        assert sizes.by_simulation == TRAINED_RIVALS
        assert set(sizes.rivals) > set(TRAINED_RIVALS)


# Group sizes.


def test_one_prompt_a_step_is_compared_with_the_recommended_size():
    checks = tuple(trained(suite_of()))
    assert {check.origin for check in checks} == {"made-up", "generated"}
    for check in checks:
        best, worst = check.functional.points
        sizes = [(cell.group_size, cell.batch_size) for cell in check.functional.cells]
        assert sizes == [(4, 4), (16, 1)]
        (first, _), (second, _) = best.weights[0], worst.weights[0]
        assert first == second == Gap(GRPO, 10)
        rates = [cell.schedule.rates(1)[0] for cell in check.functional.cells]
        assert rates[0] == rates[1]
        # Long steps: at the first one's pace ten of them would gain more than there is to gain.
        (learner,) = (own for own in learners(suite_of()) if check.name.startswith(f"{own.name} "))
        assert rates[0] == pytest.approx(30 * learner.rate)
        # log(gap at 16 / gap at 4): positive if the small group is the better one.
        sums = {
            cell.name: ((Gap(GRPO, 10),), MomentSums.exact(np.array([value])))
            for cell, value in zip(check.functional.cells, (0.4, 0.5), strict=True)
        }
        assert check.functional.exact(sums) == pytest.approx(log(0.5 / 0.4))
        # The rival says that the large group is no worse: any value below 0.
        assert set(check.statement.rivals) == {LARGEST}
        region = check.statement.rivals[LARGEST]
        assert (region.low, region.high) == (-inf, 0.0)
        assert check.statement.prediction == pytest.approx(log(1 + EFFECT))


# Points of figures.


@pytest.mark.parametrize("points", [suboptimality, optimality, group_size])
def test_points_are_distinct_and_ask_for_steps_that_are_taken(points):
    built = tuple(points.curves(suite_of()))
    keys = [(p.figure, p.series, *sorted(p.at.items())) for p in built]
    assert len(set(keys)) == len(keys)
    assert {p.figure.partition("_")[0] for p in built} == {"tokens"}
    for point in built:
        assert point.prediction is None or isfinite(point.prediction)
        if point.functional is None:
            continue
        (cell,) = point.functional.cells
        cell.require_quantities(point.functional.quantities)
        for quantity in point.functional.quantities:
            assert quantity.step == point.at["step"]
            if isinstance(quantity, Probe) and quantity.baseline:
                assert point.at["group_size"] == quantity.group_size


def shows_the_return(point, learner, estimator):
    """The optimum less the gap of that estimator's runs; returns the runs."""
    ((quantity, weight),) = point.functional.weights
    assert quantity == Gap(estimator, point.at["step"])
    assert (weight, point.functional.constant) == (-1.0, learner.problem.optimum)
    (cell,) = point.functional.cells
    return cell


def test_trained_points_show_the_return():
    learner, grid = large(suite_of()), GRIDS["tokens"]
    trained = [p for p in group_size.curves(suite_of()) if p.at["panel"] == "trained"]
    asked = {(p.at["budget"], p.at["step"], p.at["group_size"]) for p in trained}
    assert asked == set(product(grid.budgets, grid.steps, grid.group_sizes))
    for point in trained:
        assert isinstance(point.functional, Linear)
        cell = shows_the_return(point, learner, GRPO)
        assert cell.group_size * cell.batch_size == point.at["budget"]


def test_optimizers_are_compared_at_one_budget_each_at_a_rate_inside_of_its_grid():
    pytest.importorskip("torch")
    suite = suite_of(on="transformer")
    built = list(optimizers.curves(suite))
    assert len({(p.at["panel"], p.series, p.at["group_size"]) for p in built}) == len(built) == 24
    learner = large(suite)
    for point in built:
        cell = point.functional.cell
        assert point.functional.quantities == (Gap(Estimator(point.series), optimizers.STEPS),)
        assert point.functional.constant == learner.problem.optimum
        assert type(cell.optimizer).__name__.lower() == point.at["panel"]
        assert cell.group_size == point.at["group_size"]
        assert cell.group_size * cell.batch_size == optimizers.BUDGET
        grid = optimizers.GRIDS[point.at["panel"]]
        assert set(cell.schedule.rates(optimizers.STEPS)) == {point.at["rate"]}
        # The best of all rates is none at an end.
        assert point.at["rate"] in grid[1:-1]
    shown = [p for p in group_size.curves(suite) if p.figure == "transformer_optimizers"]
    assert [p.at for p in shown] == [p.at for p in built]


def test_predicted_curves_are_those_of_the_three_constants():
    learner, grid = large(suite_of()), GRIDS["tokens"]
    path = learner.ascent(grid.rate, grid.steps[-1])
    known = stages(learner, grid.rate, grid.steps[-1])
    assert tuple(known) == STAGES
    built = list(group_size.curves(suite_of()))
    for name, bandit in zip(STAGES, (path[0], path[len(path) // 2], path[-1]), strict=True):
        c1, c2, c3 = constants(bandit)
        sizes = np.array([p.at["group_size"] for p in built if p.series == name])
        drawn = np.array([p.prediction for p in built if p.series == name])
        curve = c1 * sizes + c2 + c3 / (sizes - 1)
        least = 2 * np.sqrt(c1 * c3) + c1 + c2
        assert drawn == pytest.approx(curve / least, rel=1e-8)
        assert drawn.min() >= 1 - 1e-12


def test_the_path_of_a_figure_has_its_predictions():
    learner, series = learner_of(), {}
    for point in suboptimality.curves(suite_of()):
        step = point.at["step"]
        series.setdefault(point.series, {})[step] = point.prediction
        if point.series == "gap":
            assert point.prediction == learner.gaps[step]
            assert point.functional.quantities == (Gap(GRPO, step),)
        elif point.series == "pl":
            assert point.prediction == learner.pl[step]
            (probe,) = point.functional.quantities
            assert probe == Probe(GRPO, step, "pl")
        else:
            assert point.functional is None
    assert set(series) == {"gap", "PL", "pl"}
    assert list(series["gap"]) == list(series["pl"]) == list(range(0, LONG + 1, 20))
    # With the largest ratio of the path kept for good the gap would shrink by its constant, step by
    # step; and the network is slower than that.
    peak = int(np.argmax([learner.pl[step] for step in range(LONG + 1)]))
    gap, kept = learner.gaps[peak], {}
    for step in range(peak, LONG + 1):
        kept[step] = gap
        gap -= learner.rate * 2 * learner.pl.max() * gap
    asked = [step for step in series["gap"] if step >= peak]
    assert series["PL"] == pytest.approx({step: kept[step] for step in asked})
    assert series["PL"][LONG] < 0.99 * series["gap"][LONG]


def test_the_map_shows_the_return_that_each_baseline_comes_to():
    learner, grid = large(suite_of()), GRIDS["tokens"]
    built = tuple(optimality.curves(suite_of()))
    marks = sorted({point.at["step"] for point in built})
    assert (marks[0], marks[-1]) == (0, grid.steps[-1])
    shown = [point for point in built if point.at["panel"] == "return"]
    assert {(p.series, p.at["step"]) for p in shown} == set(product(TRAINED, marks))
    assert len(shown) == len(TRAINED) * len(marks)
    assert all(point.prediction is None for point in shown)
    # All of them on the draws of the same runs.
    (cell,) = {shows_the_return(point, learner, Estimator(point.series)) for point in shown}
    assert (cell.group_size, cell.batch_size) == (4, 16)
    assert cell.schedule.rates(1)[0] == grid.rate
    # What is probed is probed where grpo comes to.
    for point in built:
        if point.at["panel"] != "return":
            (probe,) = point.functional.quantities
            assert isinstance(probe, Probe)
            assert probe.estimator == GRPO


@needs_torch
def test_probes_of_whole_runs_are_those_of_the_policies_they_come_to():
    problem = tasks()["addition"]
    policy = initial("tokens", problem, 5)
    training = Learner("small", "made-up", problem, policy, 0.5).runs(4, 8, 3, 0.5, 4)
    probes = (
        Probe(GRPO, 3, "return"),
        Probe(GRPO, 1, "pl"),
        Probe(GRPO, 3, "relative-mse", "grpo", 4),
    )
    sums = run_task(Block(training, (Gap(GRPO, 3), *probes), "autograd", 3, 10, 4))
    values = []
    for run in training.train(GRPO, (1, 3), seed=3, first=10, replications=4):
        early, late = (problem.bandit(policy.with_theta(theta)) for theta in run)
        found = [probe.of(early if probe.step == 1 else late) for probe in probes]
        values.append([problem.gap(late), *found])
    assert sums.mean == pytest.approx(np.mean(values, axis=0), rel=1e-10)
    # Return and gap add up to the optimum in every run.
    assert sums.mean[0] + sums.mean[1] == pytest.approx(problem.optimum)
    assert sums.covariance[0, 1] == pytest.approx(-sums.covariance[0, 0], rel=1e-9)
