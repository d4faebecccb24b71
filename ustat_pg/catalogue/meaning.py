"""The meaning of a framework's options: the estimator they choose, its factor, and what changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan, prod, sqrt

import numpy as np

from ..predictions import CountTable, count_table
from ..validation import InputError, integer, positive
from .framework import Framework, Row
from .options import Option, short_name
from .records import Aggregation, bare, catalogue

_FACTORS: dict[str, Callable[[int], float]] = {
    "1": lambda size: 1.0,
    "1/G": lambda size: 1 / size,
    "G/(G-1)": lambda size: size / max(size - 1, 1),
    "1/sqrt(G)": lambda size: 1 / sqrt(size),
}
"""The constants that may multiply an estimator, by the group size."""

_OFF = ("none", "false")
"""Words that switch an option off, as 0 does."""

_KEPT = "its reward"
"""How the advantage of a group of one begins, where it is the reward itself."""


@dataclass(frozen=True)
class Penalty:
    """A KL term that is on.

    Arguments:
        option: the one that switches it on.
        form: which estimate it is, ``k3`` for example, and ``×`` or ``+`` behind it where the gradient of
            its ratio is kept.
        coefficient: what multiplies it; NaN where no option of the catalogue says.
    """

    option: Option
    form: str
    coefficient: float


@dataclass(frozen=True)
class Meaning:
    """The meaning of a framework's options.

    Arguments:
        framework, row: where it stands in the catalogue.
        values: of all options, by name.
        given: the names of those that were written.
        group_size: G; None where neither the options nor a default say.
        aggregation: how the loss adds up.
        passed_over: names that were written and are no option of the catalogue.
        releases: sentences on the release whose defaults these are, where one is named.
    """

    framework: Framework
    row: Row
    values: Mapping[str, str]
    given: tuple[str, ...]
    group_size: int | None
    aggregation: Aggregation
    passed_over: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()

    @property
    def written(self) -> str:
        """The options that were written."""
        return " ".join(map(self._typed, self.given))

    def _typed(self, name: str) -> str:
        """An option with its value, as it is typed."""
        return f"{short_name(name)}={self.values[name]}"

    def _on(self, kind: str) -> list[Option]:
        """The options that act on one thing and are switched on."""
        options = self.framework.of_kind(kind)
        return [option for option in options if not self._is_off(option.name)]

    def _is_off(self, name: str) -> bool:
        """Whether a value switches an option off: 0, however it is written."""
        value = self.values[name]
        return value in _OFF or bool(re.fullmatch(r"[+-]?0*\.?0+(e[+-]?\d+)?", value))

    @property
    def estimator(self) -> str | None:
        """The name of this library's estimator; None where it has none, or G is not known.

        A group of one that keeps its reward has no baseline, whatever larger groups have.
        """
        name = self.row.estimator
        if name is not None and self.group_size == 1 and self.row.one_output.startswith(_KEPT):
            return "vanilla"
        if name is None or ("{G}" in name and self.group_size is None):
            return None
        name = name.replace("{G}", str(self.group_size))
        if self.group_size in (None, 1) or not (self.row.dropped or self.clip):
            return name
        table = count_table(name, integer("group size", self.group_size))
        left = np.ones(table.group_size + 1)
        if self.row.dropped:
            left[[1, -2]] = 0.0
        most = self.clip or np.inf
        whole = np.array([table.successes, table.failures])
        cut = np.clip(left * whole, -most, most) + 0.0
        return name if np.array_equal(cut, whole) else CountTable(*cut).estimator

    @property
    def clip(self) -> float | None:
        """The size at which advantages are cut off; None where they are not."""
        for option in self._on("clip"):
            return positive(option.name, float(self.values[option.name]))
        return None

    @property
    def factor(self) -> float:
        """The constant that multiplies that estimator."""
        return _FACTORS[self.row.factor](self.group_size or 1)

    @property
    def cap(self) -> tuple[str, float] | None:
        """The option that caps the ratio below 1, and the cap, which is the step at ratio 1."""
        for option in self.framework.options.values():
            for name in (option.caps or {}).get(self.values[option.name], ()):
                if self.values[name] != "none":
                    cap = float(self.values[name])
                    return (name, cap) if cap < 1 else None
        return None

    @property
    def scale(self) -> float | None:
        """The factor of the gradient in the loss; None where lengths or a batch decide."""
        scale = self.aggregation.scale
        return self.constant if scale == "1/length" else None if scale is None else float(scale)

    @property
    def constant(self) -> float | None:
        """One over the length that a loss may be divided by; None where no option says."""
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
        """The optimizer steps that are taken on outputs of one sampling, as far as the options say."""
        factors = (self._product(group) for group in self.framework.steps)
        return prod(1.0 if factor is None else factor for factor in factors)

    def _product(self, names: Sequence[str]) -> float | None:
        """The values of options, those behind a ``/`` dividing; None where one is not known, unless a ``?``
        says that it may be left out.
        """
        values = {name: self.values[bare(name)] for name in names}
        known = {name: text for name, text in values.items() if text not in ("none", "0")}
        if any(not name.endswith("?") for name in values.keys() - known.keys()):
            return None
        numbers = {name: positive(bare(name), float(text)) for name, text in known.items()}
        return prod(1 / n if name.startswith("/") else n for name, n in numbers.items())

    @property
    def outputs(self) -> float | None:
        """K, the outputs of one optimizer step; None where the options do not say."""
        return self._product(self.framework.outputs) if self.framework.outputs else None

    def step(self) -> list[str]:
        """A sentence on the outputs and groups of one optimizer step, as far as the options say."""
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
            return [f"One optimizer step has K = {product} outputs: write {asked}."]
        size = self.group_size
        groups = f", B = {self.outputs / size:g} groups of {size}" if size and self.outputs else ""
        return [f"One optimizer step has K = {self.outputs:g} outputs{groups} ({product})."]

    def reused(self) -> list[str]:
        """Sentences on more than one step on outputs of one sampling."""
        if self.steps <= 1:
            return []
        known = (group for group in self.framework.steps if self._product(group) is not None)
        written = dict.fromkeys(bare(name) for group in known for name in group)
        words = ", ".join(self._typed(name) for name in written if self.values[name] != "none")
        clips = [self._typed(option.name) for option in self._on("ratio")]
        return [
            f"{self.steps:.4g} optimizer steps on outputs of one sampling ({words}): all numbers here hold "
            "for the first. From the second on the ratio to the policy that sampled is not 1, and "
            + (
                f"{', '.join(clips)} clip or reweight it."
                if clips
                else "the loss clips or reweights it."
            )
        ]

    def unchanged(self) -> dict[str, list[str]]:
        """The options that change nothing in the mean gradient, by the reason why."""
        groups: dict[str, list[str]] = {}
        reasons = {"not read by this formula": self._ignored()}
        # Dropping groups changes nothing only where they would say nothing.
        silent = self.row.equal_rewards.startswith("0")
        dropping = ["filter", "filter without refill"] * silent
        for kind in ["ratio"] * (self.steps <= 1) + dropping:
            names = [option.name for option in self.framework.of_kind(kind)]
            reasons[catalogue().kinds[kind]] = names
        capping = self.cap[0] if self.cap else None
        for reason, names in reasons.items():
            there = [name for name in names if not self.framework.options[name].lacking]
            if kept := [short_name(name) for name in there if name != capping]:
                groups[reason] = kept
        return groups

    def _ignored(self) -> list[str]:
        """The options on the advantage whose other values would mean the same."""
        names = []
        for option in self.framework.of_kind("advantage"):
            others = [self.framework.row({**self.values, option.name: v}) for v in option.values]
            meanings = {(row.estimator, row.factor, row.dropped) for row in (self.row, *others)}
            if self.row.estimator and len(meanings) == 1:
                names.append(option.name)
        return names

    def cut(self) -> list[str]:
        """The options that cut the norm of a step, as they stand."""
        return [self._typed(option.name) for option in self._on("norm")]

    def sampled(self) -> list[str]:
        """The options on the difference of the trainer from the engine that sampled, as they stand."""
        options = self.framework.of_kind("sampler")
        switched = (each for each in options[1:] if each.switch and not self._is_off(each.name))
        if not options or (self._is_off(options[0].name) and not any(switched)):
            return []
        return [self._typed(option.name) for option in options]

    def acting(self) -> dict[str, list[str]]:
        """The options that were chosen and act on outputs, groups, tokens or rewards, by what they do."""
        found: dict[str, list[str]] = {}
        for kind in ("survival", "filter", "filter without refill", "entropy", "reward"):
            for option in self._on(kind):
                if kind.startswith("filter") or self.values[option.name] != option.default:
                    found.setdefault(catalogue().kinds[kind], []).append(self._typed(option.name))
        for kind, names in self.drawn().items():
            found[catalogue().kinds[kind]] = names
        return found

    def drawn(self) -> dict[str, list[str]]:
        """The options that change the distribution that outputs are drawn from: those that change the trained
        log-probability alike, as ``policy``, and those that do not, as ``sampling``.
        """
        found: dict[str, list[str]] = {}
        for option in (*self.framework.of_kind("policy"), *self.framework.of_kind("sampling")):
            value = self.values[option.name]
            if value == "none" or float(value) in option.neutral:
                continue
            scored = self.values[option.scored] if option.scored else "nan"
            # It is none where it is written as a reference to the other.
            alike = scored == "none" or float(scored) == float(value)
            found.setdefault("policy" if alike else option.kind, []).append(
                self._typed(option.name)
            )
        return found

    def beside(self, *, defaults: bool = True) -> list[str]:
        """Sentences on what acts beside the advantage: on tokens, outputs, rewards or the whole step.

        What cuts a step, or corrects for the sampler, is left out without ``defaults`` unless it was written.
        """
        says = catalogue().kinds
        silent = self.unchanged()
        found = {says["loss"]: self.another_loss()}
        found |= {reason: names for reason, names in self.acting().items() if reason not in silent}
        written = {*map(self._typed, self.given)}
        for kind, names in (("norm", self.cut()), ("sampler", self.sampled())):
            if defaults or written & {*names}:
                found[says[kind]] = names
        return [f"{', '.join(names)}: {reason}." for reason, names in found.items() if names]

    def another_loss(self) -> list[str]:
        """The options that choose another loss than the default."""
        options = self.framework.of_kind("loss")
        return [self._typed(o.name) for o in options if self.values[o.name] != o.default]

    def acting_penalties(self) -> list[Penalty]:
        """The KL terms that are on."""
        found = []
        for option in self._on("KL"):
            needed = all(self.values[name] in allowed for name, allowed in option.needs.items())
            if needed and not (option.times and self._is_off(option.times)):
                found.append(Penalty(option, self._form(option), self._coefficient(option)))
        return found

    def in_place(self, where: str) -> list[Penalty]:
        """The KL terms that are on in the ``loss`` or in the ``reward``, and of which that is recorded."""
        return [each for each in self.acting_penalties() if each.option.where == where]

    def _form(self, option: Option) -> str:
        """Which estimate a KL term is, with the sign of how its ratio's gradient is kept."""
        form = self.values.get(option.form, option.form)
        name, _, kept = option.corrected.rpartition("=")
        if kept and self.values.get(name, name) == "true":
            form = form.rstrip("+") + kept
        return form if option.where == "loss" else form.rstrip("+")

    def _coefficient(self, option: Option) -> float:
        """What multiplies a KL term; NaN where no option of the catalogue says."""
        try:
            return float(self.values[option.times or option.name])
        except ValueError:
            return nan

    def penalties(self) -> list[str]:
        """The KL terms that are on, where they go, and whose gradient they have; nothing where no option
        says.
        """
        lines = [
            f"{self._typed(each.option.name)}: {each.option.place}{self._divergence(each)}"
            for each in self.acting_penalties()
        ]
        return lines or ["none: it is switched off"] * bool(self.framework.of_kind("KL"))

    def _divergence(self, penalty: Penalty) -> str:
        """Whose gradient a KL term has, and what becomes of it in silent groups, in words."""
        option, form = penalty.option, penalty.form
        if not option.where:
            return ""
        words = f" ({form}): {catalogue().divergences[option.where][form]}"
        if option.adds_up:
            words += f", added up by itself: {catalogue().aggregations[option.adds_up].title}"
        if option.summed and self.row.ddof is not None:
            words += (
                ". It enters an output's reward before the division by the group's deviation: a group of "
                "equal rewards is then not silent; its advantages have size 1 and are made of the KL alone, "
                "whatever its coefficient"
            )
        return words
