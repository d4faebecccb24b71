"""Networks that take one step: a policy on a problem, what a step of it leads to, by enumeration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ustat_pg.engines.one_step import OneStep
from ustat_pg.policies import SoftmaxPolicy
from ustat_pg.predictions import gradient_mse, one_step_gap
from ustat_pg.problems import TokenBandit, TokenProblem

from ..problems import Entry, Suite
from ..problems.tokens import Drawn, initial, tasks, until

LEAST_PASS_RATE, MORE_NOISE = 0.05, 1.5
"""What a learner has at its start: the pass rate of its hardest prompt is above the first; the noise of
one prompt a step is over the second times that of several.
"""

BUDGET, SMALL = 16, 4
"""K, and the group size against G = K."""

PACE = 100
"""Steps in which half of the gap would be gained at the first one's pace."""

Prompt = tuple[float, np.ndarray, np.ndarray, np.ndarray]
"""A prompt's probability, and the probabilities, scores and rewards of its outputs."""


@dataclass(frozen=True)
class Learner(Entry[TokenProblem]):
    """A policy on a problem, and one step of it.

    Arguments:
        name, origin, problem: those of the entry; the problem is prompts and their verifier.
        policy: the policy before the step.
    """

    policy: SoftmaxPolicy

    @cached_property
    def bandit(self) -> TokenBandit:
        """The problem at the policy."""
        return self.problem.bandit(self.policy)

    @cached_property
    def rate(self) -> float:
        """η of small steps: PACE of the first one's pace would gain half of the gap."""
        gradient = self.bandit.gradient()
        rate = self.problem.gap(self.bandit) / (2 * PACE * float(gradient @ gradient))
        return float(f"{rate:.2g}")

    def step(self, rate: float) -> OneStep:
        """One step at G = 2 and B = 1, drawn."""
        return OneStep(self.problem.at(self.policy), 2, rate)

    def gap(self, theta: np.ndarray) -> float:
        """The gap of the policy with other parameters."""
        return self.problem.gap(self.problem.bandit(self.policy.with_theta(theta)))

    def _prompts(self) -> Iterator[Prompt]:
        bandit = self.bandit
        for x, share in enumerate(bandit.context_probs):
            policy = bandit.policy
            yield share, policy.probs[x], policy.scores(x), bandit.mean_rewards[x]

    def after_one_step(self, rate: float, pace: float = 1.0) -> float:
        """The mean gap after one step of grpo at G = 2, B = 1, times ``pace``, enumerated."""
        theta = self.policy.theta
        return one_step_gap(
            self._prompts(), lambda estimate: self.gap(theta + rate * pace * estimate)
        )

    def bends(self, rate: float) -> tuple[float, float]:
        """The least and the most that the return bends along a step of grpo at G = 2, B = 1, of any
        outcome: smoothness holds for the step with L the most.
        """
        start, gradient, found = self.gap(self.policy.theta), self.bandit.gradient(), [0.0]

        def lost(estimate: np.ndarray) -> float:
            step = rate * estimate
            length = float(step @ step)
            if length > 0:
                lost = self.gap(self.policy.theta + step) - start + float(gradient @ step)
                found.append(2 * lost / length)
            return 0.0

        one_step_gap(self._prompts(), lost)
        return min(found), max(found)

    def without_noise(self, rate: float) -> float:
        """The gap after one step of exact ascent."""
        return self.gap(self.policy.theta + rate * self.bandit.gradient())


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
        Learner(name, origin, *_unlearned(suite.on, np.random.default_rng(seed)))
        for name, origin, seed in seeds
    )
