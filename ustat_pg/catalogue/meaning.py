"""The meaning of a framework's options: the estimator they choose, its factor, and the options without
effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan, prod, sqrt

import numpy as np

from ..display.numbers import readable
from ..predictions import CountTable, count_table
from ..validation import InputError, integer, number, positive
from .framework import Framework, Row
from .options import Option, short_name
from .records import Aggregation, bare, catalogue
from .unread import OFF, is_off

_FACTORS: dict[str, Callable[[int], float]] = {
    "1": lambda size: 1.0,
    "1/G": lambda size: 1 / size,
    "G/(G-1)": lambda size: size / max(size - 1, 1),
    "1/sqrt(G)": lambda size: 1 / sqrt(size),
}
"""The constants that may multiply an estimator, as functions of the group size."""

_KEPT = "its reward"
"""The start of the row's text if a group of one keeps its reward as advantage."""


@dataclass(frozen=True)
class Penalty:
    """A KL term that is switched on.

    Arguments:
        option: option that switches it on.
        form: the estimate, such as ``k3``; followed by ``×`` or ``+`` if the gradient of its ratio is kept.
        coefficient: its factor; NaN if no option of the catalogue gives it.
    """

    option: Option
    form: str
    coefficient: float


@dataclass(frozen=True)
class Meaning:
    """The meaning of a framework's options.

    Arguments:
        framework, row: its entries in the catalogue.
        values: values of all options, by name.
        given: names of the options that were written.
        group_size: G; None if neither the options nor a default give it.
        aggregation: how the loss adds up tokens and outputs.
        passed_over: names that were written and are not options of the catalogue.
        may_change: those of them that may change the objective.
        releases: sentences on the release that has these defaults, if a release is named.
        said: sentences on options that are defaults of a script's own options.
        also: sentences on the other commands of its script.
        place: the script, the line and the program, if a command of a script has these options.
    """

    framework: Framework
    row: Row
    values: Mapping[str, str]
    given: tuple[str, ...]
    group_size: int | None
    aggregation: Aggregation
    passed_over: tuple[str, ...] = ()
    may_change: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    place: str = ""

    def same(self, other: Meaning) -> bool:
        """Whether all options have the same values as in another meaning."""
        return (self.framework.title, self.values) == (other.framework.title, other.values)

    @property
    def written(self) -> str:
        """The options that were written."""
        return " ".join(map(self._typed, self.given))

    def _typed(self, name: str) -> str:
        """An option with its value, as a user types it."""
        return f"{short_name(name)}={self.values[name]}"

    def _on(self, kind: str) -> list[Option]:
        """The options that act on one thing, are switched on and have what they need."""
        options = self.framework.of_kind(kind)
        return [each for each in options if not self._is_off(each.name) and not self._lacks(each)]

    def _is_off(self, name: str) -> bool:
        """Whether the value of an option switches it off, such as 0."""
        return is_off(self.values[name])

    def _lacks(self, option: Option) -> str:
        """The other option, with its value, for which an option is off; empty if there is none."""
        for name, allowed in option.needs.items():
            if self.values[name] not in allowed:
                return f"{short_name(name)} is {self.values[name]}"
        if option.times and self._is_off(option.times):
            return f"{short_name(option.times)} is {self.values[option.times]}"
        if option.kind == "KL form" and not option.needs:
            return self._without_a_kl(option)
        return ""

    def _without_a_kl(self, option: Option) -> str:
        """The reason why a form of the KL is off: no KL term that it belongs to is on."""
        served = [
            each
            for each in self.framework.of_kind("KL")
            if option.name in (each.form, each.corrected.rpartition("=")[0])
        ]
        own = {each.name: f"{short_name(each.name)} is {self.values[each.name]}" for each in served}
        off = (own[each.name] if self._is_off(each.name) else self._lacks(each) for each in served)
        reasons = [*filter(None, off)]
        return " and ".join(dict.fromkeys(reasons)) if len(reasons) == len(served) else ""

    @property
    def off(self) -> dict[str, str]:
        """The options that were written and do not act, with the option that switches each of them off."""
        on = (name for name in self.given if not self._is_off(name))
        found = ((name, self._lacks(self.framework.options[name])) for name in on)
        return {self._typed(name): reason for name, reason in found if reason}

    @property
    def notes(self) -> list[str]:
        """The framework's notes, without those that begin with an option that is off."""
        options = {short_name(option.name): option for option in self.framework.options.values()}
        heads = {note: options.get(re.split(r"[=\s]", note)[0]) for note in self.framework.notes}
        return [note for note, option in heads.items() if option is None or not self._lacks(option)]

    @property
    def estimator(self) -> str | None:
        """The name of this library's estimator; None if the library has no such estimator, or G is not known.

        In a group of one that keeps its reward there is no baseline, even if larger groups have one.
        """
        name = self.row.estimator
        if name is not None and self.group_size == 1 and self.row.one_output.startswith(_KEPT):
            return "vanilla"
        if name is None or ("{G}" in name and self.group_size is None):
            return None
        name = name.replace("{G}", str(self.group_size))
        if self.group_size in (None, 1) or not (self.row.dropped or self.clip or self.balance):
            return name
        table = count_table(name, integer("group size", self.group_size))
        left = np.ones(table.group_size + 1)
        if self.row.dropped:
            left[[1, -2]] = 0.0
        most = self.clip or np.inf
        whole = np.array([table.successes, table.failures])
        cut = np.clip(left * whole, -most, most)
        cut *= np.where(cut > 0, 1 + min(self.balance, 0), 1 - max(self.balance, 0))
        cut += 0.0
        return name if np.array_equal(cut, whole) else CountTable(*cut).estimator

    @property
    def clip(self) -> float | None:
        """The size at which advantages are clipped; None if they are not clipped."""
        for option in self._on("clip"):
            return positive(option.name, float(self.values[option.name]))
        return None

    @property
    def balance(self) -> float:
        """The share by which advantages below 0 are shortened; if it is negative, those above 0."""
        for option in self._on("balance"):
            return number(option.name, float(self.values[option.name]), minimum=-1, maximum=1)
        return 0.0

    @property
    def factor(self) -> float:
        """The constant that multiplies that estimator."""
        return _FACTORS[self.row.factor](self.group_size or 1)

    @property
    def cap(self) -> tuple[str, float] | None:
        """The option that caps the ratio below 1, and the cap, which multiplies the step at ratio 1."""
        for option in self.framework.options.values():
            for name in (option.caps or {}).get(self.values[option.name], ()):
                if self.values[name] != "none":
                    cap = float(self.values[name])
                    return (name, cap) if cap < 1 else None
        return None

    @property
    def scale(self) -> float | None:
        """The factor of the gradient in the loss; None if it depends on lengths or the batch."""
        scale = self.aggregation.scale
        return self.constant if scale == "1/length" else None if scale is None else float(scale)

    @property
    def constant(self) -> float | None:
        """One over the length that divides the loss; None if no option gives it."""
        adding = [self.values[option.name] for option in self.framework.of_kind("aggregation")]
        lengths = [self.values[option.name] for option in self.framework.of_kind("length")]
        for text in (*adding, *lengths):
            try:
                return 1 / positive("the constant of the loss", float(text))
            except ValueError as error:
                if isinstance(error, InputError):
                    raise
        return None

    @property
    def steps(self) -> float:
        """The number of optimizer steps on the same outputs, as far as the options give it."""
        factors = (self._product(group) for group in self.framework.steps)
        return prod(1.0 if factor is None else factor for factor in factors)

    @property
    def passes(self) -> float:
        """The number of passes over the same outputs: how often each output is used."""
        options = self.framework.of_kind("passes")
        return prod(self._product([option.name]) or 1.0 for option in options)

    def _product(self, names: Sequence[str]) -> float | None:
        """The product of options' values; a ``/`` before a name divides. It is None if a value is not known,
        unless a ``?`` allows to skip it.
        """
        values = {name: self.values[bare(name)] for name in names}
        known = {name: text for name, text in values.items() if text not in ("none", "0")}
        if any(not name.endswith("?") for name in values.keys() - known.keys()):
            return None
        numbers = {name: positive(bare(name), float(text)) for name, text in known.items()}
        return prod(1 / n if name.startswith("/") else n for name, n in numbers.items())

    @property
    def outputs(self) -> float | None:
        """K, the outputs of one optimizer step; None if the options do not give it."""
        return self._product(self.framework.outputs) if self.framework.outputs else None

    def step(self) -> list[str]:
        """A sentence on the outputs and groups of one optimizer step, as far as the options give them."""
        names = [*map(bare, self.framework.outputs)]
        unknown = [name for name in names if self.values[name] in ("none", "0")]
        if not names or (unknown and not set(names) & set(self.given)):
            return []
        product = " ".join(
            ("" if place == 0 else "/ " if each.startswith("/") else "× ")
            + (short_name(name) if name in unknown else self._typed(name))
            for place, (each, name) in enumerate(zip(self.framework.outputs, names, strict=True))
        )
        if unknown:
            asked = ", ".join(f"{short_name(name)}=N" for name in unknown)
            return [
                f"One optimizer step has K = {product} outputs: to get the number, write {asked}."
            ]
        size = self.group_size
        outputs = self.outputs or 0.0
        groups = f", B = {readable(outputs / size, 6)} groups of {size}" if size and outputs else ""
        return [f"One optimizer step has K = {readable(outputs, 6)} outputs{groups} ({product})."]

    def reused(self) -> list[str]:
        """A sentence for the case of several steps on the same outputs."""
        if self.steps <= 1:
            return []
        known = (group for group in self.framework.steps if self._product(group) is not None)
        written = dict.fromkeys(bare(name) for group in known for name in group)
        words = ", ".join(self._typed(name) for name in written if self.values[name] != "none")
        clips = [self._typed(option.name) for option in self._on("ratio")]
        return [
            f"The options take {readable(self.steps, 4)} optimizer steps on the same outputs ({words}). "
            f"All numbers here hold for the first of these. From the second on, the ratio to the "
            f"policy that sampled is not 1, and "
            + (
                f"{', '.join(clips)} clip or reweight it."
                if clips
                else "the loss clips or reweights it."
            )
        ]

    def unchanged(self) -> dict[str, list[str]]:
        """The options that do not change the mean gradient, by reason."""
        groups: dict[str, list[str]] = {}
        reasons = {"not read by this formula": self._ignored()}
        # Dropping groups changes nothing only if these groups have advantages 0.
        silent = self.row.equal_rewards.startswith("0")
        dropping = ["filter", "filter without refill"] * silent
        for kind in ["ratio"] * (self.steps <= 1) + dropping:
            names = [option.name for option in self.framework.of_kind(kind)]
            reasons[catalogue().kinds[kind]] = names
        capping, off = self.cap[0] if self.cap else None, self.off
        for reason, names in reasons.items():
            there = [name for name in names if not self.framework.options[name].lacking]
            if kept := [short_name(n) for n in there if n != capping and self._typed(n) not in off]:
                groups[reason] = kept
        return groups

    def _ignored(self) -> list[str]:
        """The options of the advantage for which every other value means the same."""
        names = []
        for option in self.framework.of_kind("advantage"):
            others = [self.framework.row({**self.values, option.name: v}) for v in option.values]
            meanings = {(row.estimator, row.factor, row.dropped) for row in (self.row, *others)}
            if self.row.estimator and len(meanings) == 1:
                names.append(option.name)
        return names

    def cut(self) -> list[str]:
        """The options that clip the norm of a step, with their values."""
        return [self._typed(option.name) for option in self._on("norm")]

    def sampled(self) -> list[str]:
        """The options that correct for differences between trainer and sampling engine, with their values."""
        options = [each for each in self.framework.of_kind("sampler") if not self._lacks(each)]
        off = (each for each in options[1:] if each.switch or each.default in OFF)
        switched = (not self._is_off(each.name) for each in off)
        if not options or (self._is_off(options[0].name) and not any(switched)):
            return []
        return [self._typed(option.name) for option in options]

    def acting(self) -> dict[str, list[str]]:
        """The chosen options that act on outputs, groups, tokens or rewards, by effect."""
        found: dict[str, list[str]] = {}
        for kind in (
            "survival",
            "filter",
            "filter without refill",
            "entropy",
            "reward",
            "imitation",
            "balance",
        ):
            for option in self._on(kind):
                if kind.startswith("filter") or self.values[option.name] != option.default:
                    found.setdefault(catalogue().kinds[kind], []).append(self._typed(option.name))
        for kind, names in self.drawn().items():
            found[catalogue().kinds[kind]] = names
        return found

    def drawn(self) -> dict[str, list[str]]:
        """The options that change the distribution of the sampled outputs: under ``policy`` if they also
        change the trained log-probability, else under ``sampling``.
        """
        found: dict[str, list[str]] = {}
        for option in (*self.framework.of_kind("policy"), *self.framework.of_kind("sampling")):
            value = self.values[option.name]
            if value == "none" or float(value) in option.neutral or self._lacks(option):
                continue
            scored = self.values[option.scored] if option.scored else "nan"
            # It is none if it was written as a reference to the other.
            alike = scored == "none" or float(scored) == float(value)
            found.setdefault("policy" if alike else option.kind, []).append(
                self._typed(option.name)
            )
        return found

    def beside(self, *, defaults: bool = True) -> list[str]:
        """Sentences on options that act on tokens, outputs, rewards or the whole step, but not on the
        advantage.

        Without ``defaults``, options that clip a step or correct for the sampler appear only if they were
        written.
        """
        says = catalogue().kinds
        silent = self.unchanged()
        found: dict[str, list[str]] = {}
        for option in self._other_losses():
            reason = option.says.get(self.values[option.name], says["loss"])
            found.setdefault(reason, []).append(self._typed(option.name))
        found |= {reason: names for reason, names in self.acting().items() if reason not in silent}
        written = {*map(self._typed, self.given)}
        for kind, names in (("norm", self.cut()), ("sampler", self.sampled())):
            if defaults or written & {*names}:
                found[says[kind]] = names
        return [f"{', '.join(names)}: {reason}." for reason, names in found.items() if names]

    def another_loss(self) -> list[str]:
        """The options that choose a loss other than the default."""
        return [self._typed(option.name) for option in self._other_losses()]

    def _other_losses(self) -> list[Option]:
        options = self.framework.of_kind("loss")
        return [option for option in options if self.values[option.name] != option.default]

    def acting_penalties(self) -> list[Penalty]:
        """The KL terms that are on."""
        return [
            Penalty(option, self._form(option), self._coefficient(option))
            for option in self._on("KL")
        ]

    def in_place(self, where: str) -> list[Penalty]:
        """The KL terms in the ``loss`` or in the ``reward`` that are on and whose gradient is recorded."""
        return [each for each in self.acting_penalties() if each.option.where == where]

    def _form(self, option: Option) -> str:
        """The estimate of a KL term, followed by a sign if its ratio's gradient is kept."""
        form = self.values.get(option.form, option.form)
        name, _, kept = option.corrected.rpartition("=")
        if kept and self.values.get(name, name) == "true":
            form = form.rstrip("+") + kept
        return form if option.where == "loss" else form.rstrip("+")

    def _coefficient(self, option: Option) -> float:
        """The factor of a KL term; NaN if no option of the catalogue gives it."""
        try:
            return float(self.values[option.times or option.name])
        except ValueError:
            return nan

    def penalties(self) -> list[str]:
        """The KL terms that are on, their places and their gradients; empty if no option exists."""
        lines = [
            f"{self._typed(each.option.name)}: {each.option.place}{self._divergence(each)}"
            for each in self.acting_penalties()
        ]
        return lines or ["none, it is switched off"] * bool(self.framework.of_kind("KL"))

    def _divergence(self, penalty: Penalty) -> str:
        """The gradient of a KL term, and its effect in silent groups, in words."""
        option, form = penalty.option, penalty.form
        if not option.where:
            return ""
        words = f" ({form}): {catalogue().divergences[option.where][form]}"
        if option.adds_up:
            words += f", added up in its own way: {catalogue().aggregations[option.adds_up].title}"
        if option.summed and self.row.ddof is not None:
            words += (
                ". It enters an output's reward before the division by the group's deviation: a "
                "group of equal rewards is then not silent. Its advantages have size 1 and come "
                "from the KL alone, for any coefficient"
            )
        return words
