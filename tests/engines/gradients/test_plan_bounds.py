"""Ranges of groups sized by plans: every outcome of a group lies inside, by hand."""

from itertools import product

import numpy as np
import pytest

from simulations.engines import SizedCell, SurvivorCell
from ustat_pg.engines import Estimator, GroupSize, PlanCell, Projection, SquaredError
from ustat_pg.estimators import grpo, two_stage
from ustat_pg.problems import SoftmaxBandit

GRPO = Estimator("grpo")
SIZES = (2, 9)


def bandit(low, high):
    """Two prompts, the second rare; two arms of sure rewards."""
    rewards = [[[high], [low]], [[low], [high]]]
    return SoftmaxBandit.tabular(
        [0.95, 0.05], [[0.2, -0.1], [0.0, 0.4]], rewards, np.ones((2, 2, 1))
    )


def outcomes(problem, x, size):
    """Rewards and scores of every group of a prompt."""
    scores, rewards = problem.policy.scores(x), problem.mean_rewards[x]
    for arms in map(list, product(range(2), repeat=size)):
        yield rewards[arms], scores[arms]


def inside(cell, problem, estimates, *, least_share):
    """All estimates lie in the ranges of error and projection; the largest error is a fair share."""
    gradient = problem.gradient()
    errors = np.array(list(estimates)) - gradient
    low, high = cell.range(SquaredError(GRPO))
    squares = (errors**2).sum(axis=1)
    assert low == 0.0
    assert squares.max() <= high
    assert squares.max() >= least_share * high
    least, greatest = cell.range(Projection(GRPO))
    norm = np.linalg.norm(gradient)
    along = errors @ gradient / norm if norm else errors[:, 0]
    assert least <= along.min() <= along.max() <= greatest


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-2.0, 0.7)])
@pytest.mark.parametrize("pooled", [False, True])
def test_prompts_sized_before(pooled, low, high):
    problem = bandit(low, high)
    cell = SizedCell(problem, max(SIZES), sizes=SIZES, pooled=pooled)
    mean = 0.95 * SIZES[0] + 0.05 * SIZES[1]
    inside(
        cell,
        problem,
        [
            (n / mean if pooled else 1.0) * grpo(rewards) @ scores / n
            for x, n in enumerate(SIZES)
            for rewards, scores in outcomes(problem, x, n)
        ],
        least_share=0.02,
    )
    assert cell.range(GroupSize()) == (0.0, 9.0)


@pytest.mark.parametrize("words", ["2+3 if mixed", "3+2 if mixed"])
def test_plans_of_two_stages(words):
    problem, pilot = bandit(0.0, 1.0), int(words[0])
    estimates = []
    for x in range(2):
        for rewards, scores in outcomes(problem, x, 5):
            mixed = len({*rewards[:pilot]}) > 1
            n = 5 if mixed else pilot
            estimates.append(two_stage(rewards[:n], pilot=pilot) @ scores[:n] / n)
    inside(PlanCell.of(problem, words), problem, estimates, least_share=0.02)


@pytest.mark.parametrize(
    ("words", "used"),
    [
        ("2+2 if silent", lambda z: 2 if z[0] != z[1] else 4),
        ("3+1 if 0.5..1, drop early", lambda z: 4 if sum(z[:3]) > 1 else 0),
    ],
)
def test_mean_under_a_plan_matches_the_enumeration_of_groups(words, used):
    """A group that is dropped has been drawn, and moves nothing."""
    problem = bandit(0.0, 1.0)
    first, error, drawn = int(words[0]), 0.0, 0.0
    for x, share in enumerate(problem.context_probs):
        for arms in map(list, product(range(2), repeat=4)):
            z, scores = problem.mean_rewards[x][arms], problem.policy.scores(x)[arms]
            n, chance = used(z), share * np.prod(problem.policy.probs[x][arms])
            estimate = grpo(z[:n]) @ scores[:n] / n if n else np.zeros(problem.d)
            error += chance * ((estimate - problem.gradient()) ** 2).sum()
            drawn += chance * (n or first)
    found = PlanCell.of(problem, words).measure("exact", [SquaredError(GRPO), GroupSize()])
    assert found.mean == pytest.approx([error, drawn], rel=1e-12)


@pytest.mark.parametrize("lone", [False, True])
def test_survivors(lone):
    problem = bandit(-2.0, 0.7)
    cell = SurvivorCell(problem, 3, survives=(True, False), lone=lone)
    estimates = []
    for x in range(2):
        for rewards, scores in outcomes(problem, x, 3):
            kept = rewards == problem.mean_rewards[x][0]
            z, s = rewards[kept], scores[kept]
            if len(z) > 1 or (len(z) and lone):
                estimates.append((grpo(z) if len(z) > 1 else z) @ s / len(z))
            else:
                estimates.append(np.zeros(len(problem.gradient())))
    inside(cell, problem, estimates, least_share=0.02 if lone else 0.0)
