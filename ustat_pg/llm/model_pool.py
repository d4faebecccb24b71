"""A language model, its prompts and rollouts, of which a scored pool is made."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from ..validation import InputError, integer
from .pool import ScoredPool, TokenWeights

if TYPE_CHECKING:
    from .models import LanguageModel
    from .prompts import Task
    from .rollouts import Progress, Rollouts

__all__ = ["ModelPool", "refuse_another_policy"]

DOUBTFUL, ANOTHER = 4.0, 8.0
"""Standard errors of the on-policy test beyond which a pool is doubted, and refused."""

_LOG = logging.getLogger("ustat_pg.llm")


@dataclass(frozen=True, kw_only=True)
class ModelPool:
    """A model, prompts and rollouts, sampled or one's own, and how they are scored.

    Arguments:
        model: a hub id, a local folder, or embedded:NAME.
        prompts, verifier, max_new_tokens: those of :func:`~ustat_pg.llm.tasks.load_task`.
        rollouts, group_by, reward: a file of :func:`~ustat_pg.llm.files.load_rollouts`; sampled unless given.
        limit: take so many prompts, drawn by the seed; None for all.
        samples, seed, batch, backend: of sampling, see :func:`~ustat_pg.llm.rollouts.collect`.
        vllm: arguments of ``vllm.LLM``.
        device, dtype, lora, pad_token: those of :func:`~ustat_pg.llm.models.load_model`.
        parameters, method, autocast, memory, by_length, token_weights: those of
            :func:`~ustat_pg.llm.scoring.score_pool`.
        off_policy: go on with rollouts that another policy seems to have drawn.
        out: the folder that keeps everything, and that an interrupted call goes on from.
    """

    model: str
    prompts: str | None = None
    verifier: str | None = None
    max_new_tokens: int | None = None
    rollouts: Path | None = None
    group_by: Sequence[str] = ()
    reward: str | None = None
    limit: int | None = None
    samples: int = 64
    seed: int = 0
    batch: int | None = None
    backend: str = "transformers"
    vllm: Mapping[str, Any] | None = None
    device: str | None = None
    dtype: str | None = None
    lora: str | int | None = None
    pad_token: str | None = None
    parameters: Sequence[str] | str = "all"
    method: str = "hooks"
    autocast: bool = False
    memory: int | None = None
    by_length: bool = False
    token_weights: TokenWeights | None = None
    off_policy: bool = False
    out: Path | None = None

    def __post_init__(self) -> None:
        integer("seed", self.seed, 0)
        if self.vllm is not None and self.backend != "vllm":
            raise InputError("--vllm is of vLLM's engine: add --backend vllm")

    @cached_property
    def parts(self) -> tuple[LanguageModel, Task | None]:
        """The model and its task, None where a file of rollouts stands for it."""
        from .tasks import drawn, load_task

        prompts = self.prompts
        if prompts is None:
            if not self.model.startswith("embedded:"):
                if self.rollouts is None:
                    raise InputError(f"which prompts: --prompts, {self.model} has none of its own")
                # A file of rollouts may hold its prompts and rewards itself.
                if self.verifier is not None:
                    raise InputError(
                        "a verifier is of prompts: give --prompts, or leave out --verifier"
                    )
                return self._load(), None
            prompts = self.model
        # Refused before the model is loaded.
        task = load_task(prompts, verifier=self.verifier, max_new_tokens=self.max_new_tokens)
        if self.rollouts is None:
            task = replace(task, prompts=tuple(drawn(task.prompts, self.limit, self.seed)))
        model = self._load()
        if self.max_new_tokens is None and self.rollouts is None:
            task = _fitting(task, model)
        return model, task

    def _load(self) -> LanguageModel:
        from .models import load_model, machine_device

        # A hub that cannot be reached is told once, by an error, and not at each attempt.
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        lora = int(self.lora) if isinstance(self.lora, str) and self.lora.isdigit() else self.lora
        return load_model(
            self.model,
            device=self.device or machine_device(),
            dtype=self.dtype,
            lora=lora,
            pad_token=self.pad_token,
        )

    def pools(self, progress: Progress | None = None, looks: bool = False) -> Generator[ScoredPool]:
        """The scored pool; in looks a pool of more and more prompts, each of which ``limit`` would make.

        Arguments:
            progress: called after each prompt.
            looks: whether the pool grows until its reader stops.

        Raises:
            InputError: options that do not fit together, or rollouts of another policy.
        """
        from .constants import look_sizes
        from .models import precision
        from .scoring import check_memory, score

        if self.out is not None:
            try:
                self.out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"--out {self.out}: {error.strerror}") from None
        model, task = self.parts
        scoring: dict[str, Any] = {
            "parameters": self.parameters,
            "method": self.method,
            "autocast_bf16": self.autocast,
        }
        if self.memory is not None:
            scoring["memory"] = self.memory
        if self.by_length:
            scoring["by_length"] = True
        read = None if self.rollouts is None else self._read()
        if read is None:
            assert task is not None
            # What scoring would refuse is refused before hours of sampling.
            check_memory(model, task, **scoring)
            count = len(task.prompts)
        else:
            count = len(read)
        sizes = look_sizes(count) if looks else (count,)
        config = {
            "task": None if task is None else task.name,
            # Of rollouts of one's own it draws the prompts alone.
            "seed": None if read is not None and self.limit is None and not looks else self.seed,
            "dtype": precision(model),
            **({"looks": len(sizes)} if looks else {}),
        }
        with ExitStack() as stack:
            out = self.out
            if out is None and looks:
                # What a look has drawn and scored is there for the next.
                out = Path(stack.enter_context(TemporaryDirectory()))
            for size in sizes:
                rollouts = self._rollouts(size, read, out, progress)
                if self.by_length or self.token_weights is not None:
                    _binary(rollouts)
                pool = score(
                    model,
                    rollouts,
                    out=out,
                    progress=progress,
                    config=config,
                    token_weights=self.token_weights,
                    **scoring,
                )
                refuse_another_policy(pool, self.off_policy)
                yield pool

    def _read(self) -> Sequence[Rollouts]:
        """The rollouts of the file."""
        from .files import load_rollouts
        from .tasks import drawn

        assert self.rollouts is not None
        read = load_rollouts(
            self.rollouts,
            *self.parts,
            group_by=self.group_by,
            reward=self.reward,
            stale=self.token_weights is not None,
        )
        return drawn(read, self.limit, self.seed)

    def _rollouts(
        self,
        size: int,
        read: Sequence[Rollouts] | None,
        out: Path | None,
        progress: Progress | None,
    ) -> list[Rollouts]:
        """Rollouts of so many prompts, read or sampled, kept in a folder."""
        from .rollouts import collect
        from .tasks import drawn

        if read is not None:
            return list(drawn(read, size, self.seed))
        model, task = self.parts
        assert task is not None
        sampling: dict[str, Any] = {"backend": self.backend}
        if self.batch is not None:
            sampling["batch"] = integer("batch", self.batch)
        if self.vllm is not None:
            sampling["vllm_options"] = dict(self.vllm)
        some = replace(task, prompts=tuple(drawn(task.prompts, size, self.seed)))
        return collect(
            model, some, self.samples, seed=self.seed, out=out, progress=progress, **sampling
        )


def _fitting(task: Task, model: LanguageModel) -> Task:
    """The task with answers no longer than fit the model's context beside the longest prompt."""
    from .models import tokenise

    room = model.context - max(len(tokenise(model, prompt)) for prompt in task.prompts)
    if not 1 <= room < task.max_new_tokens:
        return task
    _LOG.info("answers have at most %d tokens: more do not fit the context", room)
    return replace(task, max_new_tokens=room)


def _binary(rollouts: Sequence[Rollouts]) -> None:
    """Refuse, before anything is scored, rewards that tables by counts do not take."""
    for each in rollouts:
        if not np.isin(each.rewards, (0, 1)).all():
            raise InputError(
                f"prompt {each.prompt.id!r} has rewards that are not 0 or 1: --by-length and --ratio take "
                "these alone"
            )


def refuse_another_policy(pool: ScoredPool, off_policy: bool) -> None:
    """Refuse a pool whose tokens are too surprising, or too little, to be the scored policy's own.

    What was scored is kept by then: with --off-policy nothing is done anew.
    """
    z = pool.on_policy_z
    # Of a weighted pool another policy is known to have drawn them.
    if z is None or abs(z) <= DOUBTFUL or pool.weighted:
        return
    said = (
        f"the rollouts' tokens are {'more' if z > 0 else 'less'} surprising to this model than its own "
        f"would be: z = {z:+.1f}"
    )
    reasons = (
        "another temperature than 1, top-p, template, precision or model, or end tokens dropped"
    )
    if abs(z) > ANOTHER and not off_policy:
        raise InputError(
            f"{said}, where {ANOTHER:g} is the most that is taken for chance; {reasons}? Sample from "
            "this model, or go on with --off-policy: the estimates are then of no policy's gradient"
        )
    _LOG.warning("warning: %s; %s?", said, reasons)
