"""Networks that learn: one policy on one problem each, and its training runs.

Nothing is quadratic here. Lemma 6 assumes a PL constant and Theorem 8 an optimum within reach; no
network has either, since its optimum is at infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ustat_pg.engines import Constant, Estimator, NetworkTraining
from ustat_pg.experiment.probes import pl_ratio
from ustat_pg.policies import SoftmaxPolicy
from ustat_pg.predictions import gradient_mse, one_step_gap
from ustat_pg.problems import TokenBandit, TokenProblem, digit_addition

from ..problems import Entry, Suite
from ..problems.tokens import Drawn, initial, tasks, until

GRPO = Estimator("grpo")

LEAST_PASS_RATE, MORE_NOISE = 0.05, 1.5
"""What a learner has at its start: the pass rate of its hardest prompt is above the first; the noise of
one prompt a step is over the second times that of several.
"""

BUDGET, SMALL = 16, 4
"""K, and the group size against G = K."""

PATH, LONG = 100, 300
"""Steps in which half of the gap would be gained at the first one's pace; and those of figures."""


@dataclass(frozen=True)
class Learner(Entry[TokenProblem]):
    """A policy on a problem, and its runs.

    Arguments:
        name, origin, problem: those of the entry; the problem is prompts and their verifier.
        policy: the policy at the start.
        rate: η of the small steps.
        device: the device on which the runs are made.
    """

    policy: SoftmaxPolicy
    rate: float
    device: str = "cpu"

    @classmethod
    def paced(
        cls, name: str, origin: str, problem: TokenProblem, policy: SoftmaxPolicy, device: str
    ) -> Learner:
        """The learner with the rate at which PATH steps of the first one's pace gain half of the gap."""
        bandit = problem.bandit(policy)
        gradient = bandit.gradient()
        rate = problem.gap(bandit) / (2 * PATH * float(gradient @ gradient))
        return cls(name, origin, problem, policy, float(f"{rate:.2g}"), device)

    def runs(
        self, group_size: int, budget: int, steps: int, rate: float, block: int
    ) -> NetworkTraining:
        """Runs with B = budget/G prompts a step."""
        return NetworkTraining(
            self.problem, self.policy, group_size, steps, Constant(rate), budget // group_size,
            device=self.device, chunk=min(block, 256), block=block,
        )  # fmt: skip

    def ascent(self, rate: float, steps: int) -> list[TokenBandit]:
        """Exact gradient ascent: the bandit before each step and after the last."""
        policy, path = self.policy, []
        for _ in range(steps):
            path.append(self.problem.bandit(policy))
            policy = policy.with_theta(policy.theta + rate * path[-1].gradient())
        return [*path, self.problem.bandit(policy)]

    @cached_property
    def path(self) -> list[TokenBandit]:
        """Exact ascent at the learner's own rate, beyond its steps."""
        return self.ascent(self.rate, LONG)

    @cached_property
    def gaps(self) -> np.ndarray:
        """The gap along the path, (LONG + 1,)."""
        return np.array([self.problem.gap(bandit) for bandit in self.path])

    @cached_property
    def pl(self) -> np.ndarray:
        """‖∇J‖²/(2 gap) along the path, (LONG + 1,)."""
        return np.array([pl_ratio(bandit) for bandit in self.path])

    def after_one_step(self, rate: float, pace: float = 1.0) -> float:
        """The mean gap after one step of grpo at G = 2, B = 1, times ``pace``, enumerated."""
        bandit = self.problem.bandit(self.policy)
        policy, rewards = bandit.policy, bandit.mean_rewards
        prompts = (
            (share, policy.probs[x], policy.scores(x), rewards[x])
            for x, share in enumerate(bandit.context_probs)
        )
        theta = self.policy.theta
        return one_step_gap(prompts, lambda estimate: self.gap(theta + rate * pace * estimate))

    def largest_bend(self, rate: float) -> float:
        """The most that the return bends along a step of grpo at G = 2, B = 1: the least L with which
        smoothness holds for every outcome of the step.
        """
        bandit = self.problem.bandit(self.policy)
        start, gradient, most = self.gap(self.policy.theta), bandit.gradient(), [0.0]
        prompts = (
            (share, bandit.policy.probs[x], bandit.policy.scores(x), bandit.mean_rewards[x])
            for x, share in enumerate(bandit.context_probs)
        )

        def lost(estimate: np.ndarray) -> float:
            step = rate * estimate
            length = float(step @ step)
            if length > 0:
                lost = self.gap(self.policy.theta + step) - start + float(gradient @ step)
                most.append(2 * lost / length)
            return 0.0

        one_step_gap(prompts, lost)
        return max(most)

    def without_noise(self, rate: float) -> float:
        """The gap after one step of exact ascent."""
        gradient = self.problem.bandit(self.policy).gradient()
        return self.gap(self.policy.theta + rate * gradient)

    def gap(self, theta: np.ndarray) -> float:
        """The gap of the policy with other parameters."""
        return self.problem.gap(self.problem.bandit(self.policy.with_theta(theta)))


def _unlearned(on: str, rng: np.random.Generator) -> Drawn:
    """Addition of digits under a policy that is mostly wrong, has a gradient at every prompt, and whose
    moments say that one prompt a step has half as much noise again as four outputs a prompt.
    """
    problem = tasks()["addition"]

    def draw() -> Drawn:
        return problem, initial(on, problem, seed=int(rng.integers(2**31)))

    def holds(bandit: TokenBandit) -> bool:
        gap, moments = problem.gap(bandit), bandit.moments()
        few, many = (gradient_mse(moments, "grpo", g, BUDGET // g).mse for g in (SMALL, BUDGET))
        return bool(
            0.75 < gap < 0.95 and moments.value.min() > LEAST_PASS_RATE and many > MORE_NOISE * few
        )

    return until(draw, holds)


@lru_cache(maxsize=4)
def learners(suite: Suite) -> tuple[Learner, ...]:
    """Addition of digits under a policy of random parameters, made up and generated."""
    seeds = [("addition", "made-up", [20260321])]
    for number in range(suite.generated):
        name = f"addition#{suite.seed}.{number}"
        seeds.append((name, "generated", [suite.seed, number, 6]))
    return tuple(
        Learner.paced(
            name, origin, *_unlearned(suite.on, np.random.default_rng(seed)), suite.device
        )
        for name, origin, seed in seeds
    )


def large(suite: Suite) -> Learner:
    """Addition of two digits in base 4, 16 prompts and 16 answers: what figures show."""
    problem = digit_addition(4, 1)
    policy = initial(suite.on, problem, seed=20260321, scale=0.5)
    return Learner.paced("addition in base 4", "made-up", problem, policy, suite.device)


@dataclass(frozen=True)
class Grid:
    """The runs of figures: budgets K, steps T, the rate of the kind of policy, and group sizes."""

    budgets: tuple[int, ...]
    steps: tuple[int, ...]
    rate: float
    group_sizes: tuple[int, ...] = (2, 4, 8, 16)


GRIDS = {
    "tokens": Grid((16, 64), (30, 60, 150), 4.0),
    "transformer": Grid((16, 64), (50, 100, 300), 0.1),
}
