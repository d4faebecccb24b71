"""Run a framework's own loss on outputs of unequal lengths, and keep its gradient as data.

``python -m tests.conformance NAME CHECKOUT`` writes ``tests/data/conformance/losses/NAME.json`` too where the
framework's driver has

- ``LOSS``: the function that it calls, as a dotted name;
- ``loss(options, rollouts)``: the loss of one optimizer step on these rollouts, a scalar that depends on
  ``rollouts.own``, summed over its micro-batches as the framework does;
- ``penalised(options, rollouts)``, where a KL may be in the reward: the rewards of all tokens, (8, T), of
  outputs whose own are 0;
- ``kept(options, groups)``, where a filter can be run: which of these groups of rewards stay;
- ``TRIED``: numbers of options, where others than `tried` are wanted.

Each raises `Refused` for options that the framework refuses.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ustat_pg.catalogue import Framework
from ustat_pg.catalogue.options import Option

if TYPE_CHECKING:
    from torch import Tensor

LENGTHS = [[1, 3], [4, 2], [5, 2], [3, 6]]
"""Tokens of each output: four groups of two, in two micro-batches of two groups."""

ADVANTAGES = [[1.0, -1.0], [0.5, -0.75], [-1.5, 0.7], [0.3, -0.2]]
TRUNCATED = [[0, 0], [1, 0], [0, 0], [0, 1]]
"""Outputs that ran into the longest length: their reward is right, and their end is missing."""
MICRO_BATCHES = 2

_PLACES = np.arange(8 * 6).reshape(4, 2, 6)
MASK = (np.arange(6) < np.array(LENGTHS)[..., None]).astype(float)
OWN = (-1.0 - 0.5 * np.cos(1.3 * _PLACES)) * MASK
TO_REFERENCE = 0.8 * np.sin(1.0 + 2.1 * _PLACES) * MASK
"""log π_ref - log π."""
SINCE_SAMPLING = 0.9 * np.sin(0.5 + 1.7 * _PLACES) * MASK
"""log π - log π_old in a later step; 0 in the first."""
TO_SAMPLER = 0.6 * np.sin(2.0 + 2.9 * _PLACES) * MASK
"""log π_old - log π_sampler."""
ENTROPIES = (1.0 + 0.7 * np.sin(0.3 + 1.1 * _PLACES)) * MASK

GROUPS = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 1.0]]
"""Rewards of groups that a filter keeps or drops."""


class Refused(Exception):
    """The framework does not take these options, or this batch."""


@dataclass
class Rollouts:
    """The outputs of one step, or of a micro-batch, padded at the right, a row each.

    Arguments:
        own, entropies: log-probabilities and entropies under the trained policy, whose gradients are taken.
        old, reference, sampler: log-probabilities under the policy before the first step, the reference,
            and the engine that sampled.
        mask, advantages, truncated: which tokens there are, one advantage an output, and whether it was cut.
    """

    own: Tensor
    entropies: Tensor
    old: Tensor
    reference: Tensor
    sampler: Tensor
    mask: Tensor
    advantages: Tensor
    truncated: Tensor

    def micro_batches(self) -> Iterator[Rollouts]:
        """The parts that pass one after the other, each padded to its own longest output."""
        for rows in np.split(np.arange(len(self.own)), MICRO_BATCHES):
            width = int(MASK.reshape(8, -1)[rows].sum(-1).max())
            parts = {each.name: getattr(self, each.name)[rows] for each in fields(self)}
            yield Rollouts(**{k: v[:, :width] if v.ndim > 1 else v for k, v in parts.items()})

    @property
    def lengths(self) -> list[int]:
        return [int(each) for each in self.mask.sum(-1)]

    def apart(self, name: str) -> list[Tensor]:
        """The tokens of each output without the padding."""
        return [row[:length] for row, length in zip(getattr(self, name), self.lengths, strict=True)]


def rollouts(later: bool) -> Rollouts:
    """Those of the first step after sampling, or of a later one."""
    import torch

    def rows(values: Any) -> Tensor:
        values = np.asarray(values)
        return torch.tensor(values.reshape(8, *values.shape[2:]), dtype=torch.float32)

    old = OWN - SINCE_SAMPLING * later
    return Rollouts(
        own=rows(OWN).requires_grad_(),
        entropies=rows(ENTROPIES).requires_grad_(),
        old=rows(old),
        reference=rows(OWN + TO_REFERENCE),
        sampler=rows(old - TO_SAMPLER),
        mask=rows(MASK),
        advantages=rows(ADVANTAGES),
        truncated=rows(TRUNCATED),
    )


def tried(option: Option) -> str:
    """A number for an option that takes one, which is felt: a default may be small, or near another."""
    return {"ratio": "0.5", "length": "8.0"}.get(option.kind, "0.25")


def asked(framework: Framework, numbers: dict[str, str]) -> list[dict[str, str]]:
    """The options whose loss is asked for: what a record holds, every value that is not said to be read."""

    def values(option: Option) -> list[str]:
        return [numbers.get(option.name, tried(option)) if v == "number" else v for v in option.ran]

    def of_kinds(*kinds: str) -> dict[str, list[str]]:
        options = [each for kind in kinds for each in framework.of_kind(kind)]
        return {each.name: values(each) for each in options if each.ran}

    lengths = {name: first for name, (first, *_) in of_kinds("length").items()}
    adding = of_kinds("aggregation", "loss")
    whole = [dict(zip(adding, each, strict=True)) for each in product(*adding.values())]
    single: list[dict[str, str]] = [{}]
    single += [{name: value} for name, others in adding.items() for value in others]
    aside = [
        {**lacking(framework, name), name: value}
        for name, others in of_kinds("ratio", "survival", "entropy", "sampler").items()
        for value in others
    ]
    penalties = [
        {**lengths, **on, **chosen}
        for option in framework.of_kind("KL")
        if option.where and option.ran
        for on in [switched_on(framework, option, numbers)]
        for chosen in (*single, *forms(framework, option))
    ]
    filters = of_kinds("filter", "filter without refill")
    found = [
        *({**lengths, **each} for each in whole),
        *({**lengths, **one, **each} for each in aside for one in single),
        *penalties,
        *({name: value} for name, others in filters.items() for value in others),
    ]
    return [dict(each) for each in dict.fromkeys(tuple(sorted(each.items())) for each in found)]


def needed(option: Option) -> dict[str, str]:
    """The values of others without which an option is off."""
    return {name: allowed[0] for name, allowed in option.needs.items()}


def lacking(framework: Framework, name: str) -> dict[str, str]:
    """The values of others that it needs and that are not their defaults."""
    needs = framework.options[name].needs
    return {
        other: allowed[0]
        for other, allowed in needs.items()
        if framework.options[other].default not in allowed
    }


def switched_on(framework: Framework, option: Option, numbers: dict[str, str]) -> dict[str, str]:
    """The options by which a KL term acts."""
    amount = framework.options[option.times or option.name]
    number = {amount.name: numbers.get(amount.name, tried(amount))}
    return {**needed(option), **({option.name: "true"} if option.switch else {}), **number}


def forms(framework: Framework, option: Option) -> list[dict[str, str]]:
    """Every estimate that a KL term may be, each with its ratio's gradient and without."""
    names = [option.form, option.corrected.rpartition("=")[0]]
    known = [framework.options[name] for name in names if name in framework.options]
    choices = product(*(each.ran for each in known))
    return [
        {each.name: value for each, value in zip(known, chosen, strict=True)} for chosen in choices
    ]


def is_filter(framework: Framework, chosen: dict[str, str]) -> bool:
    """Whether the options chosen are those of a filter alone."""
    kinds = {framework.options[name].kind for name in chosen}
    return bool(kinds) and kinds <= {"filter", "filter without refill"}


def run(driver: Any, framework: Framework, commit: str) -> dict[str, Any]:
    """Everything that the framework's loss answers."""
    import torch

    torch.compiler.set_stance("force_eager")
    defaults = {option.name: option.default or "none" for option in framework.options.values()}
    runs: list[dict[str, Any]] = []
    numbers = getattr(driver, "TRIED", {})
    for chosen in asked(framework, numbers):
        values = {**defaults, **chosen}
        try:
            record = answer(driver, framework, values, chosen)
        except Refused as refusal:
            record = {"refused": str(refusal)}
        add(runs, chosen, record)
    return {**head(framework, commit, driver.LOSS), "tried": numbers, "runs": runs}


def typed(text: str) -> Any:
    """A value of the catalogue as a framework's config takes it."""
    known = {"none": None, "true": True, "false": False}
    if text in known:
        return known[text]
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


def under(prefix: str, options: dict[str, str]) -> dict[str, Any]:
    """The options whose names begin so, by the rest of their names, as a config takes them."""
    return {
        name.removeprefix(prefix): typed(text)
        for name, text in options.items()
        if name.startswith(prefix)
    }


def add(runs: list[dict[str, Any]], chosen: dict[str, str], record: dict[str, Any]) -> None:
    """Keep what was answered under these options, beside others that gave the same."""
    alike = [each for each in runs if {**each, "options": None} == {**record, "options": None}]
    for each in alike:
        each["options"].append(chosen)
    runs += [] if alike else [{"options": [chosen], **record}]


def head(framework: Framework, commit: str, function: str) -> dict[str, Any]:
    """What was run, and when."""
    return {
        "repository": framework.repository,
        "commit": commit,
        "ran": datetime.date.today().isoformat(),
        "function": function,
    }


def answer(driver: Any, framework: Framework, values: Any, chosen: Any) -> dict[str, Any]:
    """What a filter keeps, or the gradients of the first step and of a later one."""
    if is_filter(framework, chosen):
        return {"kept": driver.kept(values, GROUPS)}
    first, entropies = step(driver, values, later=False)
    record: dict[str, Any] = {"first": first}
    if entropies:
        record["entropies"] = entropies
    # What a KL adds is known in the first step.
    if not any(framework.options[name].kind.startswith("KL") for name in chosen):
        record["later"] = step(driver, values, later=True)[0]
    if hasattr(driver, "penalised"):
        record["rewards"] = apart(driver.penalised(values, rollouts(later=False)))
    return record


def step(driver: Any, values: dict[str, str], *, later: bool) -> tuple[list[list[float]], float]:
    """The gradient that ascends by every log-probability, and the sum of that by the entropies."""
    import torch

    made = rollouts(later)
    loss = driver.loss(values, made)
    own, entropies = torch.autograd.grad(-loss, [made.own, made.entropies], materialize_grads=True)
    assert not own[made.mask == 0].any(), "padding is trained"
    return apart(own), short(entropies.sum())


def apart(rows: Any) -> list[Any]:
    """The numbers of each output's tokens, or of each output."""
    if rows.ndim == 1:
        return [short(each) for each in rows]
    lengths = [each for group in LENGTHS for each in group]
    return [[short(each) for each in row[:n]] for row, n in zip(rows, lengths, strict=True)]


def short(value: Any) -> float:
    return float(f"{float(value):.6g}")
