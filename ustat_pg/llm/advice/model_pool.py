"""A language model with its prompts and rollouts, from which a scored pool is made.

A pool may grow until the group size is known well enough. The first look is at 32 prompts, each further look
at twice as many, and the last at all prompts. The number of looks L is known beforehand, and intervals at
each look have the error rate 5%/L. So the printed intervals have at least 95% coverage at whichever look the
pool stops (union bound).
"""

from __future__ import annotations

import logging
import re
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...files.reading import regular
from ...validation import InputError, argument, integer, one_of
from ..pool.scored import LEAST_ROLLOUTS, PLAIN, ScoredPool, TokenWeights

if TYPE_CHECKING:
    from ..models.loading import LanguageModel
    from ..prompts import Task
    from ..rollouts.stored import Progress, Rollouts

DOUBTFUL, ANOTHER = 4.0, 8.0
"""The standard errors of the on-policy test above which a pool gets a warning, and an error."""
FIRST = 32
"""The prompts of the first look; with fewer, the error of c1 is hardly known."""

METRICS = (PLAIN, "adam")
"""The metrics in which a model is scored."""

_SHORT = 60
"""Seconds of work that are not worth a message."""

_LOG = logging.getLogger("ustat_pg.llm")


@dataclass(frozen=True, kw_only=True)
class ModelPool:
    """A model with prompts, sampled or given rollouts, and the options of scoring.

    Arguments:
        model: as for :func:`~ustat_pg.llm.models.loading.model_source`.
        prompts, verifier, max_new_tokens, shots: as for :func:`~ustat_pg.llm.tasks.named.load_task`.
        rollouts, group_by, reward: a file, as for :func:`~ustat_pg.llm.rollouts.files.load_rollouts`
            (default: rollouts are sampled).
        limit: number of prompts to draw with the seed; None for all.
        samples, seed, batch: options of sampling, see :func:`~ustat_pg.llm.rollouts.stored.sample`.
        device, dtype, lora, pad_token: as for :func:`~ustat_pg.llm.models.loading.load_model`.
        parameters, method, autocast, memory, token_weights: as for
            :func:`~ustat_pg.llm.scores.scoring.score_pool`.
        metric: ``adam`` for the metric of Adam's step; the pool then also has the plain one.
        optimizer: file or folder of Adam's state (default: the model's folder), as for
            :func:`~ustat_pg.llm.scores.metric.adam_metric`.
        off_policy: go on with rollouts that another policy seems to have drawn.
        out: folder that keeps all results; an interrupted call continues from it.
    """

    model: str
    prompts: str | None = None
    verifier: str | None = None
    max_new_tokens: int | None = None
    shots: int | None = None
    rollouts: Path | None = None
    group_by: Sequence[str] = ()
    reward: str | None = None
    limit: int | None = None
    samples: int = 64
    seed: int = 0
    batch: int | None = None
    device: str | None = None
    dtype: str | None = None
    lora: str | int | None = None
    pad_token: str | None = None
    parameters: Sequence[str] | str = "all"
    method: str = "hooks"
    autocast: bool = False
    memory: int | None = None
    token_weights: TokenWeights | None = None
    metric: str = PLAIN
    optimizer: Path | None = None
    off_policy: bool = False
    out: Path | None = None

    def __post_init__(self) -> None:
        # This check comes first, because loading a model takes long.
        integer("seed", self.seed, 0)
        integer("samples", self.samples, LEAST_ROLLOUTS)
        for name in ("limit", "batch", "max_new_tokens", "memory"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name))
        if self.rollouts is not None and not (path := Path(self.rollouts)).is_dir():
            regular(path)
        one_of("metric", self.metric, METRICS)
        if self.metric == PLAIN and self.optimizer is not None:
            raise InputError(
                f"the plain metric has no optimizer: write {argument('metric', 'adam')} too, or leave it out"
            )

    @cached_property
    def parts(self) -> tuple[LanguageModel, Task | None]:
        """The model and its task; the task is None if a file of rollouts replaces it."""
        from ..models.loading import load_model, machine_device
        from ..tasks.named import drawn, load_task

        prompts, task = self.prompts, None
        if prompts is None and self.model.startswith("embedded:"):
            prompts = self.model
        # This check comes before the model is loaded.
        if prompts is not None:
            task = load_task(
                prompts,
                verifier=self.verifier,
                max_new_tokens=self.max_new_tokens,
                shots=self.shots,
            )
        elif self.rollouts is None:
            raise InputError(
                f"which prompts: write {argument('prompts', 'PROMPTS')}, {self.model} has none of its own"
            )
        elif self.verifier is not None or self.shots is not None:
            # A file of rollouts may contain its prompts and rewards.
            raise InputError("verifier and shots need prompts: give prompts, or leave them out")
        if task is not None and self.rollouts is None:
            task = replace(task, prompts=tuple(drawn(task.prompts, self.limit, self.seed)))
        # One error says that a hub cannot be reached, rather than one error per attempt.
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        lora = self.lora
        model = load_model(
            self.model,
            device=self.device or machine_device(),
            dtype=self.dtype,
            lora=int(lora) if isinstance(lora, str) and re.fullmatch("[0-9]{1,9}", lora) else lora,
            pad_token=self.pad_token,
        )
        if task is not None and self.max_new_tokens is None and self.rollouts is None:
            task = _fitting(task, model)
        return model, task

    def pools(
        self,
        progress: Progress | None = None,
        looks: bool = False,
        known: Callable[[NDArray[np.float64], list[int]], None] | None = None,
    ) -> Generator[ScoredPool]:
        """The scored pool; with looks, a sequence of growing pools, each equal to the pool with that
        ``limit``.

        ``known`` is called before scoring with the rewards of given rollouts, (P, N), and the numbers of
        their prompts. For sampled rollouts it is called only if no prompt has a signal, before all are scored
        in vain.
        """
        from ..models.loading import precision
        from ..rollouts.stored import VerifierWarning, same_prompts, sample
        from ..scores.scoring import check_memory, refuse_unequal, score_pool
        from ..tasks.named import drawn

        out = self.out
        if out is not None:
            try:
                out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"{out}: {error.strerror}") from None
        model, task = self.parts
        scoring: dict[str, Any] = {
            "parameters": self.parameters,
            "method": self.method,
            "autocast_bf16": self.autocast,
            "memory": self.memory,
        }
        origin: dict[str, Any] = {}
        if self.metric != PLAIN:
            state = self.optimizer or model.source
            if self.optimizer is None and not (model.source and Path(model.source).is_dir()):
                raise InputError(
                    f"which state of Adam: write {argument('optimizer', 'FILE')}, this model has no folder"
                )
            scoring["optimizer"], origin = state, {"optimizer": str(state)}
        whole: Sequence[Any]
        if self.rollouts is not None:
            from ..rollouts.files import load_rollouts

            read = load_rollouts(
                *(self.rollouts, model, task),
                group_by=self.group_by,
                reward=self.reward,
                stale=self.token_weights is not None,
            )
            groups: dict[int, list[Rollouts]] = {}
            for number, rollouts in zip(same_prompts(read), read, strict=True):
                groups.setdefault(number, []).append(rollouts)
            # Drawing a prompt takes all its groups.
            whole = drawn(list(groups.values()), self.limit, self.seed)
            flat = [*chain(*whole)]
            refuse_unequal(flat, model)
            if known is not None:
                known(np.stack([rollouts.rewards for rollouts in flat]), same_prompts(flat))
        else:
            assert task is not None
            # Errors of scoring are raised before hours of sampling.
            scoring["scores"] = check_memory(model, task, **scoring)
            whole = task.prompts
        sizes = look_sizes(len(whole)) if looks else (len(whole),)
        seeded = self.rollouts is None or self.limit is not None or looks
        config = {
            "task": None if task is None else task.name,
            # If rollouts come from a file, it draws only the prompts.
            "seed": self.seed if seeded else None,
            "dtype": precision(model),
            **({"looks": len(sizes)} if looks else {}),
            **origin,
        }

        def rollouts_of(part: Sequence[Any], progress: Progress | None) -> Sequence[Rollouts]:
            if self.rollouts is not None:
                return [*chain(*part)]
            assert task is not None
            return sample(
                *(model, replace(task, prompts=tuple(part)), self.samples),
                seed=self.seed,
                store=None if out is None else out / "rollouts.jsonl",
                batch=self.batch,
                progress=progress,
            )

        def scored(part: Sequence[Rollouts], progress: Progress | None) -> ScoredPool:
            if self.token_weights is not None:
                _refuse_graded(part)
            return score_pool(
                model,
                part,
                out=out,
                progress=progress,
                config=config,
                token_weights=self.token_weights,
                **scoring,
            )

        with ExitStack() as stack:
            if out is None:
                # The next look, and the work after a first prompt, find the earlier rollouts and scores here.
                out = Path(stack.enter_context(TemporaryDirectory()))
            # The message has been given already.
            if not any(out.iterdir()) and len(whole) > 1:
                times = [time.monotonic()]
                # An error of this prompt is raised only when all prompts are used, because a smaller pool may
                # not need it.
                with suppress(InputError), warnings.catch_warnings():
                    warnings.simplefilter("ignore", VerifierWarning)
                    first = rollouts_of(drawn(whole, sizes[0], self.seed)[:1], None)
                    times.append(time.monotonic())
                    scored(first, None)
                    times.append(time.monotonic())
                    _forecast(times, sizes)
            for size in sizes:
                part = rollouts_of(drawn(whole, size, self.seed), progress)
                if known is not None and size == sizes[-1] and self.rollouts is None:
                    rewards = np.stack([rollouts.rewards for rollouts in part])
                    if not np.ptp(rewards, axis=1).any():
                        known(rewards, same_prompts(part))
                pool = scored(part, progress)
                refuse_another_policy(pool, self.off_policy)
                yield pool


def _forecast(times: Sequence[float], sizes: Sequence[int]) -> None:
    """Log the estimated time for all prompts, from the time for the first one."""
    each = np.diff(times)
    if each.sum() * sizes[-1] < _SHORT:
        return
    words = [
        f"{each.sum() * size:.0f} s for {size} prompts (sampling {each[0] * size:.0f} s, "
        f"scores {each[1] * size:.0f} s)"
        for size in dict.fromkeys((sizes[0], sizes[-1]))
    ]
    _LOG.info("estimated from a first prompt: at most about %s", ", ".join(words))


def look_sizes(prompts: int) -> tuple[int, ...]:
    """The number of prompts at each look.

    >>> look_sizes(500), look_sizes(70), look_sizes(20)
    ((32, 64, 128, 256, 500), (32, 70), (20,))
    """
    sizes, size = [], FIRST
    # A last look with few additional prompts would be wasted.
    while 3 * size <= 2 * prompts:
        sizes.append(size)
        size *= 2
    return (*sizes, prompts)


def _fitting(task: Task, model: LanguageModel) -> Task:
    """The task with answers that are short enough for the model's context after the longest prompt."""
    from ..models.loading import tokenise

    room = model.context - max(len(tokenise(model, prompt)) for prompt in task.prompts)
    if not 1 <= room < task.max_new_tokens:
        return task
    _LOG.info("answers have at most %d tokens, because more do not fit the context", room)
    return replace(task, max_new_tokens=room)


def _refuse_graded(rollouts: Sequence[Rollouts]) -> None:
    """Raise an error before scoring if rewards do not suit tables by counts."""
    for group in rollouts:
        if not np.isin(group.rewards, (0, 1)).all():
            raise InputError(
                f"prompt {group.prompt.id!r} has rewards that are not 0 or 1: weights by ratio take "
                "these alone"
            )


def refuse_another_policy(pool: ScoredPool, off_policy: bool) -> None:
    """Raise an error if the tokens of a pool are too surprising, or not surprising enough, for the scored
    policy.

    The scores are already saved, so a call with ``off_policy`` does not repeat them.
    """
    z = pool.on_policy_z
    # A weighted pool always comes from another policy.
    if z is None or abs(z) <= DOUBTFUL or pool.weighted:
        return
    text = (
        f"the rollouts' tokens are {'more' if z > 0 else 'less'} surprising to this model than its own "
        f"would be: z = {z:+.1f}"
    )
    reasons = "a temperature other than 1, top-p, another template, precision or model, or dropped end tokens"
    if abs(z) > ANOTHER and not off_policy:
        raise InputError(
            f"{text}, but chance explains at most {ANOTHER:g}; {reasons}? Sample from this model, or "
            f"continue with {argument('off_policy')}: the estimates are then not of any policy's gradient"
        )
    _LOG.warning("warning: %s; %s?", text, reasons)
