"""The cpu engine of trajectories: the reference engine's draws and arithmetic, compiled."""

from __future__ import annotations

import numpy as np

from ustat_pg.engines import kinds
from ustat_pg.engines.base import Replications
from ustat_pg.rounding import SUM
from ustat_pg.sampling import rng
from ustat_pg.validation import Array, InputError

from .lanes import plan as bodies
from .lanes import step
from .trajectory import Trajectory, starts

DESIGNS = {"iid": bodies.IID, "epochs": bodies.EPOCHS}

COMPILED = (kinds.PROMPT_ONLY, kinds.VALUE, kinds.GRPO, kinds.GROUP_MEAN, kinds.BY_COUNT)
"""The kinds of estimators in the compiled bodies."""


def plan_of(trajectory: Trajectory) -> bodies.Plan:
    """A trajectory as the compiled body reads it."""
    problem, theta_set = trajectory.problem, trajectory.projection
    estimator, group = trajectory.estimator, trajectory.group_size
    kind = kinds.kind_of(estimator.record, bool(np.isin(problem.reward_values, (0, 1)).all()))
    if kind not in COMPILED:
        raise InputError(f"compiled engines cannot run {estimator.label}: use reference")
    by_count = np.zeros((2, 1))
    if kind == kinds.BY_COUNT:
        by_count = np.stack(estimator.by_count(group)[::-1])
    contexts, arms, values = problem.reward_values.shape
    centre, basis, radius = np.zeros(problem.d), np.eye(problem.d), 1.0
    form = bodies.FREE
    if theta_set is not None:
        form, centre, radius = bodies.BALL, theta_set.centre.copy(), theta_set.radius
        if theta_set.basis is not None:
            basis = np.array(theta_set.basis, order="C")
    law = rng.thresholds(problem.reward_probs).reshape(contexts * arms, values)[:, :-1]
    # These are copies in C order, because a read-only or strided array is another type to numba.
    return bodies.Plan(
        contexts=rng.thresholds(problem.context_probs),
        features=np.moveaxis(trajectory.policy.features, 0, 2).copy(),
        offset=trajectory.offset.T.copy(),
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
        centre=centre,
        basis=basis,
        radius=radius,
    )


def shared_directions(features: Array) -> tuple[Array, Array] | None:
    """g (K,) and δ (X, d) with φ(x, k) = φ(x, 0) + gₖ δ(x) up to rounding; None if there are none.

    Equally spaced arms have gₖ = k.
    """
    off = features - features[:, :1]
    x, arm, j = np.unravel_index(np.abs(off).argmax(), off.shape)
    if off[x, arm, j] == 0:
        return None
    places, ways = off[x, :, j] / off[x, arm, j], off[:, arm]
    if np.abs(off - places[:, None] * ways[:, None]).max() > SUM * np.abs(off).max():
        return None
    steps = np.arange(len(places)) * places[1]
    if np.abs(places - steps).max() <= SUM:
        return np.arange(len(places), dtype=float), ways * places[1]
    return places, ways


def rows_of(trajectory: Trajectory, plan: bodies.Plan) -> bodies.Rows:
    """The table that the lanes read."""
    policy, (arms, _, contexts) = trajectory.policy, plan.features.shape
    features, shares, form, last = plan.features, plan.offset, bodies.FULL, np.zeros((0, contexts))
    shared = None if policy.bends is not None else shared_directions(policy.features)
    if policy.bends is not None:
        form, last = bodies.BENT, np.moveaxis(policy.bends, 0, 2).reshape(-1, contexts)
    elif shared is not None:
        places, ways = shared
        form, last = bodies.SHARED, ways.T
        features = np.broadcast_to(places[:, None, None], (arms, 1, contexts))
        if (places == np.arange(arms)).all() and np.ptp(shares, axis=0).max() <= bodies.FAR:
            form, shares = bodies.SPACED, np.exp(shares - shares.max(axis=0))
    edges = np.asarray(1 + plan.law * bodies.UNIT, dtype=np.float64)
    outcomes, group = arms * len(plan.rewards), trajectory.group_size
    # In measurements, counting costs a step for each outcome, plus one for every fourth output.
    counted = outcomes * (group + 4) <= 16 * group
    by_context = (
        array.reshape(len(array), contexts, arms).swapaxes(1, 2).reshape(-1, contexts)
        for array in (edges, plan.rewards)
    )
    parts = [features.reshape(-1, contexts), shares, *by_context, plan.mean_rewards, last]
    read = [True, True, counted, counted, plan.kind == kinds.VALUE, True]
    table = np.concatenate(parts)
    varies = np.repeat(read, [len(part) for part in parts]) & (table != table[:, :1]).any(axis=1)
    spare = max(bodies.FEW_CONTEXTS - contexts, 0)
    return bodies.Rows(
        table=np.pad(table, ((0, 0), (0, spare))),
        varies=varies,
        form=form,
        width=features.shape[1],
        counted=counted,
        plain=bool((plan.rewards == plan.rewards[:, :1]).all()),
        edges=edges,
        offset=plan.offset,
    )


def run(trajectory: Trajectory, block: Replications) -> Array:
    """θ at the snapshots from one compiled loop that releases the interpreter lock."""
    plan = plan_of(trajectory)
    begin = starts(trajectory, block)
    out = np.empty((block.count, len(plan.snapshots), trajectory.problem.d))
    key = rng.cell_key(block.seed, trajectory.name)
    group, batch = trajectory.group_size, trajectory.batch_size
    step.run(block.first, key, group, batch, plan, rows_of(trajectory, plan), begin, out)
    return out
