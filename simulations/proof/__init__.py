"""Results proved by computer algebra, for every group size and every law of scores and rewards."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec


@lru_cache
def proved(stem: str) -> bool | None:
    """Whether all statements of a result are proved; None without statements, or without sympy."""
    if find_spec("sympy") is None:
        return None
    from .results import BY_STEM

    return all(each.proved for each in BY_STEM[stem]()) if stem in BY_STEM else None
