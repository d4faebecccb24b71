"""Budgets of completions: which group sizes one can hold."""

from __future__ import annotations

from ..validation import InputError, integer

__all__ = ["allowed_group_sizes", "refuse_group_size"]


def allowed_group_sizes(budget: int, prompts: int | None = None) -> tuple[int, ...]:
    """The group sizes that a budget of completions can hold: divisors of at least 2.

    With B = budget/G prompts in a step there must be as many prompts, since TRL draws those of a
    step without replacement and drops what does not fill one.

    Arguments:
        budget: completions of one step, K = B G.
        prompts: how many prompts there are, if that limits B.

    Raises:
        InputError: the budget is not a whole number of at least 2.

    >>> allowed_group_sizes(32)
    (2, 4, 8, 16, 32)
    >>> allowed_group_sizes(32, prompts=5)
    (8, 16, 32)
    """
    budget = integer("budget", budget, 2)
    fewest = 2 if prompts is None else max(2, -(-budget // prompts))
    return tuple(size for size in range(fewest, budget + 1) if budget % size == 0)


def refuse_group_size(group_size: int, budget: int, prompts: int | None = None) -> None:
    """Refuse a group size that the budget cannot hold, with those that it can.

    Raises:
        InputError: the group size does not divide the budget, or needs more prompts than there are.

    >>> refuse_group_size(8, 20)
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: group size 8 does not divide the budget of 20 completions: ...
    """
    allowed = allowed_group_sizes(budget, prompts)
    if group_size in allowed:
        return
    if group_size < 2:
        what = f"group size is {group_size}: it must be at least 2"
    elif budget % group_size:
        what = f"group size {group_size} does not divide the budget of {budget} completions"
    else:
        what = (
            f"group size {group_size} at a budget of {budget} completions needs "
            f"{budget // group_size} prompts in a step and there are {prompts}"
        )
    raise InputError(f"{what}: choose one of {', '.join(map(str, allowed))}")
