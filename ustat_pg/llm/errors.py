"""The moments of every baseline's gradient at each prompt of a pool: what curves and ratios are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..baselines import ALIASES, parse
from ..baselines import BASELINES as RECORDS
from ..predictions import best_table, count_table
from ..validation import InputError, finite_array, one_of
from .groups import WEIGHTED, at_best_constant, group_errors
from .moments import GroupMoments, PromptMoments
from .scored import ScoredPool
from .tables import learned_moments, raw_moments, table_moments

__all__ = ["BASELINES", "TABLES", "group_moments", "names_of"]

Array = NDArray[np.float64]

BASELINES = ("vanilla", "grpo", "oracle", "minimum-variance", *WEIGHTED)
"""What is drawn of any rewards, and ``constant`` with its number."""
TABLES = (
    "bayes:1,1",
    *(
        record.name
        for record in RECORDS.values()
        if record.by_count and not record.parameters and record.name not in BASELINES
    ),
)
"""Tables by counts, of rewards 0 and 1; any other by its name too. The best is learned on other prompts than
it is judged on."""


AGGREGATIONS = ("sequence-sum", "sequence-mean")
"""Whether a loss adds up the tokens of a completion, or averages them (length_weights)."""


def names_of(baselines: Sequence[str], constant: ArrayLike | None = None) -> list[str]:
    """Baselines by the names that they have in results.

    Raises:
        InputError: none, an unknown one, or a constant without its number.
    """
    if isinstance(baselines, str):
        raise InputError(f"baselines are {baselines!r}: give a list of names")
    names = [ALIASES.get(name, name) for name in baselines]
    for name in names:
        if name in (*BASELINES, "constant"):
            continue
        family = RECORDS.get(name.partition(":")[0])
        if family is None or not family.by_count:
            raise InputError(
                f"baseline {name!r} is unknown: choose one of {', '.join([*BASELINES, 'constant'])}, "
                f"or a table by counts such as {', '.join(TABLES)}"
            )
    if not names:
        raise InputError("no baselines are given: at least one is needed")
    if (constant is not None) != ("constant" in names):
        raise InputError("a constant is given with, and only with, the baseline constant")
    return names


def group_moments(
    pool: ScoredPool,
    moments: PromptMoments | None,
    names: Sequence[str],
    sizes: Sequence[int],
    constant: ArrayLike | None = None,
    aggregation: str = "sequence-sum",
) -> list[list[GroupMoments]]:
    """The moments of each baseline's gradient, for each baseline those of every group size.

    Arguments:
        moments: of the pool's prompts; None where the mean of scores is not 0.

    Raises:
        InputError: a group size that a baseline or the pool cannot take.
    """
    by_length = one_of("aggregation", aggregation, AGGREGATIONS) == "sequence-mean"
    if moments is None:
        for name in names:
            record = RECORDS.get(name.partition(":")[0])
            if record is None or not record.by_count or record.needs:
                raise InputError(
                    f"{name} is no table by counts of its own: aggregation sequence-mean and pools "
                    "weighted by token take these only"
                )
        return [
            [raw_moments(pool, count_table(name, size), by_length=by_length) for size in sizes]
            for name in names
        ]
    if "grpo" in names and min(sizes) < 2:
        raise InputError(f"group size is {min(sizes)}: leave-one-out needs at least 2")
    weighted = [name for name in dict.fromkeys(names) if name in WEIGHTED]
    drawn = {}
    if weighted:
        drawn = dict(zip(weighted, group_errors(pool, weighted, sizes), strict=True))
    squares = {
        "vanilla": lambda: moments.norm_squared_reward,
        "grpo": lambda: moments.norm_squared_advantage,
        "oracle": lambda: moments.norm_squared_advantage,
        "constant": lambda: moments.centred(_each(constant, pool)),
        "minimum-variance": lambda: at_best_constant(pool),
    }

    def at(name: str) -> list[GroupMoments]:
        if name not in squares and name not in drawn:
            return [_of_table(pool, moments, name, size) for size in sizes]
        if name in drawn:
            errors = list(drawn[name])
        else:
            single = squares[name]() - moments.gradient_sq
            errors = [single / size for size in sizes]
        if name == "grpo":
            pair = moments.variance_trace + moments.gradient_sq
            errors = [e + pair / (g * (g - 1)) for e, g in zip(errors, sizes, strict=True)]
        return [GroupMoments.unbiased(error, moments.gradient_sq) for error in errors]

    return [at(name) for name in names]


def _of_table(pool: ScoredPool, moments: PromptMoments, name: str, group_size: int) -> GroupMoments:
    if parse(name)[0].needs:
        return learned_moments(pool, moments, lambda known: best_table(known, group_size))
    return table_moments(pool, count_table(name, group_size))


def _each(constant: Any, pool: ScoredPool) -> Array:
    """A constant of every prompt, (P,)."""
    given = finite_array("constant", constant)
    if given.shape not in ((), (pool.size,)):
        raise InputError(
            f"constant has shape {given.shape}: give a number, or one for each of {pool.size} prompts"
        )
    return np.broadcast_to(given, pool.size)
