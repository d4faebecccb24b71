"""Cells of language models: a gradient's error by the pool method and, apart from it, by sampling.

One replication draws a few prompts of a task, and for each model N rollouts of every prompt. It scores
them through hooks as a pool, and makes of them the unbiased estimates of theory/language_models.md. It
also differentiates them one by one, puts them together in groups, in several random orders, and takes the
spread of the groups' gradients at one prompt, and half the squared distance of a gradient at one prompt from
one at another. The oracle of the groups knows V from two samples of its own, and its error is the covariance
of the two gradients that they give: a gradient is linear in its baseline, so that this is the oracle's error
on average, exactly.
Both sides are unbiased for the same errors, and share no code but the sampler: their means are equal if
the formulas are right, whatever the model is. They share the rollouts, so that a rare large error is in
both, and a few hundred replications tell their means apart.

The scores of a network have no known bound, so that intervals are those of a mean that is nearly
normal, √(2 ln(2/α)) standard errors to either side (4.8 at α = 2e-5 where the normal law has 4.3):
unlike those of bandits they are not valid at every sample size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from itertools import product
from math import inf
from pathlib import Path
from threading import Lock, local
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ustat_pg.compiled import source_digest
from ustat_pg.engines import Cell, Estimator, InfeasibleError, MomentSums, Quantity
from ustat_pg.engines.base import Replications
from ustat_pg.estimators import advantages
from ustat_pg.predictions import count_table
from ustat_pg.validation import InputError, integer

if TYPE_CHECKING:
    from ustat_pg.llm.models import LanguageModel
    from ustat_pg.llm.prompts import Prompt, Task

__all__ = ["BASELINES", "CONSTANTS", "LmCell", "LmQuantity", "Member", "drawn", "pooled"]

Array = NDArray[np.float64]
Sizes = tuple[tuple[int, ...], int, int, int, tuple[str, ...]]

BASELINES = ("vanilla", "grpo", "oracle")
"""Whose errors are asked at one prompt."""
CONSTANTS = ("c1", "c2", "c3")
"""What the error over prompts is made of, by the pool's formulas."""
_ORDERS = 16
"""Orders of a prompt's rollouts, each cut into groups: one alone has few groups, and two to six times the
variance in the difference of two large groups' errors."""
NOISE, SIGNAL = "noise", "signal"
"""tr Cov ĝ and ‖E ĝ‖² of an estimator, its name behind a blank; prompts drawn anew."""
BATCH = f"{NOISE} grpo"
"""grpo's error at a prompt drawn anew for each gradient: one of a minibatch, times B."""

_WORK = 2**12
"""Outputs of a bandit that take the time of one rollout, in the budget of a check."""
_BLOCK = 8
"""Replications in a block."""
_ROWS = 256
"""Completions that are differentiated at a time."""
_MAKERS = (
    "arithmetic.py",
    "batches.py",
    "constants.py",
    "embedded.py",
    "errors.py",
    "estimates.py",
    "generation.py",
    "groups.py",
    "models.py",
    "moments.py",
    "prompts.py",
    "ratios.py",
    "rollouts.py",
    "score_weights.py",
    "scored.py",
    "scores",
    "scoring.py",
    "stale.py",
    "store.py",
    "summary.py",
    "tables.py",
    "tasks.py",
    "verifiers.py",
    "vllm_process.py",
)
"""Of ``ustat_pg/llm``, beside this file: what a replication is made of."""
_ADVANTAGES = ("estimators", "predictions/count_tables.py")
"""Where its advantages come from."""


@dataclass(frozen=True)
class Member:
    """A model on a task, both by name, so that any process can load them.

    Arguments:
        name: in labels.
        model: for :func:`~ustat_pg.llm.models.load_model`; the name itself unless given.
        task: for :func:`~ustat_pg.llm.tasks.load_task`; the model's own unless given.
        verifier: of a ``.jsonl`` file, ``module:function``.
        max_new_tokens: the longest completion; the task's own where it is 0.

    >>> Member("embedded:strong").task
    'embedded:strong'
    """

    name: str
    model: str = ""
    task: str = ""
    verifier: str = ""
    max_new_tokens: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", self.model or self.name)
        object.__setattr__(self, "task", self.task or self.model)
        integer("max_new_tokens", self.max_new_tokens, 0)


@dataclass(frozen=True)
class LmQuantity:
    """What is asked of one replication.

    Arguments:
        method: pool, by the formulas; or drawn, by groups of fresh rollouts.
        member: the model on its task, by the member's name.
        what: a baseline; noise or signal and a name, grpo or a table's; or, of the pool, one of c1, c2, c3.
        group_size: G; 0 of a constant.
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
        """The estimator whose error it is, if it is one's."""
        return (Estimator(self.what),) if self.what in BASELINES else ()


def pooled(member: str, what: str, group_size: int = 0) -> LmQuantity:
    """An estimate from scored pools."""
    return LmQuantity("pool", member, what, group_size)


def drawn(member: str, what: str, group_size: int) -> LmQuantity:
    """An error measured on groups of rollouts."""
    return LmQuantity("drawn", member, what, group_size)


@lru_cache(maxsize=1)
def _code() -> str:
    """Of the files that make a replication, and of the libraries."""
    libraries = f"{version('transformers')} {version('tokenizers')}"
    own = Path(__file__).read_text(encoding="utf-8")
    return source_digest(
        [*_ADVANTAGES, *(f"llm/{name}" for name in _MAKERS)], salt=f"{libraries}\n{own}"
    )


_THREAD = local()
_LOADING = Lock()
"""Loading sets torch's default type, which all threads share."""


def _model(name: str) -> LanguageModel:
    """A model of this thread's own: hooks of two threads on one module would meet."""
    import torch

    from ustat_pg.llm.models import load_model

    if not hasattr(_THREAD, "models"):
        _THREAD.models = {}
        torch.set_num_threads(1)
    if name not in _THREAD.models:
        with _LOADING:
            found = load_model(name)
        # Fused attention has no rule for one completion's gradient at a time.
        found.model.set_attn_implementation("eager")
        _THREAD.models[name] = found
    model: LanguageModel = _THREAD.models[name]
    return model


@lru_cache(maxsize=16)
def _task(member: Member) -> Task:
    from ustat_pg.llm.tasks import load_task

    return load_task(
        member.task,
        verifier=member.verifier or None,
        max_new_tokens=member.max_new_tokens or None,
    )


@lru_cache(maxsize=16)
def _digest(member: Member) -> str:
    """Of the weights, the prompts and the verifier."""
    from ustat_pg.llm.models import load_model, weights_digest
    from ustat_pg.llm.verifiers import source_digest as verifier_digest

    task = _task(member)
    with _LOADING:
        weights = weights_digest(load_model(member.model).model)
    words = [
        weights,
        [(prompt.id, prompt.text, prompt.columns) for prompt in task.prompts],
        task.max_new_tokens,
        verifier_digest(task.verifier),
    ]
    return hashlib.sha256(json.dumps(words, default=str).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class LmCell(Cell):
    """Models on tasks whose prompts are drawn i.i.d., the same places for every model.

    Arguments:
        members: the models on their tasks; a name alone is a model with the task of that name.
        group_sizes: of the groups, at least 2, the largest last.
        values: other rollouts that an oracle knows V from, of which there are two at each prompt; at
            least 1.
        groups: of rollouts at each prompt, at the largest group size, at least 2; smaller groups share
            the same rollouts, so that there are more of them, and so does the pool.
        prompts: of a replication, at least 2; all pairs of them say how prompts differ.
        tables: estimators by counts whose noise and signal can be asked, where rewards are 0 and 1.

    Raises:
        InputError: any of these is not as said.
    """

    members: tuple[str | Member, ...]
    group_sizes: tuple[int, ...] = (2, 8)
    values: int = 16
    groups: int = 2
    prompts: int = 8
    tables: tuple[str, ...] = ()

    steps = 1
    batch_size = 1

    def __post_init__(self) -> None:
        if not self.members or len(self.by_name) < len(self.members):
            raise InputError(f"members are {self.members}: different names, at least one")
        sizes = [integer("group size", size, 2) for size in self.group_sizes]
        if not sizes or sizes != sorted(set(sizes)):
            raise InputError(f"group sizes are {self.group_sizes}: they must increase")
        integer("values", self.values)
        integer("groups", self.groups, 2)
        integer("prompts", self.prompts, 2)
        for name in self.tables:
            count_table(name, self.group_size)

    @property
    def by_name(self) -> dict[str, Member]:
        """The members."""
        found = [Member(each) if isinstance(each, str) else each for each in self.members]
        return {member.name: member for member in found}

    @property
    def quantities(self) -> tuple[LmQuantity, ...]:
        """Everything that can be asked."""
        return tuple(
            LmQuantity(method, member, what, size)
            for member in self.by_name
            for method in ("pool", "drawn")
            for what, size in (
                *product(BASELINES, self.group_sizes),
                *product(
                    map(" ".join, product((NOISE, SIGNAL), _averaged(self.tables))),
                    self.group_sizes,
                ),
                *product(CONSTANTS if method == "pool" else (), (0,)),
            )
        )

    @property
    def group_size(self) -> int:  # type: ignore[override]
        """The largest."""
        return self.group_sizes[-1]

    @property
    def name(self) -> str:
        """Everything that a replication depends on but its number and the seed."""
        words = [
            [(name, _digest(member)) for name, member in self.by_name.items()],
            self._sizes,
            _code(),
        ]
        return "lm-" + hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]

    @property
    def _sizes(self) -> Sizes:
        """What a replication of any member depends on."""
        return self.group_sizes, self.values, self.groups, self.prompts, self.tables

    @property
    def block(self) -> int:
        """The replications in a block."""
        return _BLOCK

    @property
    def outputs(self) -> int:
        """What a replication costs, in outputs of a bandit."""
        rollouts = 2 * self.values + 3 * self.groups * self.group_size
        return self.prompts * len(self.members) * rollouts * _WORK

    def pilot(self, replications: int) -> int:
        """Of a few blocks: errors are skewed, and one block would not see it."""
        return 3 * _BLOCK

    def together(self, quantities: Sequence[Quantity]) -> Sequence[Quantity]:
        """All that there is: rollouts and scores are what costs."""
        return self.quantities

    def shown(self, blocks: float) -> float:
        """What verdicts take at least."""
        return max(blocks, 6.0)

    def engine(self, asked: str) -> str:
        """Networks are differentiated."""
        return "autograd"

    def range(self, quantity: Quantity) -> tuple[float, float]:
        """No bound is known."""
        return -inf, inf

    def rounding(self, quantity: Quantity) -> float:
        """Of float32 sums, next to nothing beside the sampling error."""
        return 0.0

    def require_quantity(self, quantity: Quantity) -> None:
        """Refuse what cannot be asked of these models."""
        if quantity not in self.quantities:
            raise InputError(
                f"{getattr(quantity, 'label', quantity)!r} is no quantity of "
                f"{', '.join(self.by_name)} in groups of {self.group_sizes}"
            )

    def require_exact(self, quantities: Sequence[Quantity]) -> None:
        """Raise :class:`InfeasibleError`, always."""
        self.require_quantities(quantities)
        raise InfeasibleError("the completions of a language model cannot be listed")

    engines = ("autograd",)
    bounded = False
    looks = 4

    def _measure(
        self, engine: str, quantities: Sequence[LmQuantity], block: Replications
    ) -> MomentSums:
        values = np.empty((block.count, len(quantities)))
        # Blocks are the only parallel layer. This limit is the calling thread's own.
        with threadpool_limits(1, user_api="openmp"):
            for row in range(block.count):
                found: dict[str, float] = {}
                for member in dict.fromkeys(quantity.member for quantity in quantities):
                    found |= _replication(
                        self.by_name[member], self._sizes, block.seed, block.first + row
                    )
                values[row] = [found[quantity.label] for quantity in quantities]
        return MomentSums.of(values)


@lru_cache(maxsize=2**14)
def _replication(member: Member, sizes: Sizes, seed: int, number: int) -> dict[str, float]:
    """All that can be asked of one model in one replication, by label.

    It is kept: claims that ask for different quantities, and cells of several models, share what it
    costs.
    """
    from ustat_pg.llm.generation import transformers_draw
    from ustat_pg.llm.models import tokenise

    group_sizes, values, groups, prompts, tables = sizes
    task, model = _task(member), _model(member.model)
    places = _places(len(task.prompts), prompts, seed, number)
    drawn_prompts = [task.prompts[place] for place in places]
    named = [
        (f"{number}.{side}", tokenise(model, prompt)) for side, prompt in enumerate(drawn_prompts)
    ]
    count = 2 * values + groups * group_sizes[-1]
    completions = transformers_draw(model, named, count, task.max_new_tokens, seed, 1024)
    sides = [
        # From 1: a 0 at the end of a seed is as good as none, and that draws the prompts.
        _Side(model, task, prompt, ids, own, values, [seed, number, place])
        for place, (prompt, (_, ids), (own, _)) in enumerate(
            zip(drawn_prompts, named, completions, strict=True), start=1
        )
    ]
    return {
        LmQuantity(method, member.name, what, size).label: value
        for method, found in (
            ("pool", _pool_values(sides, group_sizes, tables)),
            ("drawn", _drawn_values(sides, group_sizes, tables)),
        )
        for (what, size), value in found.items()
    }


def _places(count: int, prompts: int, seed: int, number: int) -> list[int]:
    """Which of a task's prompts a replication takes, with replacement."""
    return np.random.default_rng([seed, number]).integers(count, size=prompts).tolist()


class _Side:
    """One prompt of a replication: its rollouts with orders of them, and two estimates of V from others."""

    def __init__(
        self,
        model: LanguageModel,
        task: Task,
        prompt: Prompt,
        ids: Sequence[int],
        completions: Sequence[Sequence[int]],
        values: int,
        seed: Sequence[int],
    ) -> None:
        from ustat_pg.llm.rollouts import decoded

        rewards = task.rewards(prompt, decoded(model, completions), completions)
        self.model, self.prompt, self.ids = model.model, prompt, ids
        self.values = [float(half.mean()) for half in np.split(rewards[: 2 * values], 2)]
        self.completions, self.rewards = completions[2 * values :], rewards[2 * values :]
        each = np.tile(np.arange(len(self.rewards)), (_ORDERS, 1))
        self.orders = np.random.default_rng(seed).permuted(each, axis=1)


def _scores(model: Any, sides: Sequence[_Side]) -> list[Any]:
    """∇ log π of every rollout, prompt by prompt, (prompts, rollouts, entries) of each parameter.

    By plain autograd. Completions are padded at their end, which changes nothing before it: attention is
    causal.
    """
    import torch
    from torch.func import functional_call, grad, vmap

    rows = [(side.ids, tokens) for side in sides for tokens in side.completions]
    width = max(len(ids) + len(tokens) for ids, tokens in rows)
    text = torch.zeros((len(rows), width), dtype=torch.long)
    sampled = torch.zeros((len(rows), width))
    for row, (ids, tokens) in enumerate(rows):
        end = len(ids) + len(tokens)
        text[row, :end] = torch.tensor([*ids, *tokens])
        sampled[row, len(ids) : end] = 1.0
    weights = {name: each.detach() for name, each in model.named_parameters()}

    def log_prob(weights: Any, text: Any, sampled: Any) -> Any:
        words = {"input_ids": text[None], "use_cache": False}
        logits = functional_call(model, weights, (), words).logits[0, :-1]
        chosen = torch.log_softmax(logits, dim=-1).gather(1, text[1:, None])[:, 0]
        return (chosen * sampled[1:]).sum()

    found = vmap(grad(log_prob), (None, 0, 0), chunk_size=_ROWS)(weights, text, sampled)
    return [each.flatten(1).unflatten(0, (len(sides), -1)) for each in found.values()]


Values = dict[tuple[str, int], float]


def _pool_values(
    sides: Sequence[_Side], group_sizes: Sequence[int], tables: Sequence[str]
) -> Values:
    """Estimates from the rollouts as a pool."""
    from ustat_pg.llm.estimates import constants, curves, noise_to_signal
    from ustat_pg.llm.scores import Scores
    from ustat_pg.llm.scoring import pool_of_scores
    from ustat_pg.llm.store import Rollouts

    drawn = []
    for number, side in enumerate(sides):
        # The same prompt may have been taken twice.
        prompt = replace(side.prompt, id=str(number))
        own = tuple(map(tuple, side.completions))
        drawn.append(Rollouts(prompt, tuple(side.ids), own, ("",) * len(own), side.rewards))
    model = sides[0].model
    pool = pool_of_scores(Scores(model), drawn)
    known = constants(pool)
    found = {(what, 0): float(getattr(known, what)) for what in CONSTANTS}
    for row in curves(pool, group_sizes, BASELINES).to_dict("records"):
        found[row["baseline"], row["group_size"]] = row["mse"]
    names = _averaged(tables)
    rows = noise_to_signal(pool, group_sizes, names).to_dict("records")
    for (name, size), row in zip(product(names, group_sizes), rows, strict=True):
        found |= {(f"{part} {name}", size): row[part] for part in (NOISE, SIGNAL)}
    return found


def _drawn_values(
    sides: Sequence[_Side], group_sizes: Sequence[int], tables: Sequence[str]
) -> Values:
    """What the groups' gradients say."""
    import torch

    averaged = list(product(_averaged(tables), group_sizes))
    weights = [
        {(name, size): _weights(name, side, size) for name, size in averaged} for side in sides
    ]
    means = np.array([[each.mean(axis=(0, 1)) for each in own.values()] for own in weights])
    mean_weights = torch.as_tensor(means, dtype=torch.float32)
    inner: Any = 0.0
    between: Any = 0.0
    for scores in _scores(sides[0].model, sides):
        inner = inner + (scores @ scores.mT).double()
        mean = (mean_weights @ scores).double()
        between = between + (mean.sum(dim=0) ** 2 - (mean**2).sum(dim=0)).sum(dim=1)
    count = len(sides)
    found: Values = dict.fromkeys(product(BASELINES, group_sizes), 0.0)
    squares = dict.fromkeys(averaged, 0.0)
    for side, own, products in zip(sides, weights, inner.numpy(), strict=True):
        for size in group_sizes:
            vanilla, grpo = _weights("vanilla", side, size), own["grpo", size]
            oracles = [_weights("oracle", side, size, value=value) for value in side.values]
            pairs = {"vanilla": (vanilla, vanilla), "grpo": (grpo, grpo), "oracle": oracles}
            for name, (first, second) in pairs.items():
                found[name, size] += _spread(first, second, products) / count
        for key, each in own.items():
            squares[key] += _product(each, each, products) / count
    signals = (between / (count * (count - 1))).tolist()
    for (name, size), signal in zip(averaged, signals, strict=True):
        # Half the squared distance of two prompts' gradients.
        found[f"{NOISE} {name}", size] = squares[name, size] - signal
        found[f"{SIGNAL} {name}", size] = signal
    return found


def _averaged(tables: Sequence[str]) -> tuple[str, ...]:
    """The estimators whose noise and signal can be asked."""
    return tuple(dict.fromkeys(("grpo", *tables)))


def _weights(baseline: str, side: _Side, group_size: int, **known: float) -> Array:
    """What the gradient of each group takes of each score, (orders, groups, rollouts)."""
    count = len(side.rewards)
    groups = count // group_size
    members = side.orders[:, : groups * group_size].reshape(-1, group_size)
    weights = np.zeros((len(members), count))
    each = advantages(baseline, side.rewards[members], **known) / group_size
    np.put_along_axis(weights, members, each, axis=1)
    return weights.reshape(len(side.orders), groups, count)


def _spread(first: Array, second: Array, products: Array) -> float:
    """Trace of the sample covariance of two gradients over the groups of an order, its mean over orders."""
    groups = first.shape[1]
    one, other = (each - each.mean(axis=1, keepdims=True) for each in (first, second))
    return _product(one, other, products) * groups / (groups - 1)


def _product(first: Array, second: Array, products: Array) -> float:
    """The mean of <first s, second s> over groups and orders, from the products <sᵢ, sⱼ>."""
    return float(((first @ products) * second).sum(axis=2).mean())
