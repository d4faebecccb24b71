"""Results proved by computer algebra, for every group size and every law of scores and rewards."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

from ustat_pg.validation import MissingPackageError


class Proof(StrEnum):
    """The result of the algebra for one result."""

    WHOLE = "proof"
    PART = "proof of a part"
    REFUTED = "proof REFUTED"


@lru_cache
def proof_of(stem: str) -> Proof | None:
    """Whether the closed forms of a result are proved; None without statements, or without sympy."""
    try:
        from .results import BY_STEM, NOT_PROVED
    except MissingPackageError:
        return None
    if stem not in BY_STEM:
        return None
    if not all(each.proved for each in BY_STEM[stem]()):
        return Proof.REFUTED
    return Proof.PART if stem in NOT_PROVED else Proof.WHOLE
