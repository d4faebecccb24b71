"""The cpu engine of trajectories: the reference engine's draws and arithmetic, compiled."""

from __future__ import annotations

import numpy as np

from ... import rng
from ...validation import InputError
from ..base import Array, Replications
from . import lanes as bodies
from .regions import Ball, Box
from .trajectory import Trajectory, starts

__all__ = ["plan_of", "run"]

KINDS = {
    "vanilla": bodies.PROMPT_ONLY,
    "constant": bodies.PROMPT_ONLY,
    "oracle": bodies.VALUE,
    "minimum-variance": bodies.MINIMUM_VARIANCE,
    "grpo": bodies.GRPO,
    "group-mean": bodies.GROUP_MEAN,
    "norm-weighted": bodies.NORM_WEIGHTED,
}
DESIGNS = {"iid": bodies.IID, "epochs": bodies.EPOCHS}


def plan_of(trajectory: Trajectory) -> bodies.Plan:
    """A trajectory as the compiled body reads it."""
    problem, theta_set = trajectory.problem, trajectory.projection
    estimator, group = trajectory.estimator, trajectory.group_size
    kind, by_count = KINDS.get(estimator.baseline), np.zeros((2, 1))
    if kind is None and estimator.record.by_count and np.isin(problem.reward_values, (0, 1)).all():
        kind, by_count = bodies.BY_COUNT, np.stack(estimator.by_count(group)[::-1])
    if kind is None:
        raise InputError(f"compiled engines cannot run {estimator.label}: use reference")
    contexts, arms, values = problem.reward_values.shape
    low, high = np.zeros(problem.d), np.zeros(problem.d)
    centre, basis, radius = np.zeros(problem.d), np.eye(problem.d), 1.0
    form = bodies.FREE
    if isinstance(theta_set, Box):
        form, low, high = bodies.BOX, theta_set.low.copy(), theta_set.high.copy()
    elif isinstance(theta_set, Ball):
        form, centre, radius = bodies.BALL, theta_set.centre.copy(), theta_set.radius
        if theta_set.basis is not None:
            basis = np.array(theta_set.basis, order="C")
    law = rng.thresholds(problem.reward_probs).reshape(contexts * arms, values)[:, :-1]
    spare = max(bodies.FEW_CONTEXTS - contexts, 0)
    # Copies in C order: a read-only or strided array is another type to numba.
    return bodies.Plan(
        contexts=rng.thresholds(problem.context_probs),
        features=np.pad(
            np.moveaxis(trajectory.policy.features, 0, 2), ((0, 0), (0, 0), (0, spare))
        ),
        offset=np.pad(trajectory.offset.T, ((0, 0), (0, spare))),
        by_arm=trajectory.policy.features.reshape(contexts * arms, problem.d).T.copy(),
        law=law.T.copy(),
        rewards=problem.reward_values.reshape(contexts * arms, values).T.copy(),
        mean_rewards=problem.mean_rewards.T.copy(),
        kind=kind,
        constant=estimator.constant or 0.0,
        by_count=by_count,
        design=DESIGNS[trajectory.design],
        rates=trajectory.schedule.rates(trajectory.steps),
        snapshots=np.array(trajectory.snapshots, dtype=np.int64),
        theta_set=form,
        low=low,
        high=high,
        centre=centre,
        basis=basis,
        radius=radius,
    )


def run(trajectory: Trajectory, block: Replications) -> Array:
    """θ at the snapshots by one compiled loop, without the interpreter lock."""
    plan = plan_of(trajectory)
    begin = starts(trajectory, block)
    out = np.empty((block.count, len(plan.snapshots), trajectory.problem.d))
    key = rng.cell_key(block.seed, trajectory.name)
    bends = trajectory.policy.bends
    if bends is not None:
        bends = np.moveaxis(bends, 0, 2).copy()
    group, batch = trajectory.group_size, trajectory.batch_size
    bodies.run(block.first, key, group, batch, plan, bends, begin, out)
    return out
