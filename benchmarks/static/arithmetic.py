"""Instructions of PTX that compute, as functions of NumPy's arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.static.program import Refused

Array = Any
Kind = np.dtype[Any]
Function = Callable[..., Array]

KINDS: dict[str, Kind] = {
    **{f"{letter}{size}": np.dtype(f"u{size // 8}") for letter in "bu" for size in (8, 16, 32, 64)},
    **{f"s{size}": np.dtype(f"i{size // 8}") for size in (8, 16, 32, 64)},
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
    "pred": np.dtype(bool),
}
WORD, LONG, HOLDS = KINDS["u32"], KINDS["u64"], KINDS["pred"]


def wider(kind: Kind) -> Kind:
    """The integers of twice as many bits."""
    return np.dtype(f"{kind.kind}{2 * kind.itemsize}")


def fused(a: Array, b: Array, c: Array) -> Array:
    """a b + c by Dekker's product and Knuth's sum, within a unit of the last place."""
    if a.dtype == np.float32:
        return (np.multiply(a, b, dtype=np.float64) + c).astype(np.float32)
    with np.errstate(all="ignore"):
        product = a * b
        high_a, high_b = (x * 134217729.0 - (x * 134217729.0 - x) for x in (a, b))
        low_a, low_b = a - high_a, b - high_b
        lost = low_a * low_b - (((product - high_a * high_b) - low_a * high_b) - high_a * low_b)
        whole = product + c
        part = whole - product
        rest = (product - (whole - part)) + (c - part) + lost
        return np.where(np.isfinite(rest), whole + rest, whole)


def quotient(a: Array, b: Array) -> Array:
    """a / b; of integers towards 0, and all bits where b = 0."""
    if a.dtype.kind == "f":
        return a / b
    safe = np.where(b == 0, np.ones_like(b), b)
    down = a // safe
    whole = down + ((a % safe != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, ~np.zeros_like(b), whole)


def remainder(a: Array, b: Array) -> Array:
    """What is left of a, with its sign."""
    return a - b * quotient(a, b)


def high_product(a: Array, b: Array) -> Array:
    """The upper half of a product."""
    if a.dtype.itemsize == 4:
        product = a.astype(wider(a.dtype)) * b
        return (product >> product.dtype.type(32)).astype(a.dtype)
    if a.dtype.kind == "i":
        high = high_product(a.view(LONG), b.view(LONG)).view(a.dtype)
        return high - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    middle = (a & low) * (b & low) >> half
    one, other = (a >> half) * (b & low) + middle, (a & low) * (b >> half)
    return (a >> half) * (b >> half) + (one >> half) + ((one & low) + other >> half)


def shifted(left: bool, a: Array, by: Array) -> Array:
    """A shift, of which all bits from the number's size on are the same."""
    most = 8 * a.dtype.itemsize - (a.dtype.kind == "i")
    by = np.minimum(by, WORD.type(most)).astype(a.dtype)
    return a << by if left else a >> by


def inserted(a: Array, b: Array, at: Array, size: Array) -> Array:
    """The low bits of a, in b."""
    one = b.dtype.type(1)
    mask = ((one << size.astype(b.dtype)) - one) << at.astype(b.dtype)
    return (b & ~mask) | ((a << at.astype(b.dtype)) & mask)


def extracted(a: Array, at: Array, size: Array) -> Array:
    """Bits of an unsigned number."""
    if a.dtype.kind != "u":
        raise Refused("bfe of signed numbers")
    one = a.dtype.type(1)
    return (a >> at.astype(a.dtype)) & ((one << size.astype(a.dtype)) - one)


def permuted(a: Array, b: Array, selector: Array) -> Array:
    """Four bytes of two words, by the digits of a selector."""
    both, result = a.astype(LONG) | (b.astype(LONG) << LONG.type(32)), np.zeros(a.shape, LONG)
    for i in range(4):
        digit = (selector.astype(LONG) >> LONG.type(4 * i)) & LONG.type(15)
        if np.any(digit > 7):
            raise Refused("prmt with signs")
        result |= ((both >> digit * LONG.type(8)) & LONG.type(255)) << LONG.type(8 * i)
    return result.astype(WORD)


def funnel(left: bool, low: Array, high: Array, by: Array) -> Array:
    """A word of two that are shifted together."""
    both, by = (
        low.astype(LONG) | (high.astype(LONG) << LONG.type(32)),
        by.astype(LONG) & LONG.type(31),
    )
    return (both << by >> LONG.type(32) if left else both >> by).astype(WORD)


ROUNDINGS = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}


def converted(kind: Kind, rounding: Function | None, value: Array) -> Array:
    """A number of another kind: integers wrap, floats are kept within the range, and NaN is 0."""
    if rounding is not None:
        value = rounding(value)
    if value.dtype.kind == "f" and kind.kind in "iu":
        ends = np.iinfo(kind)
        inside = np.clip(np.nan_to_num(value), ends.min, np.nextafter(float(ends.max), 0.0))
        return np.where(value >= float(ends.max), kind.type(ends.max), inside.astype(kind))
    return value.astype(kind)


COMPARISONS: dict[str, Function] = {
    "eq": np.equal,
    "neu": np.not_equal,
    "ltu": lambda a, b: ~(a >= b),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "ne": lambda a, b: (a < b) | (a > b),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}

SAME_KIND: dict[str, tuple[int, Function]] = {
    "add": (2, np.add),
    "sub": (2, np.subtract),
    "neg": (1, np.negative),
    "abs": (1, np.abs),
    "and": (2, np.bitwise_and),
    "or": (2, np.bitwise_or),
    "xor": (2, np.bitwise_xor),
    "not": (1, np.bitwise_not),
    "min": (2, np.fmin),
    "max": (2, np.fmax),
    "mov": (1, np.array),
    "div": (2, quotient),
    "rem": (2, remainder),
    "fma": (3, fused),
    "prmt": (3, permuted),
    "sqrt": (1, np.sqrt),
    "rcp": (1, np.reciprocal),
}
"""Instructions whose operands and result are of one kind, with the number of operands."""

MODIFIERS = {"rn", "lo", "hi", "wide", "wrap", "l", "r"}


def operation(name: str, words: list[str]) -> tuple[Function, list[Kind], Kind]:
    """An instruction: the function, and the kinds of its operands and result.

    Raises:
        Refused: there is no function for it.
    """
    kinds = [KINDS[word] for word in words if word in KINDS]
    known = KINDS.keys() | MODIFIERS | {"setp": COMPARISONS, "cvt": ROUNDINGS}.get(name, {}).keys()
    if {*words} - known or not kinds:
        raise Refused("unknown instruction")
    kind = kinds[0]
    if name in SAME_KIND:
        count, function = SAME_KIND[name]
        return function, [kind] * count, kind
    if name == "setp" and words[0] in COMPARISONS and len(words) == 2:
        return (
            (np.not_equal if words[0] == "ne" and kind.kind != "f" else COMPARISONS[words[0]]),
            [kind] * 2,
            HOLDS,
        )
    if name == "cvt":
        rounding = next((ROUNDINGS[word] for word in words if word in ROUNDINGS), None)
        return partial(converted, kind, rounding), [kinds[1]], kind
    if name in ("mul", "mad"):
        result = wider(kind) if "wide" in words else kind
        product: Function = high_product if "hi" in words else partial(np.multiply, dtype=result)
        if name == "mul":
            return product, [kind] * 2, result
        return lambda a, b, c: product(a, b) + c, [kind, kind, result], result
    others: dict[str, tuple[Function, list[Kind], Kind]] = {
        "selp": (lambda a, b, holds: np.where(holds, a, b), [kind, kind, HOLDS], kind),
        "shl": (partial(shifted, True), [kind, WORD], kind),
        "shr": (partial(shifted, False), [kind, WORD], kind),
        "shf": (partial(funnel, words[0] == "l"), [WORD] * 3, WORD),
        "bfi": (inserted, [kind, kind, WORD, WORD], kind),
        "bfe": (extracted, [kind, WORD, WORD], kind),
        "popc": (lambda a: np.bitwise_count(a).astype(WORD), [kind], WORD),
    }
    if name not in others:
        raise Refused("unknown instruction")
    return others[name]
