"""Cells of a language model that somebody else trained, on prompts that are named.

One replication draws rollouts at each of the prompts and scores them as a pool, of which the library's
formulas make each baseline's error. Against them stand the errors of groups of the same rollouts: half the
squared distance of the gradients of two groups, averaged over all groups that several random orders cut
them into. The oracle knows V from two samples of its own, and its error is the product of the two
distances that these give: a gradient is linear in its baseline, so that this is the oracle's error on
average, exactly.

The two groups of one order, at one of the prompts, are differentiated whole: each baseline's distance is one
backward pass of the loss of the first group less that of the second, which reads nothing of the code that
scores pools. The others' distances are made of the pool's inner products ⟨sᵢ, sⱼ⟩, and the mean over all is
shifted by what the pass has more than they say of its two groups. So inner products serve as a control
variate: were they wrong, the mean would still be that of passes over all groups, with more noise.

Both sides are unbiased for the same errors if the formulas are right, and read the same rollouts: what is
left of their difference are products of different rollouts, whose mean is 0 since E s = 0. So a few dozen
replications tell wrong formulas, where errors of groups against those of another pool did not.

The prompts are the same in all replications: what is measured is the mean error at these.
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
"""Orders of a prompt's rollouts, each cut into groups."""

_WORK = 2**17
"""Outputs of a bandit that take the time of a token that is scored."""

_BLOCK = 2
"""Replications in a block."""


@cache
def _code() -> str:
    """A digest of the files that make quantities of what is drawn and scored: formulas among them."""
    return source_digest(Path(__file__).resolve())


@dataclass(frozen=True)
class GroupCell(ModelCell):
    """A model on the same prompts of a task.

    Arguments:
        source: the model and prompts, and how many rollouts a replication takes.
        length: number of a prompt's tokens, on average, which a replication's cost goes by.
        folder: where the rollouts and scores of replications are kept; nowhere unless given.
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
        """Everything that a replication depends on but its number, the seed and the device."""
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
        """A few replications, which are long: each is a mean over all groups of its rollouts."""
        return 2 * _BLOCK

    def shown(self, blocks: float) -> float:
        """At least the blocks that verdicts take."""
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
