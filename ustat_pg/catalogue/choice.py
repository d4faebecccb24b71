"""The choice of group size and estimator together, compared with the options that a trainer uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..display.numbers import readable
from ..display.shown import Shown, plain
from ..predictions import count_table
from ..registry import ESTIMATORS
from ..validation import InputError
from .framework import Row
from .meaning import Meaning
from .options import short_name
from .specs import resolve
from .unread import told

if TYPE_CHECKING:
    import pandas as pd

OURS = ("grpo", "bayes:1,1", "norm-weighted", "length-weighted")
"""Unbiased estimators that can replace a trainer's own."""

Ratio = tuple[float, float, float, float]
"""Noise over signal of one group times G, its ratio to the first estimator's, and the ratio's interval."""


@dataclass(frozen=True)
class Candidate:
    """An estimator at a group size, compared at the same number of outputs per step.

    Arguments:
        estimator: its name in this library.
        options: the trainer's options that choose it; empty if there are none.
        group_size: G.
        unbiased: whether it climbs the expected reward.
        noise_to_signal: noise over signal of a step.
        relative, low, high: its ratio to the options in use, with the 95% interval.
    """

    estimator: str
    options: str
    group_size: int
    unbiased: bool
    noise_to_signal: float
    relative: float
    low: float
    high: float

    @property
    def label(self) -> str:
        """The estimator's options, or its name."""
        return self.options or self.estimator

    def __str__(self) -> str:
        ends = (
            ""
            if self.low == self.high
            else f" (95%: {readable(self.low)} to {readable(self.high)})"
        )
        times = f"{readable(self.relative)}{ends} times the noise over signal"
        return f"{self.label} with G = {self.group_size}: {times}"


@dataclass(frozen=True)
class Direction:
    """The mean of a biased estimate, compared with the gradient of the expected reward.

    Arguments:
        scale: its length along the gradient, divided by the gradient's length; None if one of them is not
            distinguishable from 0.
        cosine, low, high: cosine of the angle between them, with its 95% interval; in that case None, -1 and
            1.
    """

    scale: float | None
    cosine: float | None
    low: float
    high: float


@dataclass(frozen=True)
class Choice(Shown):
    """A comparison of a trainer's estimators, and some of this library's, at every group size.

    Arguments:
        meaning: meaning of the options in use.
        budget: outputs per step.
        candidates: the candidates; the options in use come first.
        direction: the bias of the options in use, for a pool, if they are biased.
    """

    meaning: Meaning
    budget: float
    candidates: tuple[Candidate, ...]
    direction: Direction | None = None

    @property
    def best(self) -> Candidate:
        """The unbiased candidate, or the one in use, with the least worst-case noise over signal within its
        interval. The options in use stay unless another is known to be better.
        """
        current = self.candidates[0].label
        same = [one for one in self.candidates if one.unbiased or one.label == current]
        return min(same, key=lambda one: one.high)

    @property
    def group_size(self) -> int:
        """The group size of the best candidate."""
        return self.best.group_size

    @property
    def best_in_use(self) -> Candidate:
        """The best group size of the estimator in use."""
        same = [one for one in self.candidates if one.label == self.candidates[0].label]
        return min(same, key=lambda one: one.high)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as a dict for JSON."""
        parts = {"best": self.best, "best_in_use": self.best_in_use}
        return {
            "framework": self.meaning.framework.name,
            **plain({**parts, "table": self.candidates, "direction": self.direction}),
            "beside": self._ignored,
        }

    def to_frame(self) -> pd.DataFrame:
        """A table with one row per estimator and group size; the options in use come first."""
        import pandas as pd

        return pd.DataFrame(self.candidates)

    def __str__(self) -> str:
        current, best, resized = self.candidates[0], self.best, self.best_in_use
        labels = list(dict.fromkeys(candidate.label for candidate in self.candidates))
        cells = {
            (candidate.label, candidate.group_size): candidate for candidate in self.candidates
        }
        width = max(map(len, labels)) + 1
        sizes = sorted({candidate.group_size for candidate in self.candidates})
        lines = [
            f"As {self.meaning.framework.title}, {current.label} with G = {current.group_size} "
            f"({current.estimator}): noise over signal {readable(current.noise_to_signal)} at "
            f"{readable(self.budget, 6)} outputs per step. Relative to that, at the same number of outputs:",
            " " * width + "".join(f"{f'G={size}':>8}" for size in sizes),
        ]
        for label in labels:
            row = [cells.get((label, size)) for size in sizes]
            shown = "".join(
                f"{candidate.relative:8.3g}" if candidate else f"{'-':>8}" for candidate in row
            )
            lines.append(f"{label:{width}}{shown}")
        if best == current:
            lines.append("Keep it: no other row is known to have less noise.")
        else:
            lines.append(f"Take {best}.")
            if resized not in (current, best):
                lines.append(f"With the same estimator: {resized}.")
        biased = dict.fromkeys(
            candidate.label for candidate in self.candidates if not candidate.unbiased
        )
        if biased:
            lines.append(
                f"Each noise is about the estimator's own mean. The mean of {', '.join(biased)} is not the "
                "gradient of the expected reward: ustat-pg explain says what it is."
            )
        if self.direction is not None:
            lines.append(self._bias(self.direction))
        if ignored := self._ignored:
            lines += ["These numbers ignore:", *(f"  {line}" for line in ignored)]
        return "\n".join(lines)

    @property
    def _ignored(self) -> list[str]:
        """Sentences on what the numbers do not contain."""
        unread = ", ".join(told(self.meaning.may_change))
        sentence = [f"{unread}: not read, and may change the objective."] if unread else []
        return [*self.meaning.beside(defaults=False), *sentence]

    def _bias(self, direction: Direction) -> str:
        label = self.candidates[0].label
        if direction.scale is None or direction.cosine is None:
            return f"The bias of {label} is not known here, because a mean is not distinguishable from 0."
        return (
            f"The mean of {label} goes {readable(direction.scale)} times as far as the gradient of the "
            f"expected reward, at a cosine of {readable(direction.cosine)} (95%: {readable(direction.low)} "
            f"to {readable(direction.high)}) to it."
        )


def in_use(spec: Any) -> Meaning:
    """The meaning of the options in use, with a known estimator and group size.

    Raises:
        InputError: the estimator or the group size is not known.
    """
    meaning = resolve(spec)
    if meaning.group_size is None or meaning.group_size < 2:
        (grouping,) = meaning.framework.of_kind("group size")
        raise InputError(
            f"group size of the options in use is {meaning.group_size}: write "
            f"{short_name(grouping.name)}=G, at least 2"
        )
    if meaning.estimator is None:
        rows = (row for row in meaning.framework.rows if replace(meaning, row=row).estimator)
        known = ", ".join(filter(None, (row.written() for row in rows)))
        raise InputError(
            f"{meaning.row.name} depends on more than a group's rewards, so its noise has no closed form"
            + (f"; these options have a closed form: {known}" if known else "")
        )
    return meaning


def choose(
    spec: Any,
    budget: float,
    sizes: Iterable[int],
    measure: Callable[[list[tuple[str, int]]], list[Ratio]],
) -> Choice:
    """Compare the options in use with every estimator that the trainer's options can choose, at every group
    size.

    Arguments:
        spec: options in use, as for :func:`~ustat_pg.catalogue.resolve`.
        budget: outputs per step.
        sizes: group sizes to compare.
        measure: function that gives the ratios of estimators at group sizes, with the options in use first;
            NaN if there is no ratio.
    """
    current = in_use(spec)
    size = current.group_size
    assert size is not None
    rows = {current.row.written() or current.row.name: current.row}
    rows |= {row.written() or row.name: row for row in current.framework.rows}
    rivals: list[tuple[str, Row | str]] = [*rows.items(), *(("", name) for name in OURS)]
    pairs: dict[tuple[str, int], str] = {}
    for (label, rival), g in product(rivals, dict.fromkeys((size, *sizes))):
        name = (
            rival if isinstance(rival, str) else replace(current, row=rival, group_size=g).estimator
        )
        # The mean of the whole group is grpo with another learning rate.
        known = name == "grpo" and any(
            ESTIMATORS[spelling].whole_group for spelling, _ in pairs if spelling in ESTIMATORS
        )
        if name is not None and not known:
            pairs.setdefault((name, g), label)
    ratios = measure(list(pairs))
    if not isfinite(in_use_now := ratios[0][0]):
        raise InputError(
            f"the noise over signal of {current.row.name} at G = {size} is not known here, "
            f"because its signal is not distinguishable from 0: take more prompts"
        )
    # Its ratio to itself is 1, even if its noise is unknown.
    ratios = [(in_use_now, 1.0, 1.0, 1.0), *ratios[1:]]
    return Choice(
        current,
        budget,
        tuple(
            Candidate(name, label, g, _unbiased(name, g), ratio / budget, *relative)
            for ((name, g), label), (ratio, *relative) in zip(pairs.items(), ratios, strict=True)
            if all(map(isfinite, (ratio, *relative)))
        ),
    )


def _unbiased(name: str, group_size: int) -> bool:
    """Whether the mean is a multiple of the gradient."""
    record = ESTIMATORS.get(name.partition(":")[0])
    if record is None or not record.by_count or record.whole_group:
        return True
    return count_table(name, group_size).unbiased
