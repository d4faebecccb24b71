"""Checks of properties for given rewards: invariances, and finite results for degenerate groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rounding import GIVEN, SINGLE_GIVEN
from ..validation import InputError, integer, one_of
from .function import Array, UnderTest, Violation, relative_tolerance, reports, show, whole_numbers

INVARIANCES = ("shift", "scale", "permutation", "zero-sum")
"""The properties that :func:`assert_invariances` knows."""


@dataclass(frozen=True, eq=False)
class _Case:
    """The rewards of one minibatch and the transformations of them."""

    rewards: Array  # (B, G)
    squared_norms: Array  # (B, G)
    offset: float
    factor: float
    order: NDArray[np.int64]  # (B, G), a permutation in each row


def _advantages(under: UnderTest, rewards: Array, squared_norms: Array) -> Array:
    return under(rewards[None], squared_norms[None], np.zeros((1, len(rewards)), np.int64))[0]


def _violation(under: UnderTest, name: str, case: _Case, rtol: float) -> str | None:
    """A text on the violation of a property, to follow the function's name; None if there is none."""
    rewards, norms = case.rewards, case.squared_norms
    plain = _advantages(under, rewards, norms)
    magnitude = float(np.abs(rewards).max())
    if name == "zero-sum":
        total = plain.sum(axis=-1)
        allowed = rtol * rewards.shape[-1] * (np.abs(plain).max() + magnitude)
        if (np.abs(total) > allowed).any():
            row = int(np.argmax(np.abs(total)))
            return (
                f"'s advantages do not sum to zero: {show(plain[row])} sums to {total[row]:.4g}, "
                f"at rewards {show(rewards[row])}"
            )
        return None
    if name == "shift":
        other = _advantages(under, rewards + case.offset, norms)
        wanted, message, changed = plain, "is not shift-invariant", f"A(z + {case.offset:g})"
        law, magnitude = "A(z)", magnitude + abs(case.offset)
    elif name == "scale":
        other = _advantages(under, case.factor * rewards, norms)
        wanted, message, changed = (
            case.factor * plain,
            "is not scale-equivariant",
            f"A({case.factor:g} z)",
        )
        law, magnitude = f"{case.factor:g} A(z)", magnitude * case.factor
    else:
        other = _advantages(
            under,
            np.take_along_axis(rewards, case.order, -1),
            np.take_along_axis(norms, case.order, -1),
        )
        wanted = np.take_along_axis(plain, case.order, -1)
        message, changed = "is not permutation-equivariant", "A(z in another order)"
        law = "A(z) in that order"
    allowed = rtol * (np.abs(wanted).max() + magnitude)
    if np.abs(other - wanted).max() <= allowed:
        return None
    text = (
        f" {message}: {changed} is {show(other)} and {law} is {show(wanted)}, "
        f"at rewards z = {show(rewards)}"
    )
    if name == "permutation":
        text += f", order {case.order.tolist()}"
    if name == "scale" and np.abs(other - plain).max() <= 1e-2 * np.abs(plain).max():
        text += f"; {changed} is about A(z): the advantages are normalised, as by a deviation"
    if "squared_norms" in under.inputs:
        text += f", squared norms {show(norms)}"
    return text


# Values are multiples of 1/16 of moderate size, so that sums and shifts are exact and findings are not
# rounding.
_OFFSETS = (1.0, -3.0, 0.5, 1000.0, 2.0**20)
_SCALES = (2.0, 3.0, 0.5, 10.0, 1024.0, 2.0**-10)


def _corners(size: int) -> dict[str, Array]:
    """Degenerate groups by name, (G,) each."""
    first, last, half = np.zeros(size), np.ones(size), np.zeros(size)
    first[0], last[-1], half[::2] = 1.0, 0.0, 1.0
    return {
        "all rewards zero": np.zeros(size),
        "all rewards equal": np.ones(size),
        "a single reward that is not zero": first,
        "all but one reward equal": last,
        "half of the rewards one": half,
        "a large offset": 2.0**20 + first,
        "negative rewards": -2 - half,
        "a tiny spread": first * 2.0**-20,
    }


_CORNER_CHANGES = ((1.0, 2.0), (-3.0, 0.5), (2.0**20, 2.0**-10))


def _corner_cases(name: str, size: int, batches: Sequence[int]) -> Iterable[_Case]:
    for row in _corners(size).values():
        for batch in batches:
            z = np.broadcast_to(row, (batch, size)).copy()
            if batch > 1:
                z[1:] = 0.5 * np.arange(size)
            norms = np.broadcast_to(1.0 + np.arange(size), z.shape)
            order = np.broadcast_to(np.roll(np.arange(size), 1), z.shape)
            for offset, factor in _CORNER_CHANGES if name in ("shift", "scale") else [(0.0, 1.0)]:
                yield _Case(z, norms, offset, factor, order)


def _seeded_cases(sizes: Sequence[int], batches: Sequence[int], number: int) -> Iterable[_Case]:
    rng = np.random.default_rng(0)
    for _ in range(number):
        shape = (int(rng.choice(batches)), int(rng.choice(sizes)))
        yield _Case(
            rng.integers(-64, 65, shape) / 16,
            rng.integers(1, 65, shape) / 16,
            float(rng.choice(_OFFSETS)),
            float(rng.choice(_SCALES)),
            np.argsort(rng.random(shape), axis=-1),
        )


@reports
def assert_invariances(
    function: Callable[..., Any],
    which: Iterable[str] = INVARIANCES,
    *,
    group_size: int | Iterable[int] = (2, 3, 4, 8),
    layout: str = "batched",
    inputs: Sequence[str] = ("rewards",),
    array: Callable[[Any], Any] | None = None,
    examples: int = 100,
    rtol: float = GIVEN,
) -> None:
    """Assert that an advantage function has some of four properties, for any rewards.

    A(z + c) = A(z) (shift),   A(c z) = c A(z), c > 0 (scale),   A(P z) = P A(z) (permutation),
    Σᵢ Aᵢ = 0 (zero-sum).

    grpo and the full group mean have all four. vanilla has neither shift nor zero-sum, a normalised function
    does not have scale, and norm-weighted does not have zero-sum: choose those that your function should
    have. They do not follow from unbiasedness, and unbiasedness does not follow from them. Corner cases
    come first (all rewards equal, one different, a large offset), then ``examples`` seeded draws, the
    same in every run. To search and shrink with Hypothesis, draw ``testing.rewards``.

    Arguments:
        function, layout, inputs, array: arguments of :func:`assert_unbiased`; ``contexts`` are all 0.
        which: some of :data:`INVARIANCES`. In layout ``"minibatch"`` c is the same for all prompts, and each
            prompt has its own order.
        group_size: G >= 2, one or several.
        examples: number of cases tried for each property.
        rtol: allowed difference relative to rewards and advantages; 1e-5 for single precision.

    Raises:
        AssertionError: a property fails (the message has the rewards); or as for :func:`assert_unbiased`.

    >>> from ustat_pg.estimators import grpo, vanilla
    >>> assert_invariances(grpo)
    >>> assert_invariances(vanilla, ["shift"])
    Traceback (most recent call last):
    ...
    AssertionError: vanilla is not shift-invariant: A(z + 1) is [[1.0, 1.0]] and A(z) is ...
    """
    under = UnderTest(function, layout, inputs, array, rtol)
    names = [which] if isinstance(which, str) else list(which)
    for name in names:
        one_of("invariance", name, INVARIANCES)
    if not names:
        raise InputError(f"which is empty: choose some of {', '.join(INVARIANCES)}")
    sizes, tolerance = whole_numbers("group size", group_size, 2), relative_tolerance(rtol)
    number = integer("examples", examples)
    batches = (1,) if layout == "group" else (1, 2, 3)
    for name in names:
        corners = (_corner_cases(name, size, batches[:2]) for size in sizes)
        for case in chain(*corners, _seeded_cases(sizes, batches, number)):
            if text := _violation(under, name, case, tolerance):
                raise Violation(f"{under.name}{text}{under.hint}")


@reports
def assert_finite(
    function: Callable[..., Any],
    *,
    group_size: int | Iterable[int] = (2, 3, 8),
    layout: str = "batched",
    inputs: Sequence[str] = ("rewards",),
    array: Callable[[Any], Any] | None = None,
    rtol: float = SINGLE_GIVEN,
) -> None:
    """Assert that degenerate groups give neither NaN nor infinity.

    The groups have all rewards equal or zero (deviation 0), a single reward that differs, two nearly equal
    values, a large offset, equal rewards that are not binary fractions (their mean may differ from them), or
    scores that are all zero, or all but one. Each group is tried alone and together with an ordinary group.

    Arguments:
        function, layout, inputs, array: arguments of :func:`assert_unbiased`; ``contexts`` are all 0.
        group_size: G >= 2, one or several.
        rtol: allowed difference between a group alone and the same group together with others; at least 1e-4.

    Raises:
        AssertionError: advantages are not finite; the message says for which group.

    >>> from ustat_pg.estimators import grpo
    >>> assert_finite(grpo)
    >>> assert_finite(lambda z: (z - z.mean(-1, keepdims=True)) / z.std(-1, keepdims=True))
    Traceback (most recent call last):
    ...
    AssertionError: G = 2, all rewards zero: <lambda> is not finite: the advantages of ...
    """
    under = UnderTest(function, layout, inputs, array, rtol)
    for size in whole_numbers("group size", group_size, 2):
        groups = _corners(size)
        groups["equal rewards that are not binary fractions"] = np.full(size, 0.1)
        norms = {"": np.ones((1, size))}
        if "squared_norms" in under.inputs:
            norms |= {
                ", all scores zero": np.zeros((1, size)),
                ", all scores zero but one": np.eye(size)[:1],
            }
        for name, group in groups.items():
            for label, weight in norms.items():
                beside = np.stack([group, np.linspace(0, 1, size)])
                try:
                    _advantages(under, group[None], weight)
                    if layout != "group":
                        _advantages(under, beside, np.repeat(weight, 2, axis=0))
                except Violation as violation:
                    raise Violation(f"G = {size}, {name}{label}: {violation}") from None
