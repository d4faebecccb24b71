"""How the prompts of a minibatch are chosen.

This is a base module, because predictions and engines both need it and must not import each other.
"""

from __future__ import annotations

from ..validation import InputError, integer, one_of

DESIGNS = ("iid", "fixed", "without-replacement")
"""Independent draws from ρ; every prompt once; distinct prompts drawn uniformly."""


def require_design(design: str, batch_size: int, contexts: int, uniform: bool) -> None:
    """Refuse a design that does not fit the prompts.

    Raises:
        InputError: the design is unknown; it is fixed or without-replacement, but prompts are not equally
            likely; B differs from the number of contexts for fixed, or exceeds it for without-replacement.
    """
    integer("batch size", batch_size)
    one_of("design", design, DESIGNS)
    if design == "iid":
        return
    if not uniform:
        raise InputError(f"design {design} needs uniform context probabilities")
    if design == "fixed" and batch_size != contexts:
        raise InputError(
            f"batch size is {batch_size}: design fixed uses each of the {contexts} contexts "
            f"once, so it must be {contexts}"
        )
    if batch_size > contexts:
        raise InputError(
            f"batch size is {batch_size}: without replacement it can be at most the number of "
            f"contexts, {contexts}"
        )
