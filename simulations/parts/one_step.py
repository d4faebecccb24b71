"""Lemma 6 on networks, which have no PL constant: one training step of a policy on a token problem.

For one step of any length with G = 2 and one prompt, the mean gap is a sum over all prompts and pairs
of outputs. The step of group-mean, the step of the group's sum and a step without noise (exact
ascent) leave other gaps. Lemma 6's recursion itself is tested over one short step: the PL ratio at the
start replaces μ, and the largest curvature of the return along any possible step replaces L. The
proof requires no more.

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
"""Conditions on a learner's start: the pass rate of its hardest prompt exceeds the first number, and the
noise of one prompt per step exceeds that of several by the factor in the second.
"""

BUDGET, SMALL = 16, 4
"""K, and the group size that is compared with G = K."""

ADDITION_SEED = 20260321
"""The seed of the made-up policy. Its value is arbitrary, but fixed so that draws stay the same."""

PACE = 100
"""The number of steps that would close half of the gap at the pace of the first step."""


@dataclass(frozen=True)
class Learner(Entry[TokenProblem]):
    """A policy on prompts with their verifier, and one training step of it."""

    policy: SoftmaxPolicy

    @cached_property
    def bandit(self) -> TokenBandit:
        return self.problem.bandit(self.policy)

    @cached_property
    def rate(self) -> float:
        """η of small steps: PACE steps at the first step's pace would close half of the gap."""
        gradient = self.bandit.gradient()
        rate = self.problem.gap(self.bandit) / (2 * PACE * float(gradient @ gradient))
        return float(f"{rate:.2g}")

    def step(self, rate: float) -> OneStep:
        """One sampled step at G = 2 and B = 1."""
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
        """The mean gap after one step of grpo at G = 2, B = 1, times ``pace``, by enumeration."""
        theta = self.policy.theta
        return self.mean_after(lambda estimate: self.gap(theta + rate * pace * estimate))

    def bends(self, rate: float) -> tuple[float, float]:
        """The least and the largest curvature of the return along a step of grpo at G = 2, B = 1, over all
        outcomes. The step satisfies smoothness with L the largest.
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
    moments say that one prompt per step has 1.5 times the noise of four outputs per prompt.
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
    """Addition of digits under policies of random parameters, made up and generated."""
    drawn = streams("addition", suite.seed, suite.generated, 6, ADDITION_SEED)
    return tuple(Learner(name, origin, *_unlearned(suite.on, rng)) for name, origin, rng in drawn)


def _long_step(learner: Learner) -> Iterator[Check]:
    """A single long step, compared with the sum over all its outcomes."""
    # The step is long enough for curvature to matter as much as the slope.
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
    """One short step gains at least as much as the bound guarantees, and little more."""
    # The step is so short that the curvature of the return is a small part of the gain.
    bandit, rate = learner.bandit, learner.rate / 8
    gap, gradient = learner.gap(learner.policy.theta), bandit.gradient()
    slope = float(gradient @ gradient)
    pl, (least, most) = slope / (2 * gap), learner.bends(rate)
    mse = gradient_mse(bandit.moments(), "grpo", 2).mse
    bound = bound_curve(gap, [rate], pl=pl, smoothness=max(most, pl), mse=mse)
    gain = gap - float(bound[-1])
    # The case in which all outcomes had the curvature of the least curved one.
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
