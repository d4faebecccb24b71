"""Every estimator that engines can run, so that a new one is tested without being named again."""

from collections.abc import Callable

from ustat_pg.engines import Estimator
from ustat_pg.engines.base import RUNNABLE
from ustat_pg.registry import ESTIMATORS

__all__ = ["EACH", "WITH_RANGE", "spelled", "tables_of"]

NUMBERS: dict[str, Callable[[int], tuple[float, ...]]] = {
    "shrinkage": lambda size: (0.25, 0.5),
    "bayes": lambda size: (1, 0.5),
    "shrunk-norm-weighted": lambda size: (1, 0.5),
    "memory": lambda size: (3,),
    "weighted-memory": lambda size: (3, 0.25),
    "pass-at-k": lambda size: (min(2, size),),
    "gain-at-k": lambda size: (2,),
    "count-table": lambda size: (*(0.9, 0.8, 0.6, 0.5)[:size], *(-0.1, -0.2, -0.6, -0.7)[:size]),
    "loo-table": lambda size: (0.2, 0.3, 0.6, 0.7)[:size],
}
"""Numbers that a name carries, in groups of up to 4."""


def spelled(name: str, size: int = 4) -> str:
    """An estimator's name with numbers, if it takes any."""
    numbers = NUMBERS.get(name, lambda size: ())(size)
    return ":".join((name, ",".join(map(str, numbers)))) if numbers else name


EACH = [
    Estimator(spelled(name), 0.3 if "constant" in ESTIMATORS[name].needs else None)
    for name in RUNNABLE
    if name not in ("count-table", "loo-table")
]
"""One estimator for each name, of those that take groups of any size."""


def tables_of(size: int) -> list[Estimator]:
    """The estimators that compiled engines read from a table by counts, on rewards 0 and 1."""
    return [
        Estimator(spelled(name, size))
        for name in RUNNABLE
        if (record := ESTIMATORS[name]).by_count
        and not record.kernel
        and size >= record.least_group
    ]


KNOWN = ("of_prompt", "of_pairs", "within_rewards", "standardised")
"""What bounds an estimate whatever the rewards."""

WITH_RANGE = [each for each in EACH if any(getattr(each.record, known) for known in KNOWN)]
"""Those whose gradients have a known bound."""
