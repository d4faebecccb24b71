"""Cells with a memory: earlier rewards of an earlier policy, and runs that remember."""

import numpy as np
import pytest

from simulations.engines import Constant, Gap, MemoryCell, MemoryTraining, Training
from simulations.engines.runs import reference
from simulations.engines.runs.trajectory import Trajectory
from simulations.problems import Suite
from ustat_pg.engines import Estimator, GradientCell, InfeasibleError, SquaredError
from ustat_pg.engines.base import Replications
from ustat_pg.problems import SoftmaxBandit, random_problem
from ustat_pg.sampling import rng
from ustat_pg.validation import InputError

NOW = random_problem(1)
PAST = NOW.with_theta(NOW.policy.theta + np.sign(NOW.policy.theta))


@pytest.mark.parametrize("name", ["memory:2", "weighted-memory:3,0.4"])
def test_earlier_rewards_come_from_the_earlier_policy(name):
    cell, asked = MemoryCell(NOW, 2, past=PAST), [SquaredError(Estimator(name))]
    drawn = cell.measure("reference", asked, replications=20_000)
    enumerated = cell.measure("exact", asked).mean[0]
    assert abs(drawn.mean[0] - enumerated) < 5 * drawn.standard_error[0]
    same = MemoryCell(NOW, 2)
    assert same.measure("exact", asked).mean[0] != pytest.approx(enumerated, rel=1e-4)
    assert len({cell.name, same.name, GradientCell(NOW, 2).name}) == 3
    assert cell.engine("cpu") == "reference"


def test_a_past_with_other_rewards_is_refused():
    now, other = (SoftmaxBandit.bernoulli([0.5, 0.5], good) for good in ([1, 0], [0, 0.5]))
    with pytest.raises(InputError, match="only its policy may differ"):
        MemoryCell(now, 1, past=other)


@pytest.fixture(scope="module")
def landscape():
    return Suite("smoke").landscapes["gamble"][0].problem


def test_a_run_by_loops(landscape):
    """Each prompt's baseline is the mean of its last three rewards, whatever the step."""
    problem, steps = landscape.at(landscape.maximiser), 6
    runs = Trajectory(
        problem, 1, steps, Constant(0.3), Estimator("memory:3"), batch_size=2, snapshots=(steps,)
    )
    seed, number = 4, 7
    found = reference.run(runs, Replications(seed, number, 1))[0, 0]
    key, theta = rng.cell_key(seed, runs.name), np.array(runs.start)

    def output(x, words, at):
        policy = problem.with_theta(at).policy
        arm = int((words[0] * 2.0**-32 >= policy.probs[x].cumsum()).sum())
        place = int((words[1] * 2.0**-32 >= problem.reward_probs[x, arm].cumsum()).sum())
        return problem.reward_values[x, arm, place], policy.scores(x)[arm]

    memory = []
    for x in range(problem.contexts):
        words = rng.words(key, number, rng.step_slots(0, 1 + x), 6).reshape(3, 2)
        memory.append([output(x, pair, theta)[0] for pair in words])
    chosen = rng.words(key, number, rng.CONTEXT_SLOT, 2 * steps) * 2.0**-32
    contexts = (chosen[:, None] >= problem.context_probs.cumsum()).sum(axis=1).reshape(steps, 2)
    for t, pair in enumerate(contexts, start=1):
        step, seen = np.zeros_like(theta), []
        for b, x in enumerate(pair):
            reward, score = output(x, rng.words(key, number, rng.step_slots(t, b), 2), theta)
            step += score * (reward - np.mean(memory[x])) / 2
            seen.append((x, reward))
        for x, reward in seen:
            memory[x] = [*memory[x][1:], reward]
        theta = theta + 0.3 * step
    np.testing.assert_allclose(found, theta, rtol=0, atol=1e-12)


def test_runs_without_a_memory_are_unchanged_and_none_is_enumerated(landscape):
    asked = [Gap(Estimator("grpo"), 3)]
    plain, remembering = (
        kind(landscape, 2, 3, Constant(0.2), 1) for kind in (Training, MemoryTraining)
    )
    values = [
        cell.measure("reference", asked, replications=5).mean for cell in (plain, remembering)
    ]
    assert values[0] == values[1]
    with pytest.raises(InfeasibleError, match="too many states"):
        remembering.measure("exact", asked)
