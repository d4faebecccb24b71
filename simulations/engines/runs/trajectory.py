"""Trajectories: independent runs of the meta-algorithm, and the addresses of their draws.

A run starts at θ₀ and takes T steps of

    θₜ = P(θₜ₋₁ + ηₜ ĝₜ),   t = 1, …, T,

ĝₜ from B prompts with G outputs each at the policy π_θ with θ = θₜ₋₁, where P is the projection on Θ if one
is given. The policy is a softmax with logits that are linear in θ or bent,

    logit(x, k) = ⟨φ(x, k), θ⟩ + offset(x, k) - ½ Σⱼ ψ(x, k)ⱼ θⱼ²,

with the scores of the features φ(x, k) - ψ(x, k) θ.

The address of a draw (see :mod:`ustat_pg.sampling.rng`) has the key of (seed, :attr:`Trajectory.name`) and:

- prompts: slot CONTEXT_SLOT, word n chooses prompt n = (t - 1) B + b of the whole run;
- outputs of prompt b at step t: slot ``step_slots(t, b)``, where words 2i and 2i + 1 choose arm
  and reward of output i;
- a memory before step 1: slot ``step_slots(0, 1 + x)``, with the same words, for prompt x;
- the start: slot ``step_slots(0, 0)``, where word j is the normal deviate of coordinate j.

With eₖ = exp(logitₖ - max) and Cₖ = e₁ + … + eₖ, a word w chooses the first arm k with
w 2⁻³² C_K < Cₖ, in float64. Rewards and prompts are chosen by thresholds, made once on the host.
Estimator, schedule, start and projection are not in the address, so runs that differ in them share
their draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from ustat_pg.engines.base import Estimator, Replications, block_of
from ustat_pg.policies import ArmLinearSoftmax
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.sampling import rng
from ustat_pg.validation import Array, InputError, finite_array, frozen, integer, one_of

from .regions import Ball
from .schedules import Schedule

TRAJECTORY_DESIGNS = ("iid", "epochs")
"""Prompts drawn independently from ρ; epochs, each with all prompts in a new random order."""

TRAJECTORY_ENGINES = ("reference", "cpu", "cuda")


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Independent runs of the meta-algorithm on one problem.

    Arguments:
        problem: its policy is an ArmLinearSoftmax. Scores of a bent one grow with
            θ: without a projection a large rate may send a run to infinity.
        group_size: G >= 1; 2 for grpo and norm-weighted.
        steps: T, 1 to 2²⁰.
        schedule: the rates η₁ to η_T.
        estimator: a name that the library knows; V and b* are those of the current θ.
        batch_size: B, 1 to 2¹⁰.
        design: iid, or epochs: each epoch takes all X prompts in a new random order, B per step; B
            divides X, and the prompts are equally likely.
        start: θ₀, (d,); by default the policy's own parameters.
        start_scale: standard deviation of a normal spread of θ₀ around ``start``, a number or (d,).
        projection: Θ, on which every θ is projected, including the start.
        snapshots: increasing steps at which θ is stored; 0 is the start; by default only the last.
    """

    problem: SoftmaxBandit
    group_size: int
    steps: int
    schedule: Schedule
    estimator: Estimator = Estimator("grpo")  # noqa: RUF009 - frozen
    batch_size: int = 1
    design: str = "iid"
    start: ArrayLike | None = None
    start_scale: ArrayLike = 0.0
    projection: Ball | None = None
    snapshots: Sequence[int] | None = None

    def __post_init__(self) -> None:
        integer("group size", self.group_size)
        for name, value, most in (
            ("steps", self.steps, rng.MOST_STEPS),
            ("batch size", self.batch_size, rng.MOST_PROMPTS),
        ):
            if integer(name, value) > most:
                raise InputError(f"{name} is {value}: it can be at most {most}")
        one_of("design", self.design, TRAJECTORY_DESIGNS)
        contexts = self.problem.contexts
        if self.design == "epochs" and not self.problem.uniform:
            raise InputError("design epochs needs uniform context probabilities")
        if self.design == "epochs" and contexts % self.batch_size:
            raise InputError(
                f"batch size is {self.batch_size}: in design epochs it must divide the "
                f"number of contexts, {contexts}"
            )
        self.estimator.require_name("trajectories")
        self.estimator.require_group(self.group_size)
        d = self.problem.d
        start = self.problem.policy.theta if self.start is None else self.start
        start = finite_array("start", start, 1)
        # Compiled code reads both without a check of their length.
        if len(start) != d or (self.projection is not None and self.projection.d != d):
            raise InputError(f"the problem has {d} parameters: start and projection need as many")
        scale = np.broadcast_to(np.asarray(self.start_scale, dtype=np.float64), d)
        snapshots = (self.steps,) if self.snapshots is None else tuple(self.snapshots)
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "start_scale", frozen(scale.copy()))
        object.__setattr__(self, "snapshots", snapshots)

    @property
    def name(self) -> str:
        """The runs' address in the space of draws."""
        sizes = f"G{self.group_size}/B{self.batch_size}/{self.design}"
        return f"trajectory/{self.problem.path_digest}/{sizes}"

    @cached_property
    def description(self) -> dict[str, Any]:
        """All defining values as plain data, for the key of a store."""
        return {
            "name": self.name,
            "steps": self.steps,
            "schedule": repr(self.schedule),
            "estimator": self.estimator.label,
            "start": np.asarray(self.start).tolist(),
            "start_scale": np.asarray(self.start_scale).tolist(),
            "projection": None if self.projection is None else self.projection.label,
            "snapshots": list(self.snapshots or ()),
        }

    def run(
        self, engine: str, *, seed: int = 0, first: int = 0, replications: int = 1, whole: int = 0
    ) -> Array:
        """θ at the snapshots, of replications ``first`` to ``first + replications``, (R, S, d); they are a
        part of the ``whole``.
        """
        one_of("trajectory engine", engine, TRAJECTORY_ENGINES)
        block = block_of(seed, first, replications, whole)
        theta: Array = import_module(f".{engine}", __package__).run(self, block)
        return theta

    @property
    def policy(self) -> ArmLinearSoftmax:
        """The policy at the problem's own parameters, with features, bends and offset."""
        policy = self.problem.policy
        assert isinstance(policy, ArmLinearSoftmax)
        return policy

    @property
    def offset(self) -> Array:
        """The part of the logits without ⟨φ(x, k), θ⟩ and the bends, (X, K)."""
        offset = self.policy.offset
        return np.zeros(self.policy.features.shape[:2]) if offset is None else offset


def starts(trajectory: Trajectory, block: Replications) -> Array:
    """θ₀ of the replications, projected, (R, d).

    Coordinate j is startⱼ + scaleⱼ Φ⁻¹((w + ½) 2⁻³²), where w is word j of the start's slot.
    """
    centre, scale = np.asarray(trajectory.start), np.asarray(trajectory.start_scale)
    theta = np.tile(centre, (block.count, 1))
    if scale.any():
        key = rng.cell_key(block.seed, trajectory.name)
        numbers = block.first + np.arange(block.count)
        words = rng.words(key, numbers, rng.step_slots(0, 0), len(centre))
        theta += scale * ndtri((words + 0.5) * 2.0**-32)
    return theta if trajectory.projection is None else trajectory.projection.project(theta)
