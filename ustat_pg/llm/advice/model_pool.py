"""A language model, its prompts and rollouts, of which a scored pool is made.

A pool may grow until the group size is known well enough. The first look is at 32 prompts, each further one
at twice as many, the last at all that there are. How many looks there may be is known beforehand, and
intervals at each err at 5%/L, L that number: so whichever look is the last, and for whatever reason, those
that it prints hold 95% (union bound).
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
from ...validation import InputError, argument, integer
from ..pool.scored import LEAST_ROLLOUTS, ScoredPool, TokenWeights

if TYPE_CHECKING:
    from ..models.loading import LanguageModel
    from ..prompts import Task
    from ..rollouts.stored import Progress, Rollouts

DOUBTFUL, ANOTHER = 4.0, 8.0
"""Standard errors of the on-policy test beyond which a pool is doubted, and refused."""
FIRST = 32
"""Prompts of the first look: with fewer, errors of c1 are hardly known."""

_SHORT = 60
"""Seconds of work that nobody needs to hear of."""

_LOG = logging.getLogger("ustat_pg.llm")


@dataclass(frozen=True, kw_only=True)
class ModelPool:
    """A model, prompts and rollouts, sampled or one's own, and how they are scored.

    Arguments:
        model: as :func:`~ustat_pg.llm.models.loading.model_source` takes it.
        prompts, verifier, max_new_tokens, shots: those of :func:`~ustat_pg.llm.tasks.named.load_task`.
        rollouts, group_by, reward: a file of :func:`~ustat_pg.llm.rollouts.files.load_rollouts`; sampled
            unless given.
        limit: the number of prompts to take, drawn by the seed; None for all.
        samples, seed, batch: of sampling, see :func:`~ustat_pg.llm.rollouts.stored.sample`.
        device, dtype, lora, pad_token: those of :func:`~ustat_pg.llm.models.loading.load_model`.
        parameters, method, autocast, memory, token_weights: those of
            :func:`~ustat_pg.llm.scores.scoring.score_pool`.
        off_policy: go on with rollouts that another policy seems to have drawn.
        out: the folder that keeps everything, and that an interrupted call goes on from.
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
    off_policy: bool = False
    out: Path | None = None

    def __post_init__(self) -> None:
        # Refused before a model is loaded, which takes long.
        integer("seed", self.seed, 0)
        integer("samples", self.samples, LEAST_ROLLOUTS)
        for name in ("limit", "batch", "max_new_tokens", "memory"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name))
        if self.rollouts is not None and not (path := Path(self.rollouts)).is_dir():
            regular(path)

    @cached_property
    def parts(self) -> tuple[LanguageModel, Task | None]:
        """The model and its task, None where a file of rollouts stands for it."""
        from ..models.loading import load_model, machine_device
        from ..tasks.named import drawn, load_task

        prompts, task = self.prompts, None
        if prompts is None and self.model.startswith("embedded:"):
            prompts = self.model
        # Refused before the model is loaded.
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
            # A file of rollouts may hold its prompts and rewards itself.
            raise InputError("verifier and shots need prompts: give prompts, or leave them out")
        if task is not None and self.rollouts is None:
            task = replace(task, prompts=tuple(drawn(task.prompts, self.limit, self.seed)))
        # An error says once that a hub cannot be reached, and not at each attempt.
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
        """The scored pool; in looks a pool of more and more prompts, each of which ``limit`` would make.

        Rewards of one's own rollouts, (P, N), and the numbers of their prompts go to ``known`` before
        anything is scored; of sampled ones where no prompt has a signal, before all are scored in vain.
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
            # A prompt is drawn with all its groups.
            whole = drawn(list(groups.values()), self.limit, self.seed)
            flat = [*chain(*whole)]
            refuse_unequal(flat, model)
            if known is not None:
                known(np.stack([rollouts.rewards for rollouts in flat]), same_prompts(flat))
        else:
            assert task is not None
            # Refuse before hours of sampling what scoring would refuse.
            scoring["scores"] = check_memory(model, task, **scoring)
            whole = task.prompts
        sizes = look_sizes(len(whole)) if looks else (len(whole),)
        seeded = self.rollouts is None or self.limit is not None or looks
        config = {
            "task": None if task is None else task.name,
            # With rollouts from a file it draws the prompts alone.
            "seed": self.seed if seeded else None,
            "dtype": precision(model),
            **({"looks": len(sizes)} if looks else {}),
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
                # The next look, and what comes after a first prompt, find here what was drawn and scored.
                out = Path(stack.enter_context(TemporaryDirectory()))
            # What goes on has been told.
            if not any(out.iterdir()) and len(whole) > 1:
                times = [time.monotonic()]
                # What is wrong with this prompt is said when all are taken: others may do without it.
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
    """Say what all prompts will take, from the times before and after a first one is sampled and scored."""
    each = np.diff(times)
    if each.sum() * sizes[-1] < _SHORT:
        return
    words = [
        f"{each.sum() * size:.0f} s for {size} prompts (sampling {each[0] * size:.0f} s, "
        f"scores {each[1] * size:.0f} s)"
        for size in dict.fromkeys((sizes[0], sizes[-1]))
    ]
    _LOG.info("by a first prompt at most about %s", ", ".join(words))


def look_sizes(prompts: int) -> tuple[int, ...]:
    """The number of prompts at each look.

    >>> look_sizes(500), look_sizes(70), look_sizes(20)
    ((32, 64, 128, 256, 500), (32, 70), (20,))
    """
    sizes, size = [], FIRST
    # A last look at little more than the one before would be spent for nothing.
    while 3 * size <= 2 * prompts:
        sizes.append(size)
        size *= 2
    return (*sizes, prompts)


def _fitting(task: Task, model: LanguageModel) -> Task:
    """The task with answers no longer than fit the model's context beside the longest prompt."""
    from ..models.loading import tokenise

    room = model.context - max(len(tokenise(model, prompt)) for prompt in task.prompts)
    if not 1 <= room < task.max_new_tokens:
        return task
    _LOG.info("answers have at most %d tokens: more do not fit the context", room)
    return replace(task, max_new_tokens=room)


def _refuse_graded(rollouts: Sequence[Rollouts]) -> None:
    """Refuse, before anything is scored, rewards that tables by counts do not take."""
    for group in rollouts:
        if not np.isin(group.rewards, (0, 1)).all():
            raise InputError(
                f"prompt {group.prompt.id!r} has rewards that are not 0 or 1: weights by ratio take "
                "these alone"
            )


def refuse_another_policy(pool: ScoredPool, off_policy: bool) -> None:
    """Refuse a pool whose tokens are too surprising, or too little, to be the scored policy's own.

    The scores are kept by then: with ``off_policy`` nothing is done anew.
    """
    z = pool.on_policy_z
    # A weighted pool is known to come from another policy.
    if z is None or abs(z) <= DOUBTFUL or pool.weighted:
        return
    text = (
        f"the rollouts' tokens are {'more' if z > 0 else 'less'} surprising to this model than its own "
        f"would be: z = {z:+.1f}"
    )
    reasons = (
        "another temperature than 1, top-p, template, precision or model, or end tokens dropped"
    )
    if abs(z) > ANOTHER and not off_policy:
        raise InputError(
            f"{text}, where {ANOTHER:g} is the most that is taken for chance; {reasons}? Sample from "
            f"this model, or go on with {argument('off_policy')}: the estimates are then of no policy's "
            "gradient"
        )
    _LOG.warning("warning: %s; %s?", text, reasons)
