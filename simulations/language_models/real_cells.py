"""Cells of a language model that somebody else trained, on prompts that are named.

One replication draws, at each of the prompts, two groups of every size, and takes half the squared
distance of their gradients: over all parameters, each baseline's by one backward pass of the
loss of the first group less that of the second. The oracle knows V from two samples of its own, and its
error is the product of the two distances that these give: a gradient is linear in its baseline, so that
this is the oracle's error on average, exactly. A pass keeps the squared norm of its gradient alone, no
completion's gradient is formed, and nothing is read of the code that scores pools.

The prompts are the same in all replications: what is measured is the mean error at these.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.metadata import version
from inspect import signature
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ustat_pg.digests import source_digest
from ustat_pg.estimators import advantages
from ustat_pg.validation import InputError

from .cells import BASELINES, LmQuantity, ModelCell, drawn, model_of

if TYPE_CHECKING:
    from ustat_pg.llm.models import LanguageModel
    from ustat_pg.llm.prompts import Task

Array = NDArray[np.float64]

_WORK = 2**18
"""Outputs of a bandit that take the time of a token in a group's forward and backward passes."""

_BLOCK = 2
"""Replications in a block."""


@lru_cache
def task_of(name: str, prompts: int) -> Task:
    """The first prompts of a task."""
    from ustat_pg.llm.tasks import load_task

    return load_task(name, limit=prompts)


@lru_cache
def _digest(task: str, prompts: int) -> str:
    """A digest of the prompts, and of the files and libraries that make a replication."""
    texts = [(prompt.text, prompt.columns) for prompt in task_of(task, prompts).prompts]
    libraries = f"{version('transformers')} {version('tokenizers')}"
    return source_digest(Path(__file__).resolve(), salt=f"{texts} {libraries}")


@dataclass(frozen=True)
class GroupCell(ModelCell):
    """A model on the same prompts of a task.

    Arguments:
        model: the model, as :func:`~ustat_pg.llm.models.load_model` takes it.
        weights: a digest of its weights.
        task: the task, as :func:`~ustat_pg.llm.tasks.load_task` takes it.
        prompts: number of its prompts, drawn once for all.
        length: number of a prompt's tokens, on average, which a replication's cost goes by.
        group_sizes: sizes of the groups, increasing; there are two of each size at every prompt.
        values: number of other rollouts that an oracle knows V from, of which there are two samples.
        device: where torch computes.
    """

    model: str
    weights: str
    task: str
    prompts: int
    length: float
    group_sizes: tuple[int, ...] = (2, 4)
    values: int = 6
    device: str = "cpu"

    block = _BLOCK

    def on(self, device: str) -> GroupCell:
        """The cell with its passes on a device."""
        return replace(self, device=device)

    @property
    def quantities(self) -> tuple[LmQuantity, ...]:
        both = product(BASELINES, self.group_sizes)
        return tuple(drawn(self.task, baseline, size) for baseline, size in both)

    @property
    def name(self) -> str:
        """Everything that a replication depends on but its number, the seed and the device."""
        sizes = self.prompts, self.group_sizes, self.values
        words = self.weights, self.task, sizes, _digest(self.task, self.prompts)
        return "groups-" + hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]

    @property
    def outputs(self) -> int:
        """The cost of a replication, in outputs of a bandit."""
        answer = task_of(self.task, self.prompts).max_new_tokens
        tokens = sum(self.length + 2 * size * answer for size in self.group_sizes)
        return round(self.prompts * tokens * _WORK)

    def pilot(self, replications: int) -> int:
        """A few blocks: errors are skewed, and one block would not see it."""
        return 4 * _BLOCK

    def shown(self, blocks: float) -> float:
        """At least the blocks that verdicts take."""
        return max(blocks, 8.0)

    def _replication(self, seed: int, number: int) -> dict[str, float]:
        """The mean error over prompts of each baseline in groups of each size, by label."""
        from ustat_pg.llm.generation import transformers_draw
        from ustat_pg.llm.models import tokenise
        from ustat_pg.llm.rollouts import decoded

        model = model_of(self.model, device=self.device, dtype="float32")
        task = task_of(self.task, self.prompts)
        sums = dict.fromkeys((quantity.label for quantity in self.quantities), 0.0)
        apart = 2 * self.values
        total = apart + 2 * self.group_size
        # Tasks of one data set name their prompts alike: each task has draws of its own.
        rows = [(f"{number}.{self.task}.{p.id}", tokenise(model, p)) for p in task.prompts]
        calls = transformers_draw(model, rows, total, task.max_new_tokens, seed, 256)
        draws = chain.from_iterable(calls)
        for prompt, (_, ids), (tokens, _) in zip(task.prompts, rows, draws, strict=True):
            rewards = task.rewards(prompt, decoded(model, tokens), tokens)
            values = rewards[:apart].reshape(2, -1).mean(axis=1)
            for size in self.group_sizes:
                groups = slice(apart, apart + 2 * size)
                errors = group_errors(model.model, ids, tokens[groups], rewards[groups], values)
                for baseline, error in errors.items():
                    sums[drawn(self.task, baseline, size).label] += error / self.prompts
        return sums


def group_errors(
    model: Any,
    prompt: Sequence[int],
    answers: Sequence[Sequence[int]],
    rewards: Array,
    values: Sequence[float],
) -> dict[str, float]:
    """Half the squared distance of the gradients of two groups at a prompt, by baseline.

    Arguments:
        model: the torch module, in eval mode.
        prompt: its tokens.
        answers: the tokens of each completion, those of the first group before those of the second.
        rewards: of the completions, (2G,).
        values: two estimates of V that are independent of the groups, and of each other.
    """
    import torch

    size = len(answers) // 2
    logs = log_probs(model, prompt, answers)
    sides = np.repeat([1.0, -1.0], size) / (2**0.5 * size)

    def distance(advantage: Array) -> float:
        """Half the squared distance of the gradients of the two groups' losses."""
        factors = torch.as_tensor(advantage * sides, dtype=logs.dtype, device=logs.device)
        return squared_norm(model, logs @ factors)

    @cache
    def of_ones() -> float:
        return distance(np.ones(2 * size))

    def square(advantage: Array) -> float:
        one = float(advantage[0])
        if not (advantage == one).all():
            return distance(advantage)
        # Most groups are of this kind, and share one pass.
        return one**2 * of_ones() if one else 0.0

    first, second = map(float, values)
    # With a and b the vectors of the two V, <a, b> = ‖(a + b) / 2‖² - ‖(a - b) / 2‖².
    apart = np.full(2 * size, (first - second) / 2)
    return {
        "grpo": square(np.asarray(advantages("grpo", rewards.reshape(2, size))).ravel()),
        "vanilla": square(rewards),
        "oracle": square(rewards - (first + second) / 2) - square(apart),
    }


def squared_norm(model: Any, loss: Any) -> float:
    """‖∇loss‖² by one backward pass, which drops each parameter's gradient once it is squared."""
    squares: list[Any] = []

    def take(parameter: Any) -> None:
        gradient = parameter.grad.flatten()
        squares.append((gradient @ gradient).double())
        parameter.grad = None

    hooks = [
        p.register_post_accumulate_grad_hook(take) for p in model.parameters() if p.requires_grad
    ]
    try:
        loss.backward(retain_graph=True)
    finally:
        for hook in hooks:
            hook.remove()
    return float(sum(squares))


def require_packed(language_model: LanguageModel, task: Task) -> None:
    """Refuse a model whose attention is not that of one causal mask, so that answers could not share a
    prompt, or which cannot be asked for the logits of some tokens alone.
    """
    import torch

    from ustat_pg.llm.models import tokenise

    ids = tokenise(language_model, task.prompts[0])
    answers = [ids[-2:], ids[:3], ids[-1:]]
    model = language_model.model
    if "logits_to_keep" not in signature(model.forward).parameters:
        raise InputError(
            f"{language_model.name} takes no logits_to_keep, by which models of transformers compute the "
            "logits of answers alone: this claim's passes need it"
        )
    with torch.no_grad():
        packed = log_probs(model, ids, answers).cpu()
        for answer, log in zip(answers, packed, strict=True):
            row = torch.tensor([[*ids, *answer]], device=model.device)
            logs = torch.log_softmax(model(row, use_cache=False).logits[0, :-1].float(), dim=-1)
            alone = logs.gather(1, row[0, 1:, None])[len(ids) - 1 :, 0].sum().cpu()
            if not torch.isclose(log, alone, rtol=1e-3, atol=1e-3):
                raise InputError(
                    f"{language_model.name} attends otherwise than by one causal mask: its answers cannot "
                    "share a prompt in one pass, as this claim's groups do"
                )


def log_probs(model: Any, prompt: Sequence[int], answers: Sequence[Sequence[int]]) -> Any:
    """log π of each answer to a prompt, (n,), in one pass: the answers share the prompt, and do not see
    each other.
    """
    import torch

    start, device = len(prompt), model.device
    places = [[start + t for t in range(len(answer))] for answer in answers]
    owners = torch.tensor([-1] * start + [i for i, place in enumerate(places) for _ in place])
    tokens = torch.tensor([*prompt, *(token for answer in answers for token in answer)])
    positions = torch.tensor([*range(start), *(t for place in places for t in place)])
    seen = (owners == -1) | (owners == owners[:, None])
    hidden = ~seen.tril()
    mask = torch.zeros(hidden.shape, dtype=model.dtype)
    mask = mask.masked_fill(hidden, torch.finfo(model.dtype).min)
    # The prompt's last token predicts the first one, and each token the next.
    rows = torch.arange(start, len(tokens))
    before = torch.where(positions[rows] == start, start - 1, rows - 1)
    logits = model(
        input_ids=tokens[None].to(device),
        position_ids=positions[None].to(device),
        attention_mask=mask[None, None].to(device),
        use_cache=False,
        logits_to_keep=before.to(device),
    ).logits[0]
    logs = torch.log_softmax(logits.float(), dim=-1)
    chosen = logs.gather(1, tokens[rows, None].to(device))[:, 0]
    return torch.zeros(len(answers), device=device).index_add(0, owners[rows].to(device), chosen)
