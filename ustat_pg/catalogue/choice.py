"""The group size and the estimator together, beside the options of a trainer that are in use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..display.shown import Shown, plain
from ..predictions import count_table
from ..registry import ESTIMATORS
from ..validation import InputError
from .framework import Row
from .meaning import Meaning
from .options import short_name
from .specs import resolve

if TYPE_CHECKING:
    import pandas as pd

OURS = ("grpo", "bayes:1,1", "norm-weighted", "length-weighted")
"""Unbiased estimators that a trainer can have in place of its own."""

Ratio = tuple[float, float, float, float]
"""Noise over signal of one group times G, that over the first's, and the ends of its interval."""


@dataclass(frozen=True)
class Candidate:
    """An estimator at a group size, compared at the same outputs a step.

    Arguments:
        estimator: this library's name of it.
        options: the trainer's own options for it; empty where it has none.
        group_size: G.
        unbiased: whether it climbs the expected reward.
        noise_to_signal: of a step.
        relative, low, high: that over the noise to signal of the options in use, with its 95% interval.
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
        """Its options, or its name."""
        return self.options or self.estimator

    def __str__(self) -> str:
        ends = "" if self.low == self.high else f" (95%: {self.low:.3g} to {self.high:.3g})"
        times = f"{self.relative:.3g}{ends} times the noise over signal"
        return f"{self.label} with G = {self.group_size}: {times}"


@dataclass(frozen=True)
class Direction:
    """The mean of a biased estimate beside the gradient of the expected reward.

    Arguments:
        scale: its length along the gradient, over the gradient's; None where one is not
            distinguishable from 0.
        cosine, low, high: of the angle between them, with its 95% interval; None, -1 and 1 there.
    """

    scale: float | None
    cosine: float | None
    low: float
    high: float


@dataclass(frozen=True)
class Choice(Shown):
    """Every estimator of a trainer, and some of this library's, at every group size.

    Arguments:
        meaning: of the options in use.
        budget: outputs of a step.
        candidates: the options in use first.
        direction: the bias of the options in use, of a pool, where they have any.
    """

    meaning: Meaning
    budget: float
    candidates: tuple[Candidate, ...]
    direction: Direction | None = None

    @property
    def best(self) -> Candidate:
        """The least noise over signal in the worst case of its interval, of the unbiased ones and the one in
        use: what is in use unless one is known to be better.
        """
        current = self.candidates[0].label
        same = [one for one in self.candidates if one.unbiased or one.label == current]
        return min(same, key=lambda one: one.high)

    @property
    def group_size(self) -> int:
        """That of the best."""
        return self.best.group_size

    @property
    def best_in_use(self) -> Candidate:
        """The same of the estimator in use: its best group size."""
        same = [one for one in self.candidates if one.label == self.candidates[0].label]
        return min(same, key=lambda one: one.high)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON has it."""
        parts = {"best": self.best, "best_in_use": self.best_in_use}
        return {
            "framework": self.meaning.framework.name,
            **plain({**parts, "table": self.candidates, "direction": self.direction}),
            "beside": self.meaning.beside(defaults=False),
        }

    def to_frame(self) -> pd.DataFrame:
        """A row for each pair of estimator and group size, those in use first."""
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
            f"({current.estimator}): noise over signal {current.noise_to_signal:.3g} at {self.budget:g} "
            "outputs a step. In units of that, at the same number of outputs:",
            " " * width + "".join(f"{f'G={size}':>8}" for size in sizes),
        ]
        for label in labels:
            row = [cells.get((label, size)) for size in sizes]
            shown = "".join(
                f"{candidate.relative:8.3g}" if candidate else f"{'-':>8}" for candidate in row
            )
            lines.append(f"{label:{width}}{shown}")
        if best == current:
            lines.append("Keep it: none of these is known to have less noise.")
        else:
            lines.append(f"Take {best}.")
            if resized not in (current, best):
                lines.append(f"Without another estimator, {resized}.")
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
        if beside := self.meaning.beside(defaults=False):
            lines += ["Not in these numbers:", *(f"  {line}" for line in beside)]
        return "\n".join(lines)

    def _bias(self, direction: Direction) -> str:
        label = self.candidates[0].label
        if direction.scale is None or direction.cosine is None:
            return f"The bias of {label} is not known here: a mean is not distinguishable from 0."
        return (
            f"The mean of {label} goes {direction.scale:.3g} times as far as the gradient of the expected "
            f"reward, at a cosine of {direction.cosine:.3g} (95%: {direction.low:.3g} to "
            f"{direction.high:.3g}) to it."
        )


def in_use(spec: Any) -> Meaning:
    """The meaning of the options in use, whose estimator and group size are known.

    Raises:
        InputError: they are not.
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
            f"{meaning.row.name} depends on more than a group's rewards: its noise has no closed form"
            + (f"; here these have one: {known}" if known else "")
        )
    return meaning


def choose(
    spec: Any,
    budget: float,
    sizes: Iterable[int],
    measure: Callable[[list[tuple[str, int]]], list[Ratio]],
) -> Choice:
    """Compare the estimators that a trainer's options reach, at every group size, with those in use.

    Arguments:
        spec: the options in use, as :func:`~ustat_pg.catalogue.resolve` reads them.
        budget: outputs of a step.
        sizes: group sizes.
        measure: ratios of estimators at group sizes, the options in use first; NaN where there is none.
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
        # The full group mean is grpo with another learning rate.
        known = name == "grpo" and any(
            ESTIMATORS[spelling].whole_group for spelling, _ in pairs if spelling in ESTIMATORS
        )
        if name is not None and not known:
            pairs.setdefault((name, g), label)
    ratios = measure(list(pairs))
    if not isfinite(in_use_now := ratios[0][0]):
        raise InputError(
            f"the noise over signal of {current.row.name} at G = {size} is not known here: its signal is not "
            "distinguishable from 0; take more prompts"
        )
    # It is itself, however little is known of it.
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
