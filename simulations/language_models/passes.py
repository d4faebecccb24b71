"""Rollouts of a model at a few prompts, scored as a pool, and backward passes independent of that scoring.

The draws, and the key under which they are stored, do not depend on formulas of moments or
errors. If only formulas have changed, the same rollouts and scores are read again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from inspect import signature
from itertools import chain
from pathlib import Path
from threading import Lock, local
from typing import TYPE_CHECKING, Any

import numpy as np

from ustat_pg.estimators import advantages
from ustat_pg.files.digests import source_digest
from ustat_pg.files.whole import versions
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.validation import Array, InputError

if TYPE_CHECKING:
    from ustat_pg.llm.models.loading import LanguageModel
    from ustat_pg.llm.prompts import Task


_THREAD = local()
LOADING = Lock()
"""A lock, because loading sets torch's default type, which all threads share."""


def model_of(name: str, **how: str) -> LanguageModel:
    """A model for this thread only. Drawing changes its settings temporarily, and hooks
    of two threads on one module would conflict.
    """
    import torch

    from ustat_pg.llm.models.loading import load_model

    if not hasattr(_THREAD, "models"):
        _THREAD.models = {}
        torch.set_num_threads(1)
    key = name, *how.values()
    if key not in _THREAD.models:
        with LOADING:
            _THREAD.models[key] = load_model(name, **how)
    model: LanguageModel = _THREAD.models[key]
    return model


@lru_cache
def task_of(name: str, prompts: int) -> Task:
    """The first prompts of a task."""
    from ustat_pg.llm.tasks.named import load_task

    return load_task(name, limit=prompts)


@dataclass(frozen=True)
class Source:
    """A model and the same prompts of a task, of which a replication takes rollouts.

    Arguments:
        model: the model, as :func:`~ustat_pg.llm.models.loading.load_model` takes it.
        weights: a digest of its weights.
        task: the task, as :func:`~ustat_pg.llm.tasks.named.load_task` takes it.
        prompts: number of its prompts.
        group_sizes: sizes of the groups that are differentiated, two of each size.
        rollouts: number of scored ones at each prompt, at least twice the largest size.
        values: number of other rollouts from which an oracle estimates V; there are two such samples.
        device: the device on which torch computes.
    """

    model: str
    weights: str
    task: str
    prompts: int
    group_sizes: tuple[int, ...]
    rollouts: int
    values: int
    device: str = "cpu"

    @property
    def key(self) -> str:
        """Everything that a replication's rollouts and scores depend on, except its number, the seed
        and the device.
        """
        sizes = self.prompts, self.group_sizes, self.rollouts, self.values
        words = self.weights, self.task, sizes, _digest(self.task, self.prompts)
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]

    def replication(self, seed: int, number: int, folder: Path | None = None) -> ScoredPool:
        """The pool of a replication: with ``values`` in its ``config``, two at each prompt, and the
        errors of two groups of each size at one of the prompts, ``passed``, from separate passes.

        Arguments:
            seed, number: the address of the draws.
            folder: the place where it is stored and read; by default it is not stored.
        """
        file = None
        if folder is not None:
            file = folder / f"{self.key}-{self.device.partition(':')[0]}-{seed}-{number}.npz"
            if file.exists():
                # A damaged file counts as missing.
                with suppress(InputError):
                    return ScoredPool.load(file)
        pool = self._made(seed, number)
        if file is not None:
            pool.save(file)
        return pool

    def _made(self, seed: int, number: int) -> ScoredPool:
        from ustat_pg.llm.models.generation import transformers_draw
        from ustat_pg.llm.models.loading import tokenise
        from ustat_pg.llm.rollouts.stored import Rollouts, decoded
        from ustat_pg.llm.scores.scoring import pool_of_scores

        model = model_of(self.model, device=self.device, dtype="float32")
        task = task_of(self.task, self.prompts)
        apart = 2 * self.values
        # Tasks of one data set use the same prompt names, so each task has its own draws.
        rows = [(f"{number}.{self.task}.{p.id}", tokenise(model, p)) for p in task.prompts]
        total = apart + self.rollouts
        calls = transformers_draw(model, rows, total, task.max_new_tokens, seed, 256)
        made, values = [], []
        draws = chain.from_iterable(calls)
        for prompt, (_, ids), (tokens, _) in zip(task.prompts, rows, draws, strict=True):
            rewards = task.rewards(prompt, decoded(model, tokens), tokens)
            values.append(rewards[:apart].reshape(2, -1).mean(axis=1).tolist())
            answers, texts = tuple(map(tuple, tokens[apart:])), ("",) * self.rollouts
            made.append(Rollouts(prompt, tuple(ids), answers, texts, rewards[apart:]))
        pool = pool_of_scores(_scores_of(model.model), made)
        place = int(np.random.default_rng([seed, number]).integers(self.prompts))
        one, passed = made[place], {}
        for size in self.group_sizes:
            few = one.first(2 * size)
            answers, rewards = few.completion_ids, few.rewards
            errors = group_errors(model.model, one.prompt_ids, answers, rewards, values[place])
            passed[str(size)] = errors
        return replace(pool, config={"values": values, "place": place, "passed": passed})


@lru_cache
def _digest(task: str, prompts: int) -> str:
    """A digest of the prompts, and of the files and libraries that affect a replication."""
    texts = [(prompt.text, prompt.columns) for prompt in task_of(task, prompts).prompts]
    libraries = versions("numpy", "tokenizers", "torch", "transformers")
    return source_digest(Path(__file__).resolve(), salt=f"{texts} {libraries}")


def _scores_of(model: Any) -> Any:
    """The scorer of rollouts of this thread's model; it is compared with autograd at its first use."""
    from ustat_pg.llm.scores import Scores

    if not hasattr(_THREAD, "scores"):
        _THREAD.scores = {}
    if id(model) not in _THREAD.scores:
        _THREAD.scores[id(model)] = Scores(model)
    return _THREAD.scores[id(model)]


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
        prompt: the prompt's tokens.
        answers: the tokens of each completion, those of the first group before those of the second.
        rewards: rewards of the completions, (2G,).
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
        # Most groups are of this kind and share one pass.
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
    """‖∇loss‖² from one backward pass, which drops each parameter's gradient after squaring it."""
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
    """Refuse a model whose attention does not use one causal mask, because answers could not share a
    prompt, or which cannot return the logits of some tokens only.
    """
    import torch

    from ustat_pg.llm.models.loading import tokenise

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
    """log π of each answer to a prompt, (n,), in one pass: the answers share the prompt, but do not attend to
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
