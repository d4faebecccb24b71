"""Lemma 6 on networks, which have no PL constant: what is left of it is one training step.

One step of any length, G = 2 and one prompt: the mean gap after it is a sum over all prompts and pairs
of outputs, whose scores are read in tables. Neither the step of group-mean, nor that of the group's
sum, nor a step without noise (exact ascent) leaves that gap. And Lemma 6's recursion itself over one
short step: there the PL ratio at the start stands for μ, and for L the most that the return bends along
any step that can be drawn, which is all that the proof asks for.

The gap and ‖∇J‖²/(2 gap) along small constant steps are measured and decide nothing.

Cost: seconds for prefix policies, a minute or two for transformers.
"""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.checks import Interval, Statement, equal
from ustat_pg.engines import Estimator, Gap
from ustat_pg.experiment import Check, Claim, Linear, Point, mean_of
from ustat_pg.experiment.probes import Probe
from ustat_pg.predictions import bound_curve, gradient_mse

from ..problems import Suite
from .learners import GRPO, LONG, learners

STEM = "suboptimality"

GROUP_MEAN = Estimator("group-mean")

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
        training = learner.runs(2, 2, 1, rate, 4096)
        exact = {pace: learner.after_one_step(rate, pace) for pace in (1.0, 0.5, 2.0)}
        free = learner.without_noise(rate)
        for estimator, value, rivals in (
            (GRPO, exact[1.0], {SHRUNK: exact[0.5], SUM: exact[2.0], FREE: free}),
            (GROUP_MEAN, exact[0.5], {SUM: exact[1.0]}),
        ):
            name = f"G=2 B=1: one step of {rate:.3g}, {estimator.label}"
            yield learner.check(name, mean_of(training, Gap(estimator, 1)), equal(value, rivals))


def _recursion(suite: Suite) -> Iterator[Check]:
    """What one short step gains is at least what the bound leaves, and little more."""
    for learner in learners(suite):
        # So short that what the return bends is a small part of the gain.
        bandit, rate = learner.problem.bandit(learner.policy), learner.rate / 8
        gap, gradient = learner.gap(learner.policy.theta), bandit.gradient()
        slope = float(gradient @ gradient)
        pl, bend = slope / (2 * gap), learner.largest_bend(rate)
        mse = gradient_mse(bandit.moments(), "grpo", 2).mse
        bound = bound_curve(gap, [rate], pl=pl, smoothness=max(bend, pl), mse=mse)
        gain = gap - float(bound[-1])
        # Beyond it lies at most what the return bends less than that.
        most = gain + bend * rate**2 * (slope + mse)
        wrong = gain - rate * pl * gap
        yield learner.check(
            f"G=2 B=1: gain of one step of {rate:.3g}, under the recursion",
            Linear(learner.runs(2, 2, 1, rate, 4096), ((Gap(GRPO, 1), -1.0),), gap),
            Statement(gain, Interval(gain, most), {MU: Interval(wrong, wrong)}, gain, gain / 2),
        )


def claim(suite: Suite) -> Claim:
    """One step and its bound, which nothing but simulation is held against."""
    return Claim(STEM, RIVALS, (*_checks(suite), *_recursion(suite)), RIVALS)


def curves(suite: Suite) -> Iterator[Point]:
    """The gap and the PL ratio along small constant steps, beside those of exact ascent."""
    learner, figure = learners(suite)[0], f"{suite.on}_path"
    training, few = (learner.runs(4, 32, LONG, learner.rate, block) for block in (32, 8))
    peak = int(learner.pl.argmax())
    for step in range(0, LONG + 1, 20):
        at = {"problem": learner.name, "step": step}
        gap = mean_of(training, Gap(GRPO, step))
        yield Point(figure, "gap", {"panel": "gap", **at}, float(learner.gaps[step]), gap)
        if step >= peak:
            # What the gap would be, had the ratio stayed at its peak.
            shrink = max(1 - 2 * learner.pl[peak] * learner.rate, 0.0)
            kept = float(learner.gaps[peak] * shrink ** (step - peak))
            yield Point(figure, "PL", {"panel": "gap", **at}, kept)
        probe = mean_of(few, Probe(GRPO, step, "pl"))
        yield Point(figure, "pl", {"panel": "pl", **at}, float(learner.pl[step]), probe)
