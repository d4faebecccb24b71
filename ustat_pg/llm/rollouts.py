"""Rollouts: sampled completions of prompts with their rewards, stored as they come.

A completion is drawn from the model itself: temperature 1, nothing cut off, no penalties, whatever the
model's own generation settings say; else its probability would not be the model's and its score not
the gradient's. How it is drawn is :mod:`ustat_pg.llm.generation`, where it is kept
:mod:`ustat_pg.llm.store`. With a prompt's rewards goes a digest of its text and columns and of the
verifier's file: where it is another, the kept completions are verified again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from ..validation import InputError, integer
from .generation import Drawn, transformers_draw
from .models import LanguageModel, check_lengths, end_tokens, tokenise, weights_digest
from .prompts import Task, VerifierError
from .scored import LEAST_ROLLOUTS
from .store import Entry, RolloutsList, Store
from .verifiers import function_name, source_digest, verified_by
from .vllm_process import vllm_draw

__all__ = ["VerifierWarning", "decoded", "sample", "verify", "warn_of"]


class VerifierWarning(RuntimeWarning):
    """A verifier raised at some prompts; they are left out, and named."""


def sample(
    language_model: LanguageModel,
    task: Task,
    rollouts: int = 64,
    *,
    seed: int = 0,
    store: str | Path | None = None,
    batch: int | None = None,
    backend: str = "transformers",
    vllm_options: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RolloutsList:
    """Sample completions of every prompt and reward them.

    A verifier that raises costs its prompt only: the completions are kept, a
    :class:`VerifierWarning` names the prompts, and the next run with the same store verifies them
    again without sampling. So it does where a prompt's text or columns, or the file that the verifier
    is defined in, have changed since; other modules that the verifier imports are not looked at.

    A store is topped up: of more rollouts than it has only those that are missing are drawn, and then all
    of that prompt are verified; of fewer the first are given. All are the same as if drawn at once, to the
    rounding of the model. vLLM's draws are not, and another number is refused.

    Arguments:
        language_model: see :func:`ustat_pg.llm.models.load_model`.
        task: prompts and verifier.
        rollouts: completions of each prompt, N >= 4.
        seed: the seed of the draws.
        store: a JSONL file to write to, and to go on from if it exists.
        batch: completions at a time, 256 unless given; where memory runs out, fewer are taken, with a
            warning. Through vLLM, which divides a call itself, 16,384.
        backend: ``"transformers"``, or ``"vllm"`` where it is installed, in a process of its own
            (:mod:`ustat_pg.llm.vllm_process`). vLLM draws with its own seeds, and its logits differ a
            little from those that score the completions.
        vllm_options: further arguments of ``vllm.LLM``, for instance ``gpu_memory_utilization``.
        progress: called with the prompts done and all prompts.

    Returns:
        the rollouts in the order of the task's prompts, without those whose verifier raised; their
        messages are in ``failed``.

    Raises:
        InputError: fewer than 4 rollouts, a prompt too long for the context, rewards that are no
            numbers, a store of another configuration, no vLLM, or memory ran out.
    """
    integer("rollouts", rollouts, LEAST_ROLLOUTS)
    if batch is not None:
        integer("batch", batch)
    integer("seed", seed, 0)
    if backend not in ("transformers", "vllm"):
        raise InputError(f'backend is {backend!r}: it must be "transformers" or "vllm"')
    ids = {}
    for prompt in task.prompts:
        ids[prompt.id] = tokenise(language_model, prompt)
        check_lengths(language_model, prompt.id, len(ids[prompt.id]), task.max_new_tokens)
    config = {
        "weights": None if store is None else weights_digest(language_model.model),
        "task": task.name,
        "verifier": function_name(task.verifier),
        "seed": seed,
        "rollouts": rollouts,
        "max_new_tokens": task.max_new_tokens,
        "end_tokens": list(end_tokens(language_model)),
        "backend": backend,
    }
    source = source_digest(task.verifier)
    with Store(store, config, language_model.name) as kept:
        for prompt in task.prompts:
            entry = kept.entries.get(prompt.id)
            if entry is not None and entry.prompt_ids != ids[prompt.id]:
                raise InputError(
                    f"the store {store} has another prompt {prompt.id!r}: it belongs to other "
                    "prompts; name another store"
                )
        missing = [prompt for prompt in task.prompts if _held(kept, prompt.id) < rollouts]
        # Those that have equally many go on together.
        missing.sort(key=lambda prompt: _held(kept, prompt.id))

        def draws() -> Generator[Drawn, None, None]:
            given = task.max_new_tokens, seed
            for first, group in groupby(missing, key=lambda prompt: _held(kept, prompt.id)):
                named = [(prompt.id, ids[prompt.id]) for prompt in group]
                if backend == "vllm":
                    yield from vllm_draw(
                        language_model, named, rollouts, *given, batch, vllm_options
                    )
                else:
                    more = rollouts - first
                    yield from transformers_draw(
                        language_model, named, more, *given, batch or 256, first
                    )

        result = RolloutsList()
        done = len(task.prompts) - len(missing)
        if progress is not None:
            progress(done, len(task.prompts))
        # What draws ends with this, and not when an error is forgotten.
        with closing(draws()) as every:
            for prompt, drawn in zip(missing, every, strict=True):
                texts = decoded(language_model, drawn.tokens)
                entry = Entry(
                    prompt, ids[prompt.id], drawn.tokens, texts, log_probs=drawn.log_probs
                )
                if (held := kept.entries.get(prompt.id)) is not None:
                    entry = _joined(held, entry)
                entry.verified = verified_by(prompt, source)
                verify(task, entry, result.failed, kept)
                done += 1
                if progress is not None:
                    progress(done, len(task.prompts))
        fresh = {prompt.id for prompt in missing}
        for prompt in task.prompts:
            entry = kept.entries[prompt.id]
            now = verified_by(prompt, source)
            if prompt.id not in fresh and (entry.rewards is None or entry.verified != now):
                # The old rewards must not outlive a verifier that raises now.
                entry.prompt, entry.rewards, entry.verified = prompt, None, now
                verify(task, entry, result.failed, kept)
            if entry.rewards is not None:
                result.append(entry.rollouts(rollouts))
    where = "" if store is None else f"; {store} keeps their completions for the next run"
    warn_of(result.failed, len(task.prompts), where)
    return result


def _held(kept: Store, name: str) -> int:
    """How many completions of a prompt a store has."""
    entry = kept.entries.get(name)
    return 0 if entry is None else len(entry.completion_ids)


def _joined(held: Entry, more: Entry) -> Entry:
    """A prompt's completions that are kept and further ones; not yet verified."""
    known = held.log_probs is not None and more.log_probs is not None
    return replace(
        more,
        completion_ids=held.completion_ids + more.completion_ids,
        texts=held.texts + more.texts,
        log_probs=(held.log_probs or ()) + (more.log_probs or ()) if known else None,
    )


def verify(task: Task, entry: Entry, failed: dict[str, str], kept: Store | None) -> None:
    """Reward a prompt's completions and store them; a raising verifier is noted, bad rewards end it.

    Completions are stored in every case: sampling is what costs.
    """
    try:
        entry.rewards = task.rewards(entry.prompt, entry.texts, entry.completion_ids)
    except VerifierError as error:
        failed[entry.prompt.id] = str(error)
    except InputError as error:
        if kept is not None:
            kept.write(entry, str(error))
        raise
    if kept is not None:
        kept.write(entry, failed.get(entry.prompt.id))


def warn_of(failed: dict[str, str], prompts: int, where: str = "") -> None:
    """Warn of the prompts whose verifier raised."""
    if failed:
        shown = "; ".join(list(failed.values())[:3]) + ("; ..." if len(failed) > 3 else "")
        warnings.warn(
            f"the verifier raised at {len(failed)} of {prompts} prompts, which are left out"
            f"{where}: {shown}",
            VerifierWarning,
            stacklevel=3,
        )


def decoded(language_model: LanguageModel, completions: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """Completions as text, without special tokens."""
    return tuple(
        language_model.tokenizer.batch_decode(
            [list(ids) for ids in completions],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
    )
