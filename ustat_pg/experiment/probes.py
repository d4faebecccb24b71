"""Probes: what the exact moments say of a policy on its way, as quantities of whole training runs.

An engine trains, and hands over the bandit that the policy is after some steps; a probe turns it
into one number by its moments and the predictions made of them. So a curve along training has the
same blocks, store and intervals as any other, while engines know no prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from ..baselines import baseline
from ..engines import Estimator, GradientCell, SquaredError
from ..engines.networks.cell import PolicyQuantity
from ..predictions import gradient_mse
from ..problems import SoftmaxBandit
from ..validation import InputError, integer, one_of

__all__ = ["PROBES", "Probe", "correlation", "pl_ratio"]

PROBES = ("return", "gradient", "pl", "correlation", "mse", "relative-mse")
"""Names of probes."""


def correlation(problem: SoftmaxBandit) -> float:
    """The correlation of ‖s‖² and reward at fixed prompts, which Assumption 2 wants to be 0.

    E[‖s‖² a] / √(E Var(‖s‖² | X) · E σ²(X)); 0 where either does not vary.
    """
    moments, norms = problem.moments(), problem.policy.squared_norms
    probs = problem.policy.probs
    spread = (probs * (norms - moments.fisher_trace[:, None]) ** 2).sum(axis=1)
    rho = moments.context_probs
    scale = float(np.sqrt((rho @ spread) * (rho @ moments.reward_variance)))
    return float(rho @ moments.norm_advantage) / scale if scale > 0 else 0.0


def pl_ratio(problem: SoftmaxBandit) -> float:
    """‖∇J‖² / (2 gap), the gap that to the best answers; 0 where nothing is left to gain.

    Where it stays above a μ > 0, the Polyak-Łojasiewicz inequality holds there with that μ.
    """
    best = float(problem.context_probs @ problem.mean_rewards.max(axis=1))
    gap = best - problem.objective()
    gradient = problem.gradient()
    return float(gradient @ gradient) / (2 * gap) if gap > 0 else 0.0


@dataclass(frozen=True)
class Probe(PolicyQuantity):
    """A number of the policy at a step of training.

    Arguments:
        estimator: estimator of the runs.
        step: step at which the policy is looked at.
        name: return J, gradient ‖∇J‖², pl (:func:`pl_ratio`), correlation (:func:`correlation`),
            mse of a baseline at that policy, or relative-mse, over that of the oracle: infinite
            where only the oracle has no error, and 1 where neither has one (a saturated policy).
        baseline, group_size, batch_size: design of the mse.

    Raises:
        InputError: an unknown name, or an mse without a baseline.

    >>> Probe(Estimator("grpo"), 10, "mse", "oracle", 8).label
    'probe[grpo,10,mse,oracle,8,1]'
    """

    estimator: Estimator
    step: int
    name: str
    baseline: str = ""
    group_size: int = 1
    batch_size: int = 1

    def __post_init__(self) -> None:
        one_of("probe", self.name, PROBES)
        if self.name.endswith("mse") != bool(self.baseline):
            raise InputError(f"a baseline is given with, and only with, an mse: {self.baseline!r}")
        least = baseline(self.baseline).least_group if self.baseline else 1
        if self.baseline:
            # What would fail only after the runs is refused before them.
            Estimator(self.baseline)
        integer("step", self.step, 0)
        integer("group size", self.group_size, least)
        integer("batch size", self.batch_size)

    @property
    def label(self) -> str:
        """What names it in results."""
        own = f",{self.baseline},{self.group_size},{self.batch_size}" if self.baseline else ""
        return f"probe[{self.estimator.label},{self.step},{self.name}{own}]"

    @property
    def range(self) -> tuple[float, float]:
        """Between which values it lies, as far as that is known without the problem."""
        if self.name == "correlation":
            return -1.0, 1.0
        return (-inf if self.name == "return" else 0.0), inf

    def of(self, problem: SoftmaxBandit) -> float:
        """The number, of the bandit that the policy is."""
        if self.name == "return":
            return problem.objective()
        if self.name == "gradient":
            return problem.moments().mean_gradient_sq
        if self.name == "pl":
            return pl_ratio(problem)
        if self.name == "correlation":
            return correlation(problem)
        moments = problem.moments()
        sizes = (self.group_size, self.batch_size)
        if not baseline(self.baseline).closed_form:
            # The error is enumerated.
            quantity = SquaredError(Estimator(self.baseline))
            value = float(GradientCell(problem, *sizes).measure("exact", [quantity]).mean[0])
        else:
            value = gradient_mse(moments, self.baseline, *sizes).mse
        if self.name == "mse":
            return value
        oracle = gradient_mse(moments, "oracle", *sizes).mse
        if oracle > 0:
            return value / oracle
        return inf if value > 0 else 1.0
