"""The language models of the claims, and the predictions of a pool of rollouts for each.

Predictions come from a separate pool, drawn and scored once for each model with a seed that no
replication uses, so they have an error. Replications compare the formulas on their own pools with fresh
sampled errors, so the pool's error enters few verdicts: through the sizes that rivals predict, the order
of two errors, which is tested if they are clearly different, and grpo's ratio to the oracle, which is
allowed twice the pool's interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import inf
from pathlib import Path

from threadpoolctl import threadpool_limits

from ustat_pg.llm.pool.estimates import ConstantsEstimate, constants, curves
from ustat_pg.llm.pool.scored import ScoredPool

from ..evidence import Check, Linear, Ratio, Statement, equal, mean_of, positive
from ..evidence.functionals import Functional
from ..problems import Entry, Suite
from .cells import LmCell, LmQuantity, drawn

MEMBERS = ("embedded:base", "embedded:strong", "embedded:in-context", "embedded:short")
"""The paper's three strengths with a scratch-pad, and answers without one, the counter-example."""

CURVE_SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

_SEED = 7_000_003
"""The offset of the seed for the pools that give predictions."""


def short(member: str) -> str:
    return member.removeprefix("embedded:")


@dataclass(frozen=True)
class Size:
    """Prompts and rollouts of a study, and the cell of the claims.

    Arguments:
        prompts, rollouts: sizes of the pool that gives predictions.
        group_sizes: sizes of the groups of a replication.
        values: number of rollouts from which an oracle of a replication estimates V.
        groups: number of groups at each prompt, of the largest size.
        margin: the relative precision of an error, if no rival needs a higher one.
        clear: the least relative difference of two errors at which their order is tested.
        members: the models. If few answers are wrong, errors are rare and large, and need more
            replications: the smallest size uses two models, one on which the paper's order holds and
            one on which it fails.
    """

    prompts: int
    rollouts: int
    group_sizes: tuple[int, ...]
    values: int
    groups: int
    margin: float
    clear: float
    members: tuple[str, ...] = MEMBERS


FULL = Size(500, 64, (2, 4, 16), 32, 2, 0.2, 0.2)

SIZES = {
    "smoke": Size(80, 24, (2, 4, 16), 12, 2, 0.5, 0.2, ("embedded:base", "embedded:short")),
    "quick": Size(500, 32, (2, 4, 16), 16, 2, 0.4, 0.3),
    "full": FULL,
    "card": FULL,
}


@dataclass(frozen=True, eq=False)
class Study:
    """One model's scored pool, and its predictions."""

    member: str
    pool: ScoredPool
    clear: float

    def check(self, what: str, functional: Functional, statement: Statement) -> Check:
        return Entry(short(self.member), "made-up", self).check(what, functional, statement)

    def agrees(
        self,
        what: str,
        sampled: Linear,
        formula: Linear,
        margin: float,
        *,
        rivals: Mapping[str, float] | None = None,
        size: float = inf,
    ) -> Check:
        """A check that a sampled number divided by that of the formulas is 1."""
        statement = equal(1.0, rivals, relative_margin=margin)
        return self.check(
            f"{what}, sampled over predicted", Ratio(sampled, formula, size), statement
        )

    def sampled(self, cell: LmCell, baseline: str, group_size: int) -> Linear:
        """The mean of a baseline's squared errors over fresh groups."""
        return mean_of(cell, drawn(self.member, baseline, group_size))

    def error(self, baseline: str, group_size: int) -> float:
        """The mean over prompts of a baseline's MSE at one prompt."""
        return float(curves(self.pool, [group_size], [baseline])["mse"].iloc[0])

    def apart(self, larger: float, smaller: float) -> bool:
        """Whether two predictions are far enough apart for a test of their order."""
        return larger - smaller >= self.clear * larger

    @cached_property
    def constants(self) -> ConstantsEstimate:
        return constants(self.pool)


def study(member: str, suite: Suite) -> Study:
    """The pool of a model, drawn and scored once; stored in the suite's folder if it has one."""
    folder = None if suite.folder is None else suite.folder.resolve()
    return _study(member, suite.size, suite.seed, folder)


@cache
def _study(member: str, size: str, seed: int, folder: Path | None) -> Study:
    from ustat_pg.llm.models.loading import load_model
    from ustat_pg.llm.rollouts.stored import sample
    from ustat_pg.llm.scores.scoring import score_pool
    from ustat_pg.llm.tasks.named import load_task

    how = SIZES[size]
    model, task = load_model(member), load_task(member, limit=how.prompts)
    out = None if folder is None else folder / f"{short(member)}-{size}-{seed}"
    # With models this small a second thread only waits for the first, at full load.
    with threadpool_limits(1, user_api="openmp"):
        store = None if out is None else out / "rollouts.jsonl"
        rollouts = sample(model, task, how.rollouts, seed=_SEED + seed, store=store)
        config = {"task": task.name, "seed": _SEED + seed}
        pool = score_pool(model, rollouts, out=out, config=config)
    return Study(member, pool, how.clear)


def cell_of(size: str, *members: str) -> LmCell:
    """The cell of these models; cells of several models share the replications of each."""
    how = SIZES[size]
    return LmCell(members, how.group_sizes, how.values, how.groups)


Error = tuple[LmQuantity, float, float]
"""A sampled error, its factor, and the pool's prediction of their product."""


def above(
    name: str, cell: LmCell, larger: Error, smaller: Error, rivals: Sequence[str] = ()
) -> Check:
    """A check that the larger error minus the smaller is positive, in units of the larger's prediction."""
    (first, first_factor, top), (second, second_factor, bottom) = larger, smaller
    difference = Linear(cell, ((first, first_factor / top), (second, -second_factor / top)))
    statement = positive((top - bottom) / top, rivals, scale=1.0)
    return Check(name, "made-up", difference, statement, problem=short(first.member))
