"""What differs between two specifications in effect, not in words: ``ustat-pg explain A --against B``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from ..catalogue import Meaning
from .explanation import Explanation

_RATES = (0.05, 0.5, 0.95)
"""Pass rates at which w is compared."""


def differences(one: Explanation, other: Explanation) -> list[tuple[str, str, str]]:
    """What two explanations of frameworks' options differ in, as (what, of the one, of the other).

    Arguments:
        one, other: of options, at the same pass rates.

    >>> from ustat_pg import explain
    >>> rows = differences(explain("verl adv_estimator=rloo rollout.n=4"), explain("trl num_generations=4"))
    >>> [what for what, *_ in rows][:2]
    ['estimator', 'climbs']
    """
    mine, theirs = dict(_effects(one)), dict(_effects(other))
    return [
        (what, mine.get(what, "not said"), theirs.get(what, "not said"))
        for what in dict.fromkeys((*mine, *theirs))
        if mine.get(what) != theirs.get(what)
    ]


def _effects(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """What options do, in words and numbers that are alike where the effect is."""
    meaning, family = explanation.meaning, explanation.family
    assert meaning is not None
    yield "group size", f"G = {explanation.group_size}"
    yield "estimator", family.title
    yield "climbs", family.climbs
    if explanation.weight is not None:
        known = explanation.weight["pass_rate"], explanation.weight["w"]
        weights = ", ".join(f"{np.interp(p, *known):.3g} at p = {p:g}" for p in _RATES)
        yield "w(p)", weights
        yield "noise over signal", f"{explanation.noise_to_rloo or np.nan:.4g} times RLOO's"
    yield "silent groups", f"{explanation.silent_share:.1%} here; {family.silent}"
    yield from _rest(meaning)


def _rest(meaning: Meaning) -> Iterator[tuple[str, str]]:
    aggregation, scale = meaning.aggregation, meaning.scale
    yield "loss", aggregation.title + ("" if scale is None else f", times {scale:.4g}")
    if meaning.clip:
        yield "advantages", f"cut off at ±{meaning.clip:g}"
    if meaning.cap:
        yield "ratio", "capped at {1:g}, by {0}".format(*meaning.cap)
    if (outputs := meaning.outputs) is not None:
        yield "outputs of a step", f"{outputs:g}"
    yield "steps on outputs of one sampling", f"{meaning.steps:.4g}"
    yield "KL", "; ".join(meaning.penalties()) or "none"
    yield "another loss", ", ".join(meaning.another_loss()) or "none"
    yield "the sampler's ratio", ", ".join(meaning.sampled()) or "none"
    yield "what else acts", ", ".join(chain(*meaning.acting().values())) or "nothing"


def lines(one: Explanation, other: Explanation) -> list[str]:
    """The differences for a person."""
    assert one.meaning is not None
    assert other.meaning is not None
    names = [
        f"{each.framework.title} {each.written}".rstrip() for each in (one.meaning, other.meaning)
    ]
    rows = differences(one, other)
    if not rows:
        return [f"{names[0]} and {names[1]}: the same in effect, as far as the catalogue knows."]
    shown = [f"A is {names[0]}", f"B is {names[1]}", "", "What differs in effect:"]
    for what, first, second in rows:
        shown += [f"  {what}", f"    A: {first}", f"    B: {second}"]
    return shown


def as_json(one: Explanation, other: Explanation) -> dict[str, Any]:
    """The differences as one JSON object has them."""
    return {what: {"A": first, "B": second} for what, first, second in differences(one, other)}
