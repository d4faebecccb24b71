"""Lemma 6 on networks, which have no PL constant: what is left of it is one training step.

One step of any length, G = 2 and one prompt: the mean gap after it is a sum over all prompts and pairs
of outputs. Neither the step of group-mean, nor that of the group's sum, nor a step without noise (exact
ascent) leaves that gap. And Lemma 6's recursion itself over one short step: there the PL ratio at the
start stands for μ, and for L the most that the return bends along any step that can be drawn, which is
all that the proof asks for.

Cost: seconds for prefix policies, a minute or two for transformers.
"""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.checks import Interval, Statement, equal
from ustat_pg.engines import Estimator
from ustat_pg.engines.one_step import GapAfterStep
from ustat_pg.experiment import Check, Claim, Linear, Point, mean_of
from ustat_pg.predictions import bound_curve, gradient_mse

from ..problems import Suite
from .learners import learners

STEM = "suboptimality"

GRPO, GROUP_MEAN = GapAfterStep(Estimator("grpo")), GapAfterStep(Estimator("group-mean"))

SUM = "the group's sum for its mean"
SHRUNK = "full-mean baseline: (G-1)/G of the step"
FREE = "a step without noise"
MU = "mu for 2 mu"
RIVALS = (SUM, SHRUNK, FREE, MU)


def _checks(suite: Suite) -> Iterator[Check]:
    """A single long step, against the sum over all its outcomes."""
    for learner in learners(suite):
        # Long enough for curvature to count as much as the slope does.
        rate = 20 * learner.rate
        step = learner.step(rate)
        exact = {pace: learner.after_one_step(rate, pace) for pace in (1.0, 0.5, 2.0)}
        free = learner.without_noise(rate)
        for after, value, rivals in (
            (GRPO, exact[1.0], {SHRUNK: exact[0.5], SUM: exact[2.0], FREE: free}),
            (GROUP_MEAN, exact[0.5], {SUM: exact[1.0]}),
        ):
            name = f"G=2 B=1: one step of {rate:.3g}, {after.estimator.label}"
            yield learner.check(name, mean_of(step, after), equal(value, rivals))


def _recursion(suite: Suite) -> Iterator[Check]:
    """What one short step gains is at least what the bound leaves, and little more."""
    for learner in learners(suite):
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
        yield learner.check(
            f"G=2 B=1: gain of one step of {rate:.3g}, under the recursion",
            Linear(learner.step(rate), ((GRPO, -1.0),), gap),
            Statement(gain, Interval(gain, highest), {MU: Interval(wrong, wrong)}, gain, gain / 2),
        )


def claim(suite: Suite) -> Claim:
    """One step and its bound."""
    return Claim(STEM, RIVALS, (*_checks(suite), *_recursion(suite)))


def curves(suite: Suite) -> tuple[Point, ...]:
    """None: the figure is that of whole training runs."""
    return ()
