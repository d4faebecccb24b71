"""The cpu engine: the reference engine's draws and arithmetic, compiled."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np

from ...policies import SharedLinearSoftmax, TabularSoftmax
from ...problems import SoftmaxBandit
from ...sampling import rng
from ...validation import InputError
from .. import kinds
from ..base import Array, Estimator, MomentSums, Replications
from . import lanes
from . import scalar as bodies
from .cell import (
    Distance,
    GradientCell,
    GradientQuantity,
    Mixed,
    Projection,
    SquaredError,
    SquaredProjection,
    direction,
    estimators_of,
)

DESIGNS = {
    "iid": bodies.IID,
    "fixed": bodies.FIXED,
    "without-replacement": bodies.WITHOUT_REPLACEMENT,
}
"""The number of each design in the compiled bodies."""

OF_MINIBATCHES = (kinds.NORM_WEIGHTED, kinds.STANDARDISED)
"""Estimators that the compiled body for one prompt cannot compute."""


def _search(probs: Array) -> bodies.Search:
    ends = rng.thresholds(probs)
    rows = ends.reshape(-1, ends.shape[-1])
    # A finer guide table saves search steps as long as it fits in a near cache.
    fine = 3 if len(rows) <= 8 else 1
    bits = min(max(int(np.ceil(np.log2(ends.shape[-1]))) + fine, 1), 12)
    shift, numbers = 32 - bits, np.arange(2**bits)
    guide, after = (
        np.stack([np.searchsorted(row, words, side="right") for row in rows])
        for words in (numbers << shift, (numbers + 1 << shift) - 1)
    )
    # A word at or above the only threshold of its cell carries into the next outcome.
    edges = np.take_along_axis(rows, np.minimum(guide, rows.shape[1] - 1), axis=1)
    carried = np.where(after > guide, (numbers + 1 << shift) - edges, 0)
    several = (after > guide + 1) | (after >= 2**bits - 1)
    cells = np.where(several, 2**bits - 1 - numbers << shift, (guide - numbers << shift) + carried)
    form = (*ends.shape[:-1], -1)
    return bodies.Search(
        ends,
        guide.reshape(form).astype(np.int32),
        (cells & rng.MASK).reshape(form).astype(np.uint32),
        shift,
    )


_KEPT: dict[str, bodies.Tables] = {}
"""The tables of the most recent problems, by digest."""

KEPT_PROBLEMS = 8
"""Problems whose tables are kept."""

_LOCK = Lock()


def problem_tables(problem: SoftmaxBandit) -> bodies.Tables:
    """A problem as the compiled body reads it; it is built once."""
    with _LOCK:
        if problem.digest not in _KEPT:
            while len(_KEPT) >= KEPT_PROBLEMS:
                del _KEPT[next(iter(_KEPT))]
            _KEPT[problem.digest] = _made_tables(problem)
        return _KEPT[problem.digest]


def _made_tables(problem: SoftmaxBandit) -> bodies.Tables:
    policy, target = problem.policy, problem.gradient()
    centre = (problem.outcomes.probs * problem.outcomes.rewards).sum(axis=1)
    features, dense = np.zeros((1, 1)), np.zeros((1, 1, 1))
    features_sq = np.ones(problem.contexts)
    if isinstance(policy, TabularSoftmax):
        form = bodies.TABULAR
    elif isinstance(policy, SharedLinearSoftmax):
        form, features = bodies.SHARED, policy.features
        features_sq = (features**2).sum(axis=1)
    else:
        form = bodies.DENSE
        dense = np.stack([policy.scores(x) for x in range(problem.contexts)])
    arms, rewards = problem.outcomes.arms, problem.outcomes.rewards - centre[:, None]
    linear = policy.inner(target)
    row = np.zeros((*arms.shape, 4))
    for column, of_arm in ((bodies.PROB, policy.probs), (bodies.LINEAR, linear)):
        row[..., column] = np.take_along_axis(of_arm, arms, axis=1)
    row[..., bodies.REWARD] = rewards
    # These are copies, because numba compiles again for a read-only or strided array.
    return bodies.Tables(
        contexts=_search(problem.context_probs),
        outcomes=_search(problem.outcomes.probs),
        arm=arms.copy(),
        reward=rewards,
        centre=centre,
        form=form,
        probs=policy.probs.copy(),
        probs_sq=(policy.probs**2).sum(axis=1),
        features=features.copy(),
        features_sq=features_sq,
        dense=dense,
        norms=policy.squared_norms.copy(),
        linear=linear,
        target_sq=float(target @ target),
        row=row,
        distinct=all(
            len(set(arms[x, :n].tolist())) == n for x, n in enumerate(problem.outcomes.counts)
        ),
    )


def _kind(estimator: Estimator, problem: SoftmaxBandit) -> int | None:
    """The number of an estimator in the bodies; None if they have no coefficients for it."""
    # At fixed parameters every baseline that depends on the prompt is a list of numbers.
    of_prompt = estimator.record.of_prompt
    return kinds.PROMPT_ONLY if of_prompt else kinds.kind_of(estimator.record, problem.binary)


def require_compiled(
    engine: str, cell: GradientCell, quantities: Sequence[GradientQuantity]
) -> None:
    """Refuse Python functions and estimators for which the bodies have no coefficients."""
    for estimator in estimators_of(quantities):
        if estimator.function is not None or _kind(estimator, cell.problem) is None:
            raise InputError(
                f"engine {engine} cannot run {estimator.label}: use reference or exact; of a function "
                "the reference wants to know Estimator(..., within_rewards=True)"
            )
    if any(isinstance(quantity, Mixed) for quantity in quantities) and not cell.problem.binary:
        raise InputError(f"engine {engine} knows mixed groups by rewards 0 and 1: use reference")


def measure(
    cell: GradientCell, quantities: Sequence[GradientQuantity], block: Replications
) -> MomentSums:
    """The sums of a block, from one loop that releases the interpreter lock.

    Raises:
        InputError: an estimator is a Python function, or the bodies cannot compute a quantity.
    """
    require_compiled("cpu", cell, quantities)
    mean, products = np.zeros(len(quantities)), np.zeros((len(quantities),) * 2)
    problem, tables = problem_tables(cell.problem), quantity_tables(cell, quantities)
    key, design = rng.cell_key(block.seed, cell.name), DESIGNS[cell.design]
    drawn = block.first, block.count, key, cell.group_size, design, problem, tables
    if takes_one_prompt(cell, quantities):
        lanes.one_prompt_block(*drawn, mean, products)
    else:
        scratch = scratch_shapes(cell, tables, problem)
        room = bodies.Room(*(np.empty(shape, dtype) for shape, dtype in scratch.values()))
        bodies.block(*drawn, room, mean, products)
    return MomentSums(block.count, mean, products)


def takes_one_prompt(cell: GradientCell, quantities: Sequence[GradientQuantity]) -> bool:
    """Whether the body for one prompt can compute these."""
    return (
        cell.batch_size == 1
        and isinstance(cell.problem.policy, (TabularSoftmax, SharedLinearSoftmax))
        and all(isinstance(quantity, (SquaredError, Distance)) for quantity in quantities)
        and not any(_kind(e, cell.problem) in OF_MINIBATCHES for e in estimators_of(quantities))
    )


def scratch_shapes(
    cell: GradientCell, quantities: bodies.Quantities, problem: bodies.Tables
) -> dict[str, tuple[tuple[int, ...], Any]]:
    """The shapes and types of :class:`~ustat_pg.engines.gradients.scalar.Room`."""
    batch, group = cell.batch_size, cell.group_size
    ints, reals = np.int64, np.float64
    vectors = 3 if quantities.weighted else 2
    width = problem.dense.shape[2] if problem.form == bodies.DENSE else problem.probs.shape[1]
    shuffled = cell.design == "without-replacement"
    return {
        "order": ((cell.problem.contexts if shuffled else 1,), ints),
        "undo": ((batch,), ints),
        "xs": ((batch,), ints),
        "chosen": ((group,), np.int32),
        "mass": ((vectors, batch, width), reals),
        "weights": ((vectors, group), reals),
        "sums": ((2, batch), reals),
        "gram": ((batch, batch, vectors, vectors), reals),
        "lin": ((batch, vectors), reals),
        "lin_along": ((max(len(quantities.along), 1), batch, vectors), reals),
        "coef": ((len(quantities.kinds), vectors, batch), reals),
        "diff": ((vectors, batch), reals),
    }


def quantity_tables(
    cell: GradientCell, quantities: Sequence[GradientQuantity]
) -> bodies.Quantities:
    """The quantities as the compiled body reads them."""
    problem, estimators = cell.problem, estimators_of(quantities)
    codes = np.array([_kind(estimator, problem) for estimator in estimators], dtype=np.int64)
    by_count = np.zeros((len(estimators), 2, cell.group_size + 1))
    for row in np.flatnonzero(codes == kinds.BY_COUNT).tolist():
        won, lost = estimators[row].by_count(cell.group_size)
        by_count[row] = lost, won - lost
    baselines = np.zeros((len(estimators), problem.contexts))
    for row, estimator in enumerate(estimators):
        values = estimator.baseline_values(problem)
        if values is not None:
            baselines[row] = values - problem_tables(problem).centre
    place = {estimator: row for row, estimator in enumerate(estimators)}
    table = np.array([_encode(quantity, place) for quantity in quantities], dtype=np.int64)
    used = (q.number for q in quantities if isinstance(q, (Projection, SquaredProjection)))
    units = [direction(problem, number) for number in range(1 + max(used, default=-1))]
    along = np.zeros((len(units), problem.contexts, problem.arms))
    for j, unit in enumerate(units):
        along[j] = problem.policy.inner(unit)
    kind, first, second = np.ascontiguousarray(table.T)
    return bodies.Quantities(
        kinds=codes,
        baselines=baselines,
        by_count=by_count,
        centre=problem_tables(problem).centre,
        weighted=kinds.NORM_WEIGHTED in codes,
        standardised=kinds.STANDARDISED in codes,
        quantity=kind,
        first=first,
        second=second,
        along=along,
        target_along=np.array([float(problem.gradient() @ unit) for unit in units]),
    )


def _encode(quantity: GradientQuantity, place: dict[Estimator, int]) -> tuple[int, int, int]:
    """A quantity as the body reads it: its kind and two indices."""
    if isinstance(quantity, Mixed):
        return bodies.MIXED, 0, 0
    if isinstance(quantity, Distance):
        return bodies.DISTANCE, place[quantity.first], place[quantity.second]
    row = place[quantity.estimator]
    if isinstance(quantity, SquaredError):
        return bodies.SQUARED_ERROR, row, 0
    kind = bodies.PROJECTION if isinstance(quantity, Projection) else bodies.SQUARED_PROJECTION
    return kind, row, quantity.number
