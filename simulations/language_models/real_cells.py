"""Cells of an external language model, on given prompts.

One replication draws rollouts at each of the prompts and scores them as a pool, from which the library's
formulas give each baseline's error. The cell compares them with errors of groups of these rollouts: half the
squared distance of the gradients of two groups, averaged over all groups from several random orders.
The oracle estimates V from two separate samples, and its error is the product of the two
distances that these give. A gradient is linear in its baseline, so this is exactly the oracle's error on
average.

The two groups of one order, at one of the prompts, are differentiated whole. Each baseline's distance is one
backward pass of the first group's loss minus the second's, which does not use the code that
scores pools. The other distances use the pool's inner products ⟨sᵢ, sⱼ⟩, and the mean over all is
shifted by the difference of the pass and their value for its two groups. So inner products are a control
variate: if they were wrong, the mean would still be that of passes over all groups, with more noise.

Both sides are unbiased for the same errors if the formulas are right, and read the same rollouts. The rest
of their difference is products of different rollouts, which have mean 0 since E s = 0. So a few dozen
replications can refute wrong formulas; a comparison with another pool's errors could not.

The prompts are the same in all replications, so the cell measures the mean error at these.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

from ustat_pg.files.digests import source_digest

from .cells import BASELINES, LmQuantity, ModelCell, Values, drawn, errors_of_groups, pooled
from .passes import Source, task_of

_ORDERS = 64
"""The number of orders of a prompt's rollouts, each cut into groups."""

_WORK = 2**17
"""The number of bandit outputs that take the time of one scored token."""

_BLOCK = 2
"""Replications in a block."""


@cache
def _code() -> str:
    """A digest of the files that compute quantities from draws and scores, including the formulas."""
    return source_digest(Path(__file__).resolve())


@dataclass(frozen=True)
class GroupCell(ModelCell):
    """A model on the same prompts of a task.

    Arguments:
        source: the model and prompts, and the number of rollouts in a replication.
        length: number of a prompt's tokens, on average, for the cost of a replication.
        folder: the place for stored rollouts and scores of replications; by default nothing is stored.
    """

    source: Source
    length: float
    folder: Path | None = None

    block = _BLOCK
    least = 8

    @property
    def group_sizes(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.source.group_sizes

    def on(self, device: str) -> GroupCell:
        """The cell with its passes on a device."""
        return replace(self, source=replace(self.source, device=device))

    @property
    def quantities(self) -> tuple[LmQuantity, ...]:
        parts = product((pooled, drawn), BASELINES, self.group_sizes)
        return tuple(of(self.source.task, baseline, size) for of, baseline, size in parts)

    @property
    def name(self) -> str:
        """Everything that a replication depends on, except its number, the seed and the device."""
        words = self.source.key, _code()
        return "groups-" + hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]

    @property
    def outputs(self) -> int:
        """The cost of a replication, in outputs of a bandit."""
        source = self.source
        answer = task_of(source.task, source.prompts).max_new_tokens
        tokens = source.prompts * (self.length + source.rollouts * answer)
        return round(tokens * _WORK)

    def pilot(self, replications: int) -> int:
        """A few replications, because each is long: it is a mean over all groups of its rollouts."""
        return 2 * _BLOCK

    def shown(self, blocks: float) -> float:
        """At least the number of blocks that verdicts need."""
        return max(blocks, 4.0)

    def _replication(self, seed: int, number: int) -> dict[str, float]:
        """The mean error over prompts of each baseline in groups of each size, by label."""
        from ustat_pg.llm.pool.estimates import curves

        pool, task = self.source.replication(seed, number, self.folder), self.source.task
        found = {
            pooled(task, row["estimator"], row["group_size"]): row["mse"]
            for row in curves(pool, self.group_sizes, BASELINES).to_dict("records")
        }
        order = np.arange(pool.rollouts)
        values, place = pool.config["values"], pool.config["place"]
        sides = []
        for x, (rewards, gram) in enumerate(zip(pool.rewards, pool.gram, strict=True)):
            draw = np.random.default_rng([seed, number, x + 1])
            orders = draw.permuted(np.tile(order, (_ORDERS, 1)), axis=1)
            sides.append(errors_of_groups(rewards, orders, values[x], gram, self.group_sizes))
        passed: Values = {}
        for size in self.group_sizes:
            few = order[: 2 * size]
            gram = pool.gram[place][np.ix_(few, few)]
            said = errors_of_groups(
                pool.rewards[place, few], few[None], values[place], gram, [size]
            )
            for (name, _), error in said.items():
                passed[name, size] = pool.config["passed"][str(size)][name] - error
        for (name, size), more in passed.items():
            mean = float(np.mean([side[name, size] for side in sides]))
            found[drawn(task, name, size)] = mean + more
        return {quantity.label: value for quantity, value in found.items()}
