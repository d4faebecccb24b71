"""Conversion of functions of groups with random sizes to functions of the largest group."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..sampling.plans import Plan
from ..validation import InputError
from .function import Violation, _numpy

Stop = Callable[[Any], bool]


def largest_group(plan: str | Plan | Stop) -> int | None:
    """The most outputs that a plan draws; None for a function, which decides for each group."""
    return None if callable(plan) else Plan.parse(plan).looks[-1]


def under_plan(function: Callable[..., Any], plan: str | Plan | Stop) -> Callable[..., Any]:
    """The function on the outputs that a plan draws, with 0 for outputs that it does not draw.

    Outputs of a group are independent, so those after a stop have no effect. Advantages are multiplied by
    G/n, because estimates divide by the largest group.

    Arguments:
        function: advantages (n,) of the n rewards drawn, in their order.
        plan: a plan without random choices, or its words, for rewards 0 and 1; or a function of the rewards
            so far, (m,) with m = 1, 2, ..., that returns whether to stop.
    """
    if callable(plan):
        stop = plan
    else:
        scheme = Plan.parse(plan)
        looks = dict(zip(scheme.looks[:-1], scheme.go_on, strict=True))
        if any(chance not in (0, 1) for row in scheme.go_on for chance in row):
            raise InputError(f"plan {scheme.text!r} is random: give one that is not")

        def stop(drawn: Any) -> bool:
            return len(drawn) in looks and not looks[len(drawn)][int(sum(drawn))]

    @functools.wraps(function)
    def on_the_largest(rewards: Any) -> Any:
        values = _numpy(rewards)
        largest = len(values)
        size = next((m for m in range(1, largest) if stop(values[:m])), largest)
        weights = _numpy(function(rewards[:size]))
        if weights.shape != (size,):
            raise Violation(f"advantages have shape {weights.shape} for {size} rewards")
        return np.append(weights * largest / size, np.zeros(largest - size))

    return on_the_largest
