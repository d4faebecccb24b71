"""The scored pool that a command's options name or ask for."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from ..validation import InputError, integer
from .pool import ScoredPool, TokenWeights
from .printing import finite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .models import LanguageModel
    from .prompts import Task
    from .rollouts import Progress, Rollouts

__all__ = ["log_options", "make_folder", "on_policy_z", "scored_pool", "shown_progress"]

DOUBTFUL, ANOTHER = 4.0, 8.0
"""Standard errors of the on-policy test beyond which a pool is doubted, and refused."""

_EVERY = 30.0
"""Seconds between two lines of progress in a log."""


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """One bar on a terminal's stderr; in a log a line now and then."""
    if not sys.stderr.isatty():
        began = told = time.monotonic()

        def line(what: str, done: int, of: int) -> None:
            nonlocal told
            now = time.monotonic()
            if now - told >= _EVERY:
                told = now
                print(f"{what}: {done} of {of} prompts, {now - began:.0f} s", file=sys.stderr)

        yield line
        return
    from tqdm import tqdm

    with tqdm(unit="prompt", leave=False) as bar:

        def show(what: str, done: int, of: int) -> None:
            bar.set_description(what)
            bar.total, bar.n = of, done
            bar.refresh()

        yield show


def _parts(options: argparse.Namespace) -> tuple[LanguageModel, Task | None]:
    """The model and its task, None where a file of rollouts stands for it."""
    from .tasks import drawn, load_task

    if options.model is None:
        raise InputError("which model: --model with a hub id, a local folder or embedded:NAME")
    prompts = options.prompts
    if prompts is None:
        if not options.model.startswith("embedded:"):
            if options.rollouts is not None:
                # A file of rollouts may hold its prompts and rewards itself.
                if options.verifier is not None:
                    raise InputError(
                        "a verifier is of prompts: give --prompts, or leave out --verifier"
                    )
                return _model(options), None
            raise InputError(f"which prompts: --prompts, {options.model} has none of its own")
        prompts = options.model
    # Refused before the model is loaded.
    task = load_task(prompts, verifier=options.verifier, max_new_tokens=options.max_new_tokens)
    if options.rollouts is None:
        task = replace(task, prompts=tuple(drawn(task.prompts, options.limit, _seed(options))))
    model = _model(options)
    if options.max_new_tokens is None and options.rollouts is None:
        task = _fitting(task, model)
    return model, task


def _fitting(task: Task, model: LanguageModel) -> Task:
    """The task with answers no longer than fit the model's context beside the longest prompt."""
    from .models import tokenise

    room = model.context - max(len(tokenise(model, prompt)) for prompt in task.prompts)
    if not 1 <= room < task.max_new_tokens:
        return task
    print(f"answers have at most {room} tokens: more do not fit the context", file=sys.stderr)
    return replace(task, max_new_tokens=room)


def _seed(options: argparse.Namespace) -> int:
    return integer("seed", options.seed or 0, 0)


def _model(options: argparse.Namespace) -> LanguageModel:
    from .models import load_model, machine_device

    # A hub that cannot be reached is told once, by an error, and not at each attempt.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    lora = options.lora
    if lora is not None and lora.isdigit():
        lora = int(lora)
    return load_model(
        options.model,
        device=options.device or machine_device(),
        dtype=options.dtype,
        lora=lora,
        pad_token=options.pad_token,
    )


def log_options(options: argparse.Namespace) -> dict[str, Any]:
    """What of a trainer's log is a group, and what its rewards."""
    return {"group_by": options.group_by or (), "reward": options.reward}


def _token_weights(options: argparse.Namespace) -> TokenWeights | None:
    """What the options say of tokens' weights; None where they say nothing."""
    if getattr(options, "ratio", None) is None:
        return None
    low, high = options.clip or (None, None)
    return TokenWeights(ratio=options.ratio, clip=low, clip_high=high, truncate=options.truncate)


def scored_pool(
    options: argparse.Namespace,
    progress: Progress | None,
    settled: Callable[[ScoredPool], bool] | None = None,
) -> tuple[ScoredPool, tuple[LanguageModel, Task | None] | None]:
    """The scored pool that the options name or ask for, and what it was made of.

    Of a pool that grows each look is what ``--limit`` would make, until one of them settles it.
    """
    from .constants import look_sizes
    from .models import precision
    from .scoring import check_memory, score

    if options.scored is not None:
        return _on_policy(ScoredPool.load(options.scored), options), None
    model, task = _parts(options)
    scoring: dict[str, Any] = {
        "parameters": options.parameters or "all",
        "method": options.method or "hooks",
        "autocast_bf16": options.autocast,
    }
    if options.memory is not None:
        scoring["memory"] = options.memory
    if getattr(options, "by_length", False):
        scoring["by_length"] = True
    weights = _token_weights(options)
    rollouts_of, count = _rollouts(options, model, task, weights is not None, progress)
    if options.rollouts is None:
        assert task is not None
        # What scoring would refuse is refused before hours of sampling.
        check_memory(model, task, **scoring)
    config = {
        "task": None if task is None else task.name,
        # Of rollouts of one's own it draws the prompts alone.
        "seed": None
        if options.rollouts is not None and options.limit is None and settled is None
        else _seed(options),
        "dtype": precision(model),
    }
    sizes = (count,) if settled is None else look_sizes(count)
    if settled is not None:
        config["looks"] = len(sizes)
    with ExitStack() as stack:
        out = options.out
        if out is None and settled is not None:
            # What a look has drawn and scored is there for the next.
            out = Path(stack.enter_context(TemporaryDirectory()))
        for size in sizes:
            rollouts = rollouts_of(size, out)
            if getattr(options, "by_length", False) or weights is not None:
                _binary(rollouts)
            pool = score(
                model,
                rollouts,
                out=out,
                progress=progress,
                config=config,
                token_weights=weights,
                **scoring,
            )
            pool = _on_policy(pool, options)
            if settled is not None and settled(pool):
                break
    return pool, (model, task)


def _rollouts(
    options: argparse.Namespace,
    model: LanguageModel,
    task: Task | None,
    stale: bool,
    progress: Progress | None,
) -> tuple[Callable[[int, Path | None], list[Rollouts]], int]:
    """What gives the rollouts of so many prompts, kept in a folder, and how many prompts there are."""
    from .files import load_rollouts
    from .rollouts import collect
    from .tasks import drawn

    seed = _seed(options)
    if options.rollouts is not None:
        read = load_rollouts(options.rollouts, model, task, **log_options(options), stale=stale)
        own = drawn(read, options.limit, seed)
        return lambda size, _: drawn(own, size, seed), len(own)
    assert task is not None
    sampling: dict[str, Any] = {"backend": options.backend or "transformers"}
    if options.batch is not None:
        sampling["batch"] = integer("batch", options.batch)
    if options.vllm is not None:
        if sampling["backend"] != "vllm":
            raise InputError("--vllm is of vLLM's engine: add --backend vllm")
        sampling["vllm_options"] = dict(options.vllm)

    def sampled(size: int, out: Path | None) -> list[Rollouts]:
        some = replace(task, prompts=tuple(drawn(task.prompts, size, seed)))
        count = 64 if options.samples is None else options.samples
        return collect(model, some, count, seed=seed, out=out, progress=progress, **sampling)

    return sampled, len(task.prompts)


def _binary(rollouts: Sequence[Rollouts]) -> None:
    """Refuse, before anything is scored, rewards that tables by counts do not take."""
    for each in rollouts:
        if not np.isin(each.rewards, (0, 1)).all():
            raise InputError(
                f"prompt {each.prompt.id!r} has rewards that are not 0 or 1: --by-length and --ratio take "
                "these alone"
            )


def on_policy_z(pool: ScoredPool) -> float | None:
    """The pool's, as JSON has it."""
    return None if pool.on_policy_z is None else finite(pool.on_policy_z)


def _on_policy(pool: ScoredPool, options: argparse.Namespace) -> ScoredPool:
    """The pool, unless its tokens are too surprising, or too little, to be the scored policy's own.

    What was scored is kept by then: with --off-policy nothing is done anew.
    """
    z = pool.on_policy_z
    # Of a weighted pool another policy is known to have drawn them.
    if z is None or abs(z) <= DOUBTFUL or pool.weighted:
        return pool
    said = (
        f"the rollouts' tokens are {'more' if z > 0 else 'less'} surprising to this model than its own "
        f"would be: z = {z:+.1f}"
    )
    reasons = (
        "another temperature than 1, top-p, template, precision or model, or end tokens dropped"
    )
    if abs(z) > ANOTHER and not options.off_policy:
        raise InputError(
            f"{said}, where {ANOTHER:g} is the most that is taken for chance; {reasons}? Sample from "
            "this model, or go on with --off-policy: the estimates are then of no policy's gradient"
        )
    print(f"warning: {said}; {reasons}?", file=sys.stderr)
    return pool


def make_folder(folder: Path | None) -> None:
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder}: {error.strerror}") from None
