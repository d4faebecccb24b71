"""The check that an advantage function equals a trainer's options, including ε."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
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

SCALES = tuple(2.0**power for power in (0, -20, -15, -10, -5, 5, 10))
"""Factors of the rewards, 1 and from 1e-6 to 1e3 as powers of 2, which add no rounding."""


@reports
def assert_is(
    function: Callable[..., Any],
    estimator: Any,
    *,
    group_size: int | Iterable[int] = (2, 3, 4, 8, 16, 64, 128),
    layout: str = "batched",
    array: Callable[[Any], Any] | None = None,
    rtol: float = SINGLE,
) -> None:
    """Assert that the advantages are those of a trainer's options, including ε.

    Every group of rewards 0 and 1 is tried up to G = 12. Every group of -1, 0.5 and 2 is tried up to G = 4,
    unless the catalogue's row is only for rewards 0 and 1. In larger groups every number of successes is
    tried in eight orders, which is enough for functions that treat the members of a group equally. All
    rewards are also multiplied by factors from 1e-6 to 1e3. At the small ones the deviation is like ε, or far
    below it, so a floor under the deviation or the variance, ε within the root, another ε, and no ε differ
    from the row; so does a clamp of undivided advantages at the large ones. At G = 128 the largest advantage
    over a deviation is 11.2, so a clamp below that is detected. Rewards and advantages that the framework
    itself clips by default are left out (AReaL beyond 20, OpenRLHF beyond 10).

    What it cannot tell apart: two formulas that agree within ``rtol`` on all these rewards, such as an ε
    below 1e-12 and none, or a floor that far down; a clamp above 11.2 deviations; what a function does with
    other rewards, for example by a threshold. Where a row has an ε but divides by no deviation, as MaxRL,
    differences up to G ε over the rewards' scale pass.

    Arguments:
        function, layout, array: arguments of :func:`assert_unbiased`.
        estimator: a trainer's options, as for :func:`ustat_pg.catalogue.resolve`, which the function must
            equal.
        group_size: G >= 2, one or several.
        rtol: allowed difference relative to the largest advantage of a group; where all are 0, relative to
            the least such number of the other groups.

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
        epsilon = row.epsilon * ((size - 1) / size if row.of_others else 1.0)
        levels = [(0.0, 1.0)] + [(-1.0, 0.5, 2.0)] * (size <= 4 and not row.binary)
        for scale, values in product(SCALES[:1] if row.binary else SCALES, levels):
            tried = scale * groups(values, size)
            if scale != 1:
                # Orders are tried at scale 1.
                tried = np.unique(np.sort(tried, axis=1), axis=0)
            if row.ddof is not None and record_of(name).standardised:
                wanted: Array = standardised(tried, ddof=row.ddof, epsilon=epsilon)
                slack = tolerance
            else:
                wanted, slack = advantages(name, tried), tolerance + size * epsilon / scale
            wanted = np.asarray(meaning.factor * wanted)
            outcome = under(
                tried[:, None], np.zeros_like(tried)[:, None], np.zeros((len(tried), 1))
            )
            outcome = outcome[:, 0]
            largest = np.abs(wanted).max(1)
            least = largest[largest > 0].min(initial=np.inf)
            off = np.abs(outcome - wanted).max(1) > slack * np.maximum(largest, least)
            off &= np.maximum(np.abs(tried).max(1), largest) <= meaning.framework.bound
            if off.any():
                i = int(np.flatnonzero(off)[0])
                raise Violation(
                    f"{under.name} is not {called}: at G = {size} the advantages of rewards "
                    f"{show(tried[i])} are {show(outcome[i])}, there {show(wanted[i])}"
                )
