"""Lemma 6 on networks, which have no PL constant: one training step of a policy on a token problem.

One step of any length, G = 2 and one prompt: the mean gap after it is a sum over all prompts and pairs
of outputs. Neither the step of group-mean, nor that of the group's sum, nor a step without noise (exact
ascent) leaves that gap. And Lemma 6's recursion itself over one short step: there the PL ratio at the
start stands for μ, and for L the most that the return bends along any step that can be drawn, which is
all that the proof asks for.

Cost: seconds for prefix policies, a minute or two for transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ustat_pg.engines import Estimator
from ustat_pg.policies import SoftmaxPolicy
from ustat_pg.predictions import bound_curve, gradient_mse, one_step_gap
from ustat_pg.problems import TokenBandit, TokenProblem

from ..engines.one_step import GapAfterStep, OneStep
from ..evidence import Check, Interval, Linear, Statement, equal, mean_of
from ..problems import Entry, Suite
from ..problems.entry import streams
from ..problems.tokens import Drawn, initial, tasks, until

GRPO, GROUP_MEAN = GapAfterStep(Estimator("grpo")), GapAfterStep(Estimator("group-mean"))

SUM = "the group's sum for its mean"
SHRUNK = "full-mean baseline: (G-1)/G of the step"
FREE = "a step without noise"
MU = "mu for 2 mu"
RIVALS = (SUM, SHRUNK, FREE, MU)

LEAST_PASS_RATE, MORE_NOISE = 0.05, 1.5
"""A learner's start: the pass rate of its hardest prompt is above the first; the noise of one prompt a
step is over the second times that of several.
"""

BUDGET, SMALL = 16, 4
"""K, and the group size against G = K."""

ADDITION_SEED = 20260321
"""The seed of the made-up policy: any would do; it is kept, so that draws stay the same."""

PACE = 100
"""Steps in which half of the gap would be gained at the first one's pace."""


@dataclass(frozen=True)
class Learner(Entry[TokenProblem]):
    """A policy on prompts with their verifier, and one step of it."""

    policy: SoftmaxPolicy

    @cached_property
    def bandit(self) -> TokenBandit:
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
        return self.problem.gap(self.problem.bandit(self.policy.with_theta(theta)))

    def mean_after(self, value: Callable[[np.ndarray], float]) -> float:
        """The mean of a value of grpo's estimate at G = 2, B = 1, over all outcomes."""
        bandit = self.bandit
        prompts = (
            (share, bandit.policy.probs[x], bandit.policy.scores(x), bandit.mean_rewards[x])
            for x, share in enumerate(bandit.context_probs)
        )
        return one_step_gap(prompts, value)

    def after_one_step(self, rate: float, pace: float = 1.0) -> float:
        """The mean gap after one step of grpo at G = 2, B = 1, times ``pace``, enumerated."""
        theta = self.policy.theta
        return self.mean_after(lambda estimate: self.gap(theta + rate * pace * estimate))

    def bends(self, rate: float) -> tuple[float, float]:
        """The least and the most that the return bends along a step of grpo at G = 2, B = 1, of any
        outcome: smoothness holds for the step with L the most.
        """
        start, gradient, bends = self.gap(self.policy.theta), self.bandit.gradient(), [0.0]

        def note(estimate: np.ndarray) -> float:
            step = rate * estimate
            length = float(step @ step)
            if length > 0:
                lost = self.gap(self.policy.theta + step) - start + float(gradient @ step)
                bends.append(2 * lost / length)
            return 0.0

        self.mean_after(note)
        return min(bends), max(bends)

    def without_noise(self, rate: float) -> float:
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
    drawn = streams("addition", suite.seed, suite.generated, 6, ADDITION_SEED)
    return tuple(Learner(name, origin, *_unlearned(suite.on, rng)) for name, origin, rng in drawn)


def _long_step(learner: Learner) -> Iterator[Check]:
    """A single long step, against the sum over all its outcomes."""
    # Long enough for curvature to count as much as the slope does.
    rate = 20 * learner.rate
    exact = {pace: learner.after_one_step(rate, pace) for pace in (1.0, 0.5, 2.0)}
    free = learner.without_noise(rate)
    for after, value, rivals in (
        (GRPO, exact[1.0], {SHRUNK: exact[0.5], SUM: exact[2.0], FREE: free}),
        (GROUP_MEAN, exact[0.5], {SUM: exact[1.0]}),
    ):
        name = f"G=2 B=1: one step of {rate:.3g}, {after.estimator.label}"
        yield learner.check(name, mean_of(learner.step(rate), after), equal(value, rivals))


def _short_step(learner: Learner) -> Check:
    """One short step gains at least as much as the bound leaves, and little more."""
    # So short that what the return bends is a small part of the gain.
    bandit, rate = learner.bandit, learner.rate / 8
    gap, gradient = learner.gap(learner.policy.theta), bandit.gradient()
    slope = float(gradient @ gradient)
    pl, (least, most) = slope / (2 * gap), learner.bends(rate)
    mse = gradient_mse(bandit.moments(), "grpo", 2).mse
    bound = bound_curve(gap, [rate], pl=pl, smoothness=max(most, pl), mse=mse)
    gain = gap - float(bound[-1])
    # Were all outcomes to bend the return as little as the one that does least.
    highest = rate * slope - least * rate**2 * (slope + mse) / 2
    wrong = gain - rate * pl * gap
    return learner.check(
        f"G=2 B=1: gain of one step of {rate:.3g}, under the recursion",
        Linear(learner.step(rate), ((GRPO, -1.0),), gap),
        Statement(gain, Interval(gain, highest), {MU: Interval(wrong, wrong)}, gain, gain / 2),
    )


def on_networks(suite: Suite) -> Iterator[Check]:
    """One long step, and the recursion over a short one."""
    for learner in learners(suite):
        yield from _long_step(learner)
    yield from map(_short_step, learners(suite))
