"""How the prompts of a minibatch are chosen.

On the ground, because predictions and engines both need it and may not know each other.
"""

from __future__ import annotations

from ..validation import InputError, integer, one_of

DESIGNS = ("iid", "fixed", "without-replacement")
"""Independent draws from ρ; every prompt once; distinct prompts drawn uniformly."""


def require_design(design: str, batch_size: int, contexts: int, uniform: bool) -> None:
    """Refuse a design that does not fit the prompts.

    Raises:
        InputError: an unknown design; fixed or without-replacement where prompts are not equally
            likely; fixed with B other than the number of contexts; without-replacement with more.
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
