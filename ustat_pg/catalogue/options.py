"""Options of a framework, and how a value of one is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isnan, nan
from typing import Any

from attrs import converters, evolve, field, frozen

from ..validation import InputError, integer, nearest

LOSS = (
    *("aggregation", "length", "loss", "ratio", "KL", "KL form", "filter", "filter without refill"),
    *("survival", "entropy", "sampler"),
)
"""The kinds of options on the loss, its KL terms and the rollouts that enter it."""


def as_text(value: Any) -> str:
    """A value as a user types it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def texts(values: Any) -> tuple[str, ...]:
    """One value or several, as a user types them."""
    return tuple(map(as_text, values if isinstance(values, list | tuple) else [values]))


def texts_by_name(when: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
    """Values by option, as a user types them."""
    return {option: texts(values) for option, values in when.items()}


@frozen
class Option:
    """An option of a framework.

    Arguments:
        name: with the sections that it stands in, ``algorithm.adv_estimator``.
        kind: what it acts on, a key of the catalogue's kinds.
        default: as text; None where it must be given.
        beside: its default where another option of its section is given, if that differs.
        by: its default under values of another option that are given, by that option's name.
        values: those that it may have; none for a number.
        unrun: further ones, whose code was only read.
        only_read: of one on the loss, the values whose loss was only read and not run; ``all`` for every one.
        aliases: older names.
        synonyms: other ways to write a value.
        means: the aggregation of each value, or of those of another loss that add up in a way of their own.
        otherwise: the aggregation of a number.
        place: where a KL term goes.
        where: ``loss`` or ``reward``, where that says whose gradient it is.
        form: which estimate it is, k1 to k3 or abs, or the option that says so.
        adds_up: the aggregation of a KL term, where that is not the one of the loss.
        corrected: the option that keeps the gradient of its ratio, and how that is written: ``NAME=×``, or
            ``NAME=+`` where k2's gradient is put in its place.
        needs: values of other options without which it is off.
        times: the option that multiplies it: at 0 it is off.
        summed: whether it is taken off the reward before the group's statistics.
        caps: the options that cap the ratio from above under a value; the first that is set holds.
        refused: values that are no baseline of a group, and what they are.
        several: whether it is a list of numbers.
        presence: whether all that counts is that it is given.
        neutral: numbers at which it leaves the sampled distribution as it is; none does too.
        scored: the option that, where it has the same value, changes the trained log-probability alike.
        lacking: the sentence that refuses it where a release has no such option; its default is then what
            that release did.
    """

    name: str
    kind: str
    default: str | None = field(default=None, converter=converters.optional(as_text))
    values: tuple[str, ...] = field(default=(), converter=texts)
    unrun: tuple[str, ...] = field(default=(), converter=texts)
    only_read: tuple[str, ...] = field(default=(), converter=texts)
    aliases: tuple[str, ...] = field(default=(), converter=texts)
    synonyms: Mapping[str, str] | None = None
    means: Mapping[str, str] | None = None
    otherwise: str | None = None
    place: str = ""
    where: str = ""
    form: str = ""
    adds_up: str = ""
    corrected: str = ""
    needs: Mapping[str, tuple[str, ...]] = field(factory=dict, converter=texts_by_name)
    times: str = ""
    summed: bool = False
    caps: Mapping[str, list[str]] | None = None
    beside: str | None = None
    by: Mapping[str, Mapping[str, str]] = field(factory=dict)
    refused: Mapping[str, str] = field(factory=dict)
    several: bool = False
    presence: bool = False
    neutral: tuple[float, ...] = field(default=(), converter=tuple)
    scored: str = ""
    lacking: str = ""

    @property
    def of_loss(self) -> bool:
        """Whether it acts on the loss, its KL terms or the rollouts that enter it."""
        return self.kind in LOSS

    @property
    def ran(self) -> tuple[str, ...]:
        """The values with which the framework's own loss was run, ``number`` standing for numbers."""
        known = self.values or tuple(self.means or ())
        known += ("number",) * (not known or bool(self.otherwise))
        return () if "all" in self.only_read else tuple(v for v in known if v not in self.only_read)

    @property
    def possible(self) -> set[str]:
        """The values that it may have; none for a number."""
        return {*self.values, *self.unrun, *(self.means or ())}

    def gone(self, title: str) -> Option:
        """The option in a release, called ``title``, that has no such option."""
        only = [self.default] if self.values else ()
        return evolve(self, values=only, lacking=f"{title} has no {short_name(self.name)}")

    def without(self, value: str, title: str) -> Option:
        """The option in a release, called ``title``, that lacks a value."""
        return evolve(
            self,
            values=[kept for kept in self.values if kept != value],
            means=self.means and {kept: self.means[kept] for kept in self.means if kept != value},
            refused={**self.refused, value: f"{title} has no such value"},
        )

    def unsaid(self, given: Mapping[str, str]) -> str:
        """Its value where only these options are given."""
        for name, defaults in self.by.items():
            if given.get(name) in defaults:
                return as_text(defaults[given[name]])
        section = self.name.rpartition(".")[0]
        if self.beside and any(name.rpartition(".")[0] == section for name in given):
            return self.beside
        return self.default or "none"

    @property
    def switch(self) -> bool:
        """Whether naming it alone switches it on."""
        return set(self.values or self.means or ()) == {"true", "false"}

    def refuses(self, text: str) -> bool:
        """Whether a text is a value that is not a baseline of a group."""
        return self._word(text) in self.refused

    def _word(self, text: str) -> str:
        value = (self.synonyms or {}).get(text.lower(), text.lower())
        value = "none" if value in ("null", "~", "") else value
        given = self.presence and value not in ("none", "false", *self.values, *self.refused)
        return "given" if given else value

    def read(self, text: str) -> str:
        """The value that a text stands for."""
        if self.lacking:
            raise InputError(self.lacking)
        value = self._word(text)
        if value in self.refused:
            raise InputError(f"{self.name} is {text!r}: {self.refused[value]}")
        if self.presence:
            return value
        if self.several and value != "none":
            return str(
                [_number(self.name, part) for part in re.split(r"[\s,]+", value.strip("[]() "))]
            )
        allowed = (*self.values, *self.unrun) or tuple(self.means or ())
        if value in allowed:
            return value
        if allowed and not self.otherwise:
            raise InputError(
                f"{self.name} is {text!r}: the nearest value is "
                f"{nearest(value, allowed, cutoff=0.0)[0]!r} of {', '.join(allowed)}"
            )
        if self.kind == "group size":
            return str(integer(self.name, _whole(text)))
        if value != "none":
            _number(self.name, text)
        return value


def _number(name: str, text: str) -> float:
    """The number of a text."""
    try:
        value = float(text)
    except ValueError:
        value = nan
    if isnan(value):
        raise InputError(f"{name} is {text!r}: it must be a number")
    return value


def short_name(name: str) -> str:
    """The last part of a name, and the one before where the last is a letter: ``rollout.n``."""
    parts = name.split(".")
    return ".".join(parts[-2:]) if len(parts[-1]) < 2 or parts[-1] in _VAGUE else parts[-1]


_VAGUE = (
    *("name", "enable", "estimator", "mean_level", "std_level", "mean_leave1out"),
    *("std_unbiased", "batch_size", "init_coef", "type", "path", "enabled"),
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
)
"""Last parts of names that say nothing without the part before them."""


def _whole(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text
