"""The record of a problem of the suite: its name, where it comes from, and itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from ustat_pg.checks import Statement
from ustat_pg.experiment import Check
from ustat_pg.experiment.functionals import Functional
from ustat_pg.validation import InputError

__all__ = ["ORIGINS", "Entry"]

ORIGINS = ("made-up", "generated", "real", "user")

P = TypeVar("P")


@dataclass(frozen=True)
class Entry(Generic[P]):
    """A problem with a name and where it comes from: made-up, generated, real or user.

    Arguments:
        name: for reports, unique in its claim.
        origin: one of ORIGINS.
        problem: a bandit, or a landscape with an interior optimum.

    Raises:
        InputError: the origin is unknown.
    """

    name: str
    origin: str
    problem: P

    def __post_init__(self) -> None:
        if self.origin not in ORIGINS:
            raise InputError(f"origin {self.origin!r} is unknown: choose of {', '.join(ORIGINS)}")

    def check(self, what: str, functional: Functional, statement: Statement) -> Check:
        """A check on the problem, whose name begins with the problem's."""
        return Check(f"{self.name} {what}", self.origin, functional, statement)
