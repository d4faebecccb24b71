"""The check that one error of a language model is larger than another."""

from __future__ import annotations

from collections.abc import Sequence

from ustat_pg.checks import positive
from ustat_pg.experiment import Check, Linear

from .cells import LmCell, LmQuantity
from .studies import short

Error = tuple[LmQuantity, float, float]
"""What is sampled, the factor that it is taken times, and the pool's prediction of their product."""


def above(
    name: str, cell: LmCell, larger: Error, smaller: Error, rivals: Sequence[str] = ()
) -> Check:
    """The larger error less the smaller one is positive, in units of the larger one's prediction."""
    (first, first_factor, top), (second, second_factor, bottom) = larger, smaller
    difference = Linear(cell, ((first, first_factor / top), (second, -second_factor / top)))
    statement = positive((top - bottom) / top, rivals, scale=1.0)
    return Check(name, "made-up", difference, statement, problem=short(first.member))
