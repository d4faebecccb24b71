"""The options of a framework, and the reading of their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isnan, nan
from typing import Any

from attrs import converters, evolve, field, frozen

from ..validation import InputError, integer, nearest

LOSS = (
    *("aggregation", "length", "loss", "ratio", "KL", "KL form", "filter", "filter without refill"),
    *("survival", "entropy", "sampler", "imitation"),
)
"""The kinds of options that act on the loss, its KL terms and the rollouts in it."""


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
        name: full name with its sections, ``algorithm.adv_estimator``.
        kind: a key of the catalogue's kinds, which says what it acts on.
        default: default as text; None if a value must be given.
        beside: its default if another option of its section is given, if that differs.
        by: its default for given values of another option, by that option's name.
        values: the allowed values; empty for a number.
        unrun: further values, for which the code was only read.
        only_read: for an option of the loss, the values for which the loss was only read; ``all`` for every
            value.
        aliases: older names.
        synonyms: other spellings of its values.
        means: the aggregation for each value, or for each other loss that adds up in its own way.
        otherwise: the aggregation for a number.
        place: where a KL term enters, in words.
        where: ``loss`` or ``reward``, if that determines its gradient.
        form: the estimate, k1 to k3 or abs, or the option that chooses it.
        adds_up: the aggregation of a KL term, if it differs from that of the loss.
        corrected: the option that keeps the gradient of its ratio, written ``NAME=×``, or ``NAME=+`` if the
            gradient is replaced by that of k2.
        needs: values of other options that it needs to be on.
        times: the option that multiplies it; 0 switches it off.
        summed: whether it is subtracted from the reward before the group's statistics are computed.
        caps: by value, the options that cap the ratio from above; the first one that is set applies.
        refused: values without a group baseline, and what they do.
        several: whether its value is a list of numbers.
        presence: whether it only matters that the option is given.
        neutral: values that do not change the sampled distribution; the value none does not either.
        scored: the option that changes the trained log-probability in the same way if it has the same value.
        says: for an option of the loss, what a value does in the first step, if that differs from its kind.
        lacking: the error message for a release without this option; the default is then that release's
            behaviour.
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
    says: Mapping[str, str] = field(factory=dict)
    lacking: str = ""

    @property
    def of_loss(self) -> bool:
        """Whether it acts on the loss, its KL terms or the rollouts in it."""
        return self.kind in LOSS

    @property
    def ran(self) -> tuple[str, ...]:
        """The values with which the framework's own loss was run; ``number`` means any number."""
        known = self.values or tuple(self.means or ())
        known += ("number",) * (not known or bool(self.otherwise))
        return () if "all" in self.only_read else tuple(v for v in known if v not in self.only_read)

    @property
    def possible(self) -> set[str]:
        """The allowed values; empty for a number."""
        return {*self.values, *self.unrun, *(self.means or ())}

    def gone(self, title: str) -> Option:
        """The option for a release, called ``title``, that does not have it."""
        only = [self.default] if self.values else ()
        return evolve(self, values=only, lacking=f"{title} has no {short_name(self.name)}")

    def without(self, value: str, title: str) -> Option:
        """The option for a release, called ``title``, that lacks one of its values."""
        return evolve(
            self,
            values=[kept for kept in self.values if kept != value],
            means=self.means and {kept: self.means[kept] for kept in self.means if kept != value},
            refused={**self.refused, value: f"{title} has no such value"},
        )

    def unsaid(self, given: Mapping[str, str]) -> str:
        """Its value if only these options are given."""
        for name, defaults in self.by.items():
            if given.get(name) in defaults:
                return as_text(defaults[given[name]])
        section = self.name.rpartition(".")[0]
        if self.beside and any(name.rpartition(".")[0] == section for name in given):
            return self.beside
        return self.default or "none"

    @property
    def switch(self) -> bool:
        """Whether it is switched on if it is named without a value."""
        return {*(self.values or self.means or ()), *self.refused} == {"true", "false"}

    def refusal(self, text: str) -> str:
        """What a value without a group baseline does; empty for other values."""
        return self.refused.get(self._word(text), "")

    def _word(self, text: str) -> str:
        value = (self.synonyms or {}).get(text.lower(), text.lower())
        value = "none" if value in ("null", "~", "") else value
        given = self.presence and value not in ("none", "false", *self.values, *self.refused)
        return "given" if given else value

    def read(self, text: str) -> str:
        """The value that a text means."""
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
            _number(self.name, value)
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
    """The last part of a name, with the part before it if the last is one letter: ``rollout.n``."""
    parts = name.split(".")
    return ".".join(parts[-2:]) if len(parts[-1]) < 2 or parts[-1] in _VAGUE else parts[-1]


_VAGUE = (
    *("name", "enable", "estimator", "mean_level", "std_level", "mean_leave1out"),
    *("std_unbiased", "batch_size", "init_coef", "type", "path", "enabled"),
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "backend"),
)
"""Last parts of names that are not clear without the part before them."""


def _whole(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text
