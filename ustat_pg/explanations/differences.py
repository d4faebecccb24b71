"""Differences between the effects of two specifications, however they are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ..catalogue import Meaning
from ..display.numbers import readable
from ..display.shown import Shown
from ..validation import InputError
from .explanation import Explanation, passed
from .text import Part, fitted

_RATES = (0.05, 0.5, 0.95)
"""Pass rates at which w is compared."""


@dataclass(frozen=True)
class Differences(Shown):
    """The differences between two explanations of frameworks' options.

    Arguments:
        one, other: explanations of options at the same pass rates.

    >>> from ustat_pg import explain
    >>> one, other = explain("verl adv_estimator=rloo rollout.n=4"), explain("trl num_generations=4")
    >>> [*Differences(one, other).rows][:2]
    ['estimator', 'climbs']
    """

    one: Explanation
    other: Explanation

    def __post_init__(self) -> None:
        if self.one.meaning is None or self.other.meaning is None:
            raise InputError(
                "differences compare the options of two trainers, and an estimator's name has no options"
            )

    @property
    def rows(self) -> dict[str, tuple[str, str]]:
        """The differences by name, each with the words of both explanations."""
        mine, theirs = dict(_effects(self.one)), dict(_effects(self.other))
        return {
            what: (mine.get(what, "not said"), theirs.get(what, "not said"))
            for what in dict.fromkeys((*mine, *theirs))
            if mine.get(what) != theirs.get(what)
        }

    def to_dict(self) -> dict[str, dict[str, str]]:
        """The differences as a dict for JSON."""
        return {what: {"A": first, "B": second} for what, (first, second) in self.rows.items()}

    def __str__(self) -> str:
        return self.text()

    def text(self, *, all: bool = False) -> str:
        """The differences for readers.

        Arguments:
            all: whether nothing is left out; otherwise there are at most 40 lines.
        """
        meanings = [each.meaning for each in (self.one, self.other) if each.meaning is not None]
        one, other = (f"{each.framework.title} {each.written}".rstrip() for each in meanings)
        heading = [f"A is {one}", f"B is {other}"]
        if not self.rows:
            heading = [f"{one} and {other} have the same effect, as far as the catalogue knows."]
        effects = [
            f"  {what}\n    A: {first}\n    B: {second}"
            for what, (first, second) in self.rows.items()
        ]
        parts = [
            Part("", heading, needed=True),
            Part("Effects that differ:", effects, "effects that differ", brief=True),
            Part("", [*chain(*map(passed, meanings))], "names that are not read", brief=True),
        ]
        return fitted(parts, all)


def _effects(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """The effects of options, in words and numbers; equal effects have equal words and numbers."""
    meaning, family = explanation.meaning, explanation.family
    assert meaning is not None
    yield "group size", f"G = {explanation.group_size}"
    yield "estimator", family.title
    yield "climbs", family.climbs
    if explanation.weight is not None:
        known = explanation.weight["pass_rate"], explanation.weight["w"]
        weights = ", ".join(f"{readable(np.interp(p, *known))} at p = {p:g}" for p in _RATES)
        yield "w(p)", weights
        yield (
            "noise over signal",
            f"{readable(explanation.noise_to_rloo or np.nan, 4)} times RLOO's",
        )
    yield "silent groups", f"{explanation.frac_reward_zero_std:.1%} here. {family.silent}"
    yield from _rest(meaning)


def _rest(meaning: Meaning) -> Iterator[tuple[str, str]]:
    aggregation, scale = meaning.aggregation, meaning.scale
    yield "loss", aggregation.title + ("" if scale is None else f", times {readable(scale, 4)}")
    if meaning.clip:
        yield "advantages", f"clipped at ±{meaning.clip:g}"
    if meaning.cap:
        yield "ratio", "capped at {1:g}, by {0}".format(*meaning.cap)
    if (outputs := meaning.outputs) is not None:
        yield "outputs of a step", f"{outputs:g}"
    yield "steps on outputs of one sampling", readable(meaning.steps, 4)
    yield "KL", "; ".join(meaning.penalties()) or "none"
    yield "another loss", ", ".join(meaning.another_loss()) or "none"
    yield "the sampler's ratio", ", ".join(meaning.sampled()) or "none"
    yield "what else acts", ", ".join(chain(*meaning.acting().values())) or "nothing"
