"""Cells of language models: a gradient's error by the pool method and, independently, by sampling.

One replication draws a few prompts of a task, and for each model N rollouts of every prompt. It scores
them through hooks as a pool, and computes the unbiased estimates of theory/language_models.md. It
also differentiates them one by one, forms groups in several random orders, and computes the
spread of the groups' gradients at one prompt, and half the squared distance of a gradient at one prompt from
one at another. The oracle of the groups estimates V from two other samples, and its error is the covariance
of the two gradients that they give. A gradient is linear in its baseline, so this is the oracle's error
exactly, on average.
Both sides are unbiased for the same errors, and share no code but the sampler: their means are equal if
the formulas are right, whatever the model is. They share the rollouts, so that a rare large error is in
both, and a few hundred replications can distinguish their means.

The scores of a network have no known bound, so intervals assume that a mean is nearly
normal, √(2 ln(2/α)) standard errors to either side (4.8 at α = 2e-5 where the normal law has 4.3):
unlike those of bandits they are not valid at every sample size.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from itertools import chain, product
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ustat_pg.engines import Cell, Estimator, InfeasibleError, MomentSums, Quantity
from ustat_pg.engines.base import Replications
from ustat_pg.estimators import advantages
from ustat_pg.files.digests import source_digest
from ustat_pg.validation import Array, InputError

from .passes import LOADING, model_of

if TYPE_CHECKING:
    from ustat_pg.llm.prompts import Task
    from ustat_pg.llm.rollouts.stored import Rollouts


BASELINES = ("vanilla", "grpo", "oracle")
"""Baselines whose errors are measured at one prompt."""
CONSTANTS = ("c1", "c2", "c3")
"""The parts of the error over prompts, from the pool's formulas."""
NORMALISED = "std"
"""The advantages of GRPO as published; the mean of their estimate is not g."""
NOISE, SIGNAL = "noise", "signal"
"""tr Cov ĝ and ‖E ĝ‖² of an estimator, whose name follows a blank; prompts are drawn again."""
AVERAGED = ("grpo", NORMALISED)
"""Estimators whose noise and signal are measured."""
BATCH = f"{NOISE} grpo"
"""grpo's error with a new prompt for each gradient: the error of a minibatch, times B."""

_ORDERS = 16
"""Orders of a prompt's rollouts, each cut into groups. One order has few groups and 2 to 6 times the
variance in the difference of two large groups' errors."""
_WORK = 2**12
"""The number of bandit outputs that take the time of one rollout, for the budget of a check."""
_BLOCK = 8
"""Replications in a block."""
_ROWS = 256
"""Completions that are differentiated together."""


@dataclass(frozen=True)
class LmQuantity:
    """A number that one replication measures.

    Arguments:
        method: pool, by the formulas; or drawn, by groups of fresh rollouts.
        member: the model.
        what: a baseline; noise or signal with the name of an estimator; or, for the pool, c1, c2 or c3.
        group_size: G; 0 for a constant.
    """

    method: str
    member: str
    what: str
    group_size: int = 0

    @property
    def label(self) -> str:
        return f"{self.method}[{self.member},{self.what},{self.group_size}]"

    @property
    def estimators(self) -> tuple[Estimator, ...]:
        """The estimator whose error this is, if there is one."""
        return (Estimator(self.what),) if self.what in BASELINES else ()


def pooled(member: str, what: str, group_size: int = 0) -> LmQuantity:
    return LmQuantity("pool", member, what, group_size)


def drawn(member: str, what: str, group_size: int) -> LmQuantity:
    return LmQuantity("drawn", member, what, group_size)


@lru_cache
def _task(name: str) -> Task:
    from ustat_pg.llm.tasks.named import load_task

    return load_task(name)


@lru_cache
def _digest(name: str) -> str:
    """A digest of a model's weights and prompts, and of the files and libraries that affect a replication."""
    from ustat_pg.llm.models.loading import load_model, weights_digest

    with LOADING:
        weights = weights_digest(load_model(name).model)
    prompts = [(prompt.text, prompt.columns) for prompt in _task(name).prompts]
    libraries = f"{version('transformers')} {version('tokenizers')}"
    return source_digest(Path(__file__).resolve(), salt=f"{weights} {prompts} {libraries}")


class ModelCell(Cell):
    """The base of cells of language models. They sample with autograd and enumerate nothing."""

    group_sizes: tuple[int, ...]

    steps = batch_size = 1
    engines = ("autograd",)
    bounded = False
    looks = 4
    least = 32

    @property
    @abstractmethod
    def quantities(self) -> tuple[LmQuantity, ...]:
        """All quantities that a replication measures."""

    @abstractmethod
    def _replication(self, seed: int, number: int) -> dict[str, float]:
        """The numbers of one replication, by label."""

    def _measure(
        self, engine: str, quantities: Sequence[LmQuantity], block: Replications
    ) -> MomentSums:
        rows = []
        # Blocks are the only parallel layer. This limit applies to the calling thread only.
        with threadpool_limits(1, user_api="openmp"):
            for number in range(block.first, block.first + block.count):
                measured = self._replication(block.seed, number)
                rows.append([measured[quantity.label] for quantity in quantities])
        return MomentSums.of(rows)

    @property
    def group_size(self) -> int:  # type: ignore[override]
        return self.group_sizes[-1]

    def together(self, quantities: Sequence[Quantity]) -> Sequence[Quantity]:
        """All quantities, because rollouts and scores are the main cost."""
        return self.quantities

    def engine(self, name: str) -> str:
        return "autograd"

    def range(self, quantity: Quantity) -> tuple[float, float]:
        return -inf, inf

    def rounding(self, quantity: Quantity) -> float:
        """The rounding of float32 sums is negligible compared with the sampling error."""
        return 0.0

    def require_quantity(self, quantity: Quantity) -> None:
        if quantity not in self.quantities:
            raise InputError(f"{quantity.label!r} is not a quantity of {self.name}")

    def require_exact(self, quantities: Sequence[Quantity]) -> None:
        raise InfeasibleError("the completions of a language model cannot be listed")


@dataclass(frozen=True)
class LmCell(ModelCell):
    """Models on their tasks, with prompts drawn i.i.d. at the same places for every model.

    Arguments:
        members: names of the models, each with the task of that name.
        group_sizes: sizes of the groups, increasing.
        values: number of other rollouts from which an oracle estimates V; each prompt has two such samples.
        groups: number of groups at each prompt, at the largest size; smaller groups share the same
            rollouts, so there are more of them. The pool uses the same rollouts too.
        prompts: number in a replication; all pairs measure how prompts differ.
    """

    members: tuple[str, ...]
    group_sizes: tuple[int, ...] = (2, 8)
    values: int = 16
    groups: int = 2
    prompts: int = 8

    block = _BLOCK

    @property
    def quantities(self) -> tuple[LmQuantity, ...]:
        averaged = [" ".join(words) for words in product((NOISE, SIGNAL), AVERAGED)]
        errors = list(product((*BASELINES, *averaged), self.group_sizes))
        constants = [(name, 0) for name in CONSTANTS]
        return tuple(
            LmQuantity(method, member, what, size)
            for member in self.members
            for method, parts in (("pool", errors + constants), ("drawn", errors))
            for what, size in parts
        )

    @property
    def name(self) -> str:
        """Everything that a replication depends on, except its number and the seed."""
        words = [(name, _digest(name)) for name in self.members], self._sizes
        return "lm-" + hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]

    @property
    def _sizes(self) -> Sizes:
        return self.group_sizes, self.values, self.groups, self.prompts

    @property
    def outputs(self) -> int:
        """The cost of a replication, in outputs of a bandit."""
        rollouts = 2 * self.values + 3 * self.groups * self.group_size
        return self.prompts * len(self.members) * rollouts * _WORK

    def pilot(self, replications: int) -> int:
        """A few blocks, because errors are skewed and one block would not show it."""
        return 3 * _BLOCK

    def shown(self, blocks: float) -> float:
        """At least the number of blocks that verdicts need."""
        return max(blocks, 6.0)

    def _replication(self, seed: int, number: int) -> dict[str, float]:
        parts = (_replication(member, self._sizes, seed, number) for member in self.members)
        return {label: value for part in parts for label, value in part.items()}


Sizes = tuple[tuple[int, ...], int, int, int]
Values = dict[tuple[str, int], float]
"""Numbers by quantity and group size."""


@lru_cache(maxsize=2**14)
def _replication(member: str, sizes: Sizes, seed: int, number: int) -> dict[str, float]:
    """All quantities of one model in one replication, by label; claims and cells share them."""
    from ustat_pg.llm.models.generation import transformers_draw
    from ustat_pg.llm.models.loading import tokenise
    from ustat_pg.llm.prompts import Prompt
    from ustat_pg.llm.rollouts.stored import Rollouts, decoded

    group_sizes, values, groups, prompts = sizes
    task, model = _task(member), model_of(member)
    # Fused attention cannot compute gradients per completion.
    model.model.set_attn_implementation("eager")
    places = _places(len(task.prompts), prompts, seed, number)
    chosen = [task.prompts[place] for place in places]
    named = [(f"{number}.{side}", tokenise(model, prompt)) for side, prompt in enumerate(chosen)]
    count = groups * group_sizes[-1]
    total = 2 * values + count
    draws = transformers_draw(model, named, total, task.max_new_tokens, seed, 1024)
    completions = chain.from_iterable(draws)
    sides = []
    # Starts at 1, because a 0 at the end of a seed has no effect, and that seed draws the prompts.
    for place, (prompt, (_, ids), (tokens, _)) in enumerate(
        zip(chosen, named, completions, strict=True), start=1
    ):
        rewards = task.rewards(prompt, decoded(model, tokens), tokens)
        first, second = np.split(rewards[: 2 * values], 2)
        answers = tuple(map(tuple, tokens[2 * values :]))
        # The name is the place, because the same prompt may occur twice.
        named_prompt, texts = Prompt(str(place), prompt.text), ("",) * count
        orders = np.tile(np.arange(count), (_ORDERS, 1))
        sides.append(
            _Side(
                Rollouts(named_prompt, tuple(ids), answers, texts, rewards[2 * values :]),
                (float(first.mean()), float(second.mean())),
                np.random.default_rng([seed, number, place]).permuted(orders, axis=1),
            )
        )
    measured = {"pool": _pool_values, "drawn": _drawn_values}
    return {
        LmQuantity(method, member, what, size).label: value
        for method, values_of in measured.items()
        for (what, size), value in values_of(model.model, sides, group_sizes).items()
    }


def _places(count: int, prompts: int, seed: int, number: int) -> list[int]:
    """The indices of a task's prompts in a replication, with replacement."""
    return np.random.default_rng([seed, number]).integers(count, size=prompts).tolist()


@dataclass(frozen=True)
class _Side:
    """One prompt of a replication: its rollouts with their orders, and two estimates of V from others."""

    rollouts: Rollouts
    values: tuple[float, float]
    orders: NDArray[np.intp]


def padded(rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[Any, Any]:
    """Tokens of prompts with completions, and 1.0 where a token was sampled; (outputs, length) each.

    Padding at the end changes nothing before it, because attention is causal.
    """
    import torch

    width = max(len(ids) + len(tokens) for ids, tokens in rows)
    text = torch.zeros((len(rows), width), dtype=torch.long)
    sampled = torch.zeros((len(rows), width))
    for row, (ids, tokens) in enumerate(rows):
        end = len(ids) + len(tokens)
        text[row, :end] = torch.tensor([*ids, *tokens])
        sampled[row, len(ids) : end] = 1.0
    return text, sampled


def _scores(model: Any, sides: Sequence[_Side]) -> list[Any]:
    """∇ log π of every rollout by plain autograd, (prompts, rollouts, entries) of each parameter."""
    import torch
    from torch.func import functional_call, grad, vmap

    rows = [
        (side.rollouts.prompt_ids, tokens)
        for side in sides
        for tokens in side.rollouts.completion_ids
    ]
    text, sampled = padded(rows)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def log_prob(weights: Any, text: Any, sampled: Any) -> Any:
        words = {"input_ids": text[None], "use_cache": False}
        logits = functional_call(model, weights, (), words).logits[0, :-1]
        chosen = torch.log_softmax(logits, dim=-1).gather(1, text[1:, None])[:, 0]
        return (chosen * sampled[1:]).sum()

    scores = vmap(grad(log_prob), (None, 0, 0), chunk_size=_ROWS)(weights, text, sampled)
    return [score.flatten(1).unflatten(0, (len(sides), -1)) for score in scores.values()]


def _pool_values(model: Any, sides: Sequence[_Side], group_sizes: Sequence[int]) -> Values:
    from ustat_pg.llm.pool.estimates import constants, curves, noise_to_signal
    from ustat_pg.llm.scores import Scores
    from ustat_pg.llm.scores.scoring import pool_of_scores

    # Sketches with so many numbers are the scores themselves, so they add no error to the comparison.
    exact = Scores(model, sketch=sum(p.numel() for p in model.parameters()))
    pool = pool_of_scores(exact, [side.rollouts for side in sides])
    estimates = constants(pool)
    values = {(what, 0): estimates.estimates[what].value for what in CONSTANTS}
    for row in curves(pool, group_sizes, BASELINES).to_dict("records"):
        values[row["estimator"], row["group_size"]] = row["mse"]
    for row in noise_to_signal(pool, group_sizes, AVERAGED).to_dict("records"):
        for part in (NOISE, SIGNAL):
            values[f"{part} {row['estimator']}", row["group_size"]] = row[part]
    return values


def _drawn_values(model: Any, sides: Sequence[_Side], group_sizes: Sequence[int]) -> Values:
    import torch

    averaged = list(product(AVERAGED, group_sizes))
    weights = [
        {
            (name, size): _weights(name, side.rollouts.rewards, side.orders, size)
            for name, size in averaged
        }
        for side in sides
    ]
    means = np.array([[rows.mean(axis=(0, 1)) for rows in side.values()] for side in weights])
    mean_weights = torch.as_tensor(means, dtype=torch.float32)
    inner: Any = 0.0
    between: Any = 0.0
    for scores in _scores(model, sides):
        inner = inner + (scores @ scores.mT).double()
        mean = (mean_weights @ scores).double()
        between = between + (mean.sum(dim=0) ** 2 - (mean**2).sum(dim=0)).sum(dim=1)
    count = len(sides)
    values: Values = dict.fromkeys(product(BASELINES, group_sizes), 0.0)
    squares = dict.fromkeys(averaged, 0.0)
    for side, of_side, products in zip(sides, weights, inner.numpy(), strict=True):
        rewards = side.rollouts.rewards
        errors = errors_of_groups(rewards, side.orders, side.values, products, group_sizes)
        for key, error in errors.items():
            values[key] += error / count
        for key, rows in of_side.items():
            squares[key] += _product(rows, rows, products) / count
    signals = (between / (count * (count - 1))).tolist()
    for (name, size), signal in zip(averaged, signals, strict=True):
        # This is half the squared distance of two prompts' gradients.
        values[f"{NOISE} {name}", size] = squares[name, size] - signal
        values[f"{SIGNAL} {name}", size] = signal
    return values


def errors_of_groups(
    rewards: Array,
    orders: NDArray[np.intp],
    values: Sequence[float],
    products: Array,
    group_sizes: Sequence[int],
) -> Values:
    """Errors of the baselines at a prompt, from the spread of group gradients, averaged over orders.

    Arguments:
        rewards: rewards of the rollouts, (N,).
        orders: orders of the rollouts, each cut into groups, (orders, N).
        values: two estimates of V that are independent of the rollouts, and of each other.
        products: inner products of the rollouts' scores, (N, N).
        group_sizes: sizes of the groups; an order has at least two groups.
    """
    found: Values = {}
    for size in group_sizes:
        vanilla, grpo = (_weights(name, rewards, orders, size) for name in ("vanilla", "grpo"))
        oracles = [_weights("oracle", rewards, orders, size, value=value) for value in values]
        pairs = {"vanilla": (vanilla, vanilla), "grpo": (grpo, grpo), "oracle": oracles}
        for name, (first, second) in pairs.items():
            found[name, size] = _spread(first, second, products)
    return found


def _weights(
    baseline: str, rewards: Array, orders: NDArray[np.intp], group_size: int, **value: float
) -> Array:
    """The weight of each score in the gradient of each group, (orders, groups, rollouts)."""
    count = len(rewards)
    groups = count // group_size
    members = orders[:, : groups * group_size].reshape(-1, group_size)
    weights = np.zeros((len(members), count))
    values = advantages(baseline, rewards[members], **value) / group_size
    np.put_along_axis(weights, members, values, axis=1)
    return weights.reshape(len(orders), groups, count)


def _spread(first: Array, second: Array, products: Array) -> float:
    """Trace of the sample covariance of two gradients over the groups of an order, averaged over orders."""
    groups = first.shape[1]
    one, other = (rows - rows.mean(axis=1, keepdims=True) for rows in (first, second))
    return _product(one, other, products) * groups / (groups - 1)


def _product(first: Array, second: Array, products: Array) -> float:
    """The mean of <first s, second s> over groups and orders, from the products <sᵢ, sⱼ>."""
    return float(((first @ products) * second).sum(axis=2).mean())
