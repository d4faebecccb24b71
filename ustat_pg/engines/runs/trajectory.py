"""Trajectories: what is asked of the meta-algorithm's independent runs, and how they are drawn.

A run starts at θ₀ and takes T steps of

    θₜ = P(θₜ₋₁ + ηₜ ĝₜ),   t = 1, …, T,

ĝₜ from B prompts with G outputs each at the policy π_θ with θ = θₜ₋₁, P the projection on Θ if one
is asked. The policy is a softmax, its logits linear in θ or bent,

    logit(x, k) = ⟨φ(x, k), θ⟩ + offset(x, k) - ½ Σⱼ ψ(x, k)ⱼ θⱼ²,

whose scores are those of the features φ(x, k) - ψ(x, k) θ.

Draws are addressed, see :mod:`ustat_pg.rng`, by the key of (seed, :attr:`Trajectory.name`) and:

- prompts: slot CONTEXT_SLOT, word n chooses prompt n = (t - 1) B + b of the whole run;
- outputs of prompt b at step t: slot ``step_slots(t, b)``, where words 2i and 2i + 1 choose arm
  and reward of output i;
- the start: slot ``step_slots(0, 0)``, where word j is the normal deviate of coordinate j.

With eₖ = exp(logitₖ - max) and Cₖ = e₁ + … + eₖ, a word w chooses the first arm k with
w 2⁻³² C_K < Cₖ, in float64. Rewards and prompts are chosen by thresholds, made once on the host.
Baseline, schedule, start and projection are not in the address: runs that differ in them share
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

from ... import rng
from ...policies import ArmLinearSoftmax, BentSoftmax
from ...problems import SoftmaxBandit
from ...validation import InputError, finite_array, frozen, integer, one_of
from ..base import Array, Estimator, Replications, block_of
from .regions import Ball, Box, Theta
from .schedules import Constant, Decay, Schedule

__all__ = ["TRAJECTORY_DESIGNS", "TRAJECTORY_ENGINES", "Trajectory", "starts"]

TRAJECTORY_DESIGNS = ("iid", "epochs")
"""Prompts drawn independently from ρ; all prompts in a new random order again and again."""

TRAJECTORY_ENGINES = ("reference", "cpu", "cuda")


def require_run(
    group_size: int,
    steps: int,
    schedule: Schedule,
    batch_size: int,
    design: str,
    context_probs: Array,
) -> None:
    """Refuse sizes beyond the addresses, an unknown schedule, and a design that does not fit."""
    integer("group size", group_size)
    for name, value, most in (
        ("steps", steps, rng.MOST_STEPS),
        ("batch size", batch_size, rng.MOST_PROMPTS),
    ):
        if integer(name, value) > most:
            raise InputError(f"{name} is {value}: it can be at most {most}")
    if not isinstance(schedule, (Constant, Decay)):
        raise InputError(f"schedule is {schedule!r}: it must be a Constant or a Decay")
    one_of("design", design, TRAJECTORY_DESIGNS)
    contexts = len(context_probs)
    if design == "epochs":
        if not np.allclose(context_probs, 1 / contexts, rtol=1e-9, atol=0):
            raise InputError("design epochs needs uniform context probabilities")
        if contexts % batch_size:
            raise InputError(
                f"batch size is {batch_size}: in design epochs it must divide the "
                f"number of contexts, {contexts}"
            )


def start_scale(value: ArrayLike, d: int) -> Array:
    """The standard deviations of a start, a number or (d,)."""
    scale = finite_array("start_scale", value)
    if scale.shape not in ((), (d,)) or (scale < 0).any():
        raise InputError(
            f"start_scale is {scale.tolist()}: it must be a number or ({d},), not negative"
        )
    return scale


def steps_kept(snapshots: Sequence[int], steps: int) -> tuple[int, ...]:
    """The steps at which θ is kept, increasing, of so many."""
    kept = [integer("snapshot", step, 0) for step in snapshots]
    if not kept or kept != sorted(set(kept)) or kept[-1] > steps:
        raise InputError(f"snapshots are {kept}: they must be increasing steps from 0 to {steps}")
    return tuple(kept)


def spread(centre: Array, scale: Array, address: str, block: Replications) -> Array:
    """The starts of runs with that address, normal about ``centre``, (R, d).

    Coordinate j is centreⱼ + scaleⱼ Φ⁻¹((w + ½) 2⁻³²), w word j of the start's slot.
    """
    theta = np.tile(centre, (block.count, 1))
    if scale.any():
        key, numbers = rng.cell_key(block.seed, address), block.first + np.arange(block.count)
        words = rng.words(key, numbers, rng.step_slots(0, 0), len(centre))
        theta += scale * ndtri((words + 0.5) * 2.0**-32)
    return theta


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Independent runs of the meta-algorithm on one problem.

    Equal if all that is asked is equal; :attr:`name`, the address of the draws, holds less.

    Arguments:
        problem: its policy is an ArmLinearSoftmax or a BentSoftmax. Scores of the latter grow with
            θ: without a projection a large rate may send a run to infinity.
        group_size: G >= 1; 2 for grpo and norm-weighted.
        steps: T, 1 to 2²⁰.
        schedule: the rates η₁ to η_T.
        estimator: estimator with the name of a baseline; V and b* are those of the current θ.
        batch_size: B, 1 to 2¹⁰.
        design: iid, or epochs: each epoch takes all X prompts in a new random order, B a step; B
            divides X, and the prompts are equally likely.
        start: θ₀, (d,); the policy's own parameters unless given.
        start_scale: standard deviation of a normal spread of θ₀ around ``start``, a number or (d,).
        projection: Θ, on which every θ, the start too, is projected.
        snapshots: steps at which θ is kept, increasing, 0 the start; the last unless given.

    Raises:
        InputError: what does not fit the above.
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
    projection: Theta | None = None
    snapshots: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.problem.policy, (ArmLinearSoftmax, BentSoftmax)):
            raise InputError(
                f"the policy is a {type(self.problem.policy).__name__}: trajectories need an "
                "ArmLinearSoftmax or a BentSoftmax (features of context and arm)"
            )
        require_run(
            self.group_size,
            self.steps,
            self.schedule,
            self.batch_size,
            self.design,
            self.problem.context_probs,
        )
        if not isinstance(self.estimator, Estimator):
            raise InputError(f"estimator is {self.estimator!r}: it must be an Estimator")
        self.estimator.require_name("trajectories")
        self.estimator.require_group(self.group_size)
        self._require_start()
        if self.projection is not None:
            if not isinstance(self.projection, (Ball, Box)):
                raise InputError(f"projection is {self.projection!r}: it must be a Ball or a Box")
            if self.projection.d != self.problem.d:
                raise InputError(
                    f"the projection has {self.projection.d} coordinates: the problem has "
                    f"{self.problem.d} parameters"
                )
        snapshots = (self.steps,) if self.snapshots is None else self.snapshots
        object.__setattr__(self, "snapshots", steps_kept(snapshots, self.steps))

    def _require_start(self) -> None:
        d = self.problem.d
        start = self.problem.policy.theta if self.start is None else self.start
        start = finite_array("start", start, 1)
        scale = start_scale(self.start_scale, d)
        if len(start) != d:
            raise InputError(f"start has {len(start)} entries: the problem has {d} parameters")
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "start_scale", frozen(np.broadcast_to(scale, d).copy()))

    @property
    def name(self) -> str:
        """The runs' address in the space of draws."""
        sizes = f"G{self.group_size}/B{self.batch_size}/{self.design}"
        return f"trajectory/{self.problem.path_digest}/{sizes}"

    @cached_property
    def description(self) -> dict[str, Any]:
        """All that is asked, in plain data, as a store's key reads it."""
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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectory):
            return NotImplemented
        return self.description == other.description

    def __hash__(self) -> int:
        return hash((self.name, self.estimator.label, self.steps))

    def run(self, engine: str, *, seed: int = 0, first: int = 0, replications: int = 1) -> Array:
        """θ at the snapshots, of replications ``first`` to ``first + replications``, (R, S, d).

        Arguments:
            engine: reference, cpu or cuda.

        Raises:
            InputError: an unknown engine, or replications outside the addresses.
        """
        one_of("trajectory engine", engine, TRAJECTORY_ENGINES)
        block = block_of(seed, first, replications)
        theta: Array = import_module(f".{engine}", __package__).run(self, block)
        return theta

    @property
    def policy(self) -> ArmLinearSoftmax | BentSoftmax:
        """The policy at the problem's own parameters, with features, bends and offset."""
        policy = self.problem.policy
        assert isinstance(policy, (ArmLinearSoftmax, BentSoftmax))
        return policy

    @property
    def offset(self) -> Array:
        """What the logits hold beside ⟨φ(x, k), θ⟩ and the bends, (X, K)."""
        offset = self.policy.offset
        return np.zeros(self.policy.features.shape[:2]) if offset is None else offset


def starts(trajectory: Trajectory, block: Replications) -> Array:
    """θ₀ of the replications, projected, (R, d)."""
    centre, scale = np.asarray(trajectory.start), np.asarray(trajectory.start_scale)
    theta = spread(centre, scale, trajectory.name, block)
    return theta if trajectory.projection is None else trajectory.projection.project(theta)
