"""The check that an advantage function equals a trainer's options, including ε."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..catalogue import resolve
from ..estimators import advantages, standardised
from ..registry import record_of
from ..rounding import SINGLE
from ..validation import InputError
from .function import (
    Array,
    UnderTest,
    Violation,
    relative_tolerance,
    reports,
    show,
    whole_numbers,
)
from .tables import groups


@reports
def assert_is(
    function: Callable[..., Any],
    estimator: Any,
    *,
    group_size: int | Iterable[int] = (2, 3, 4, 8, 16, 64),
    layout: str = "batched",
    array: Callable[[Any], Any] | None = None,
    rtol: float = SINGLE,
) -> None:
    """Assert that the advantages are those of a trainer's options, including ε.

    Every group of rewards 0 and 1 is tried up to G = 12. Every group of -1, 0.5 and 2 is tried up to G = 4,
    unless the catalogue's row is only for rewards 0 and 1. In larger groups every number of successes is
    tried in eight orders, which is enough for functions that treat the members of a group equally. At G = 64
    the largest advantage over a deviation is 7.9, so a clamp below 7.9 is detected.

    Arguments:
        function, layout, array: arguments of :func:`assert_unbiased`.
        estimator: a trainer's options, as for :func:`ustat_pg.catalogue.resolve`, which the function must
            equal.
        group_size: G >= 2, one or several.
        rtol: allowed difference relative to the largest advantage of a group, or to 1.

    Raises:
        AssertionError: an advantage differs; the message has the group.
        InputError: an argument is invalid, or the options mean an estimator that this library does not have.

    >>> def mine(z):
    ...     return (z - z.mean(-1, keepdims=True)) / (z.std(-1, ddof=1, keepdims=True) + 1e-4)
    >>> assert_is(mine, "trl scale_rewards=group")
    >>> assert_is(mine, "verl adv_estimator=grpo")
    Traceback (most recent call last):
    ...
    AssertionError: mine is not verl adv_estimator=grpo (GRPO): at G = 2 the advantages of rewards ...
    """
    under = UnderTest(function, layout, ("rewards",), array, rtol)
    tolerance = relative_tolerance(rtol)
    for size in whole_numbers("group size", group_size, 2):
        meaning = resolve(estimator, size)
        row, name = meaning.row, meaning.estimator
        called = f"{meaning.framework.name} {meaning.written}".strip() + f" ({row.name})"
        if name is None:
            raise InputError(f"{called} depends on more than a group's rewards, so it has no table")
        levels = [(0.0, 1.0)] + [(-1.0, 0.5, 2.0)] * (size <= 4 and not row.binary)
        for values in levels:
            tried = groups(values, size)
            if row.ddof is not None and record_of(name).standardised:
                wanted: Array = standardised(tried, ddof=row.ddof, epsilon=row.epsilon)
                slack = tolerance
            else:
                wanted, slack = advantages(name, tried), tolerance + size * row.epsilon
            wanted = np.asarray(meaning.factor * wanted)
            outcome = under(
                tried[:, None], np.zeros_like(tried)[:, None], np.zeros((len(tried), 1))
            )
            outcome = outcome[:, 0]
            off = np.abs(outcome - wanted).max(1) > slack * np.maximum(1, np.abs(wanted).max(1))
            if off.any():
                i = int(np.flatnonzero(off)[0])
                raise Violation(
                    f"{under.name} is not {called}: at G = {size} the advantages of rewards "
                    f"{show(tried[i])} are {show(outcome[i])}, there {show(wanted[i])}"
                )
