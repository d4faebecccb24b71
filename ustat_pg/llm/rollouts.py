"""Rollouts: sampled completions of prompts with their rewards, stored as they come.

A completion is drawn from the model itself: temperature 1, nothing cut off, no penalties, whatever the
model's own generation settings say; else its probability would not be the model's and its score not
the gradient's. How it is drawn is :mod:`ustat_pg.llm.generation`.

A store is a JSONL file that is appended to line by line: a header with the configuration, then one line
for each finished prompt, written and synced as a whole. A line torn by an interruption is dropped, finished
prompts are never sampled again, and another configuration is refused. With a prompt's rewards goes a digest
of its text and columns and of the verifier's file: where it is another, the kept completions are verified
again.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..memory import in_slices
from ..reading import json_value, read_text
from ..validation import InputError, integer
from ..whole_files import versions
from .generation import Drawn, most_probable, transformers_draw
from .models import LanguageModel, check_lengths, end_tokens, tokenise, weights_digest
from .pool import LEAST_ROLLOUTS
from .prompts import (
    Prompt,
    Task,
    VerifierError,
    check_rewards,
    function_name,
    short,
    source_digest,
    verified_by,
)
from .vllm_process import vllm_draw

__all__ = [
    "Entry",
    "Progress",
    "Rollouts",
    "RolloutsList",
    "Store",
    "VerifierWarning",
    "check_log_probs",
    "collect",
    "decoded",
    "greedy_rewards",
    "lines",
    "read_store",
    "sample",
    "verify",
    "warn_of",
]

FORMAT = "ustat_pg rollouts 1"

MOST_LINES = 2**32
"""Size of the largest file of lines, in bytes: rollouts of language models are long."""

_START = json.dumps({"format": FORMAT}).encode()[:-1] + b", "
"""How every store of this format begins, and nothing else."""

_ROUNDING = 1e-3
"""How far above 0 half precision may put a log-probability."""


@dataclass(frozen=True, eq=False)
class Rollouts:
    """The completions of one prompt.

    Attributes:
        prompt: the prompt.
        prompt_ids: its tokens.
        completion_ids: the tokens of each of N completions, the end-of-text token included where
            it was sampled, padding stripped.
        texts: the completions, decoded without special tokens.
        rewards: (N,).
        log_probs: log-probabilities of the tokens under the policy that drew them, or None.
    """

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    rewards: NDArray[np.float64]
    log_probs: tuple[tuple[float, ...], ...] | None = None


class RolloutsList(list[Rollouts]):
    """Rollouts of several prompts; ``failed`` says at which prompts the verifier raised, and what."""

    def __init__(self, rollouts: Iterable[Rollouts] = (), failed: dict[str, str] | None = None):
        super().__init__(rollouts)
        self.failed = dict(failed or {})


@dataclass
class Entry:
    """What a store knows of a prompt; rewards are missing where the verifier raised.

    ``verified`` is a digest of what the rewards depend on besides the completions.
    """

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    rewards: NDArray[np.float64] | None = None
    verified: str | None = None
    log_probs: tuple[tuple[float, ...], ...] | None = None

    def rollouts(self, count: int | None = None) -> Rollouts:
        """The first of them; all unless said how many."""
        assert self.rewards is not None
        return Rollouts(
            self.prompt,
            self.prompt_ids,
            self.completion_ids[:count],
            self.texts[:count],
            self.rewards[:count],
            None if self.log_probs is None else self.log_probs[:count],
        )


class Store:
    """A JSONL file of rollouts, appended to line by line; without a path, memory only."""

    def __init__(self, path: str | Path | None, config: dict[str, Any], model: str):
        self.path = None if path is None else Path(path)
        self.entries: dict[str, Entry] = {}
        self._file: Any = None
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.path)
        self._file = self.path.open("ab")
        try:
            if _drop_torn_line(self.path):
                self._go_on(config)
            else:
                header = {"format": FORMAT, "config": config, "model": model}
                made_by = versions("ustat_pg", "torch", "transformers")
                self._line(header | {"versions": made_by})
        except BaseException:
            self.__exit__()
            raise

    def _go_on(self, config: dict[str, Any]) -> None:
        """Read what is there, if it was made with this configuration."""
        assert self.path is not None
        stored, self.entries = read_store(self.path)
        made = stored.get("config", {})
        for name, value in config.items():
            # Draws are addressed: those that are there are the first of any number.
            if name == "rollouts" and config["backend"] == "transformers" == made.get("backend"):
                continue
            if made.get(name) != value:
                raise InputError(
                    f"the store {self.path} was made with {name} = {made.get(name)!r}, and now "
                    f"{name} is {value!r}: name another store"
                )

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()
            self._lock.release()

    def write(self, entry: Entry, error: str | None) -> None:
        """Keep a prompt's completions, or its rewards where the completions are kept already."""
        before = self.entries.get(entry.prompt.id)
        known = before is not None and before.completion_ids == entry.completion_ids
        self.entries[entry.prompt.id] = entry
        if self._file is None:
            return
        verdict: dict[str, Any] = {
            "prompt": entry.prompt.text,
            "columns": entry.prompt.columns,
            "verified": entry.verified,
            "rewards": None if entry.rewards is None else entry.rewards.tolist(),
        }
        if error is not None:
            verdict["error"] = error
        if known:
            self._line({"id": entry.prompt.id, **verdict})
            return
        self._line(
            {
                "id": entry.prompt.id,
                "prompt_ids": entry.prompt_ids,
                "completion_ids": entry.completion_ids,
                "completions": entry.texts,
                "log_probs": entry.log_probs,
                **verdict,
            }
        )

    def _line(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _locked(path: Path) -> Any:
    """Hold a store for this run alone."""
    from filelock import FileLock, Timeout

    try:
        return FileLock(f"{path}.lock").acquire(timeout=0).lock
    except Timeout:
        raise InputError(
            f"the store {path} is being written by another run: wait for it, or name another"
        ) from None


def _drop_torn_line(path: Path) -> bool:
    """Cut what stands behind the last newline of a store; whether a whole line is left.

    Raises:
        InputError: the file does not begin as a store does; nothing is cut then.
    """
    with path.open("r+b") as file:
        data = file.read()
        # A store torn in its first bytes is all that may be shorter than these.
        if not data.startswith(_START) and not _START.startswith(data):
            raise no_store(path)
        end = data.rfind(b"\n") + 1
        if end < len(data):
            file.truncate(end)
    return end > 0


def check_log_probs(
    place: str, value: Any, completion_ids: Sequence[Sequence[int]]
) -> tuple[tuple[float, ...], ...] | None:
    """Log-probabilities of each token of each completion, or None.

    Raises:
        InputError: not a list of numbers for each completion, one for each token, none above 0.
    """
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != len(completion_ids):
        raise InputError(
            f"{place}, has log_probs {short(value)}: one list for each of {len(completion_ids)} "
            "completions is needed"
        )
    for i, (own, tokens) in enumerate(zip(value, completion_ids, strict=True)):
        if not isinstance(own, list) or len(own) != len(tokens):
            said = f"{len(own)}" if isinstance(own, list) else short(own)
            raise InputError(
                f"{place}, has log_probs {said} of completion {i}: one number for each of its "
                f"{len(tokens)} tokens is needed"
            )
        for log in own:
            known = isinstance(log, (int, float)) and not isinstance(log, bool)
            if not known or not -math.inf < log <= _ROUNDING:
                raise InputError(
                    f"{place}, has the log-probability {log!r} in completion {i}: each must be a finite "
                    "number, at most 0"
                )
    return tuple(tuple(map(float, own)) for own in value)


def no_store(path: Path) -> InputError:
    return InputError(
        f"{path} is no store of rollouts of this library (its first line has no format "
        f"{FORMAT!r}): it is left as it is; name another store"
    )


def lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file with their places, for messages; a torn last line is dropped."""
    rows = read_text(path, MOST_LINES).split("\n")
    store = rows[0].startswith('{"format": "ustat_pg rollouts')
    for number, line in enumerate(rows, 1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json_value(line, place)
        except InputError:
            if store and number == len(rows):
                return
            raise
        if not isinstance(row, dict):
            raise InputError(f"{place}, is {short(row)}: every line must be a JSON object")
        yield place, row


def read_store(path: Path) -> tuple[dict[str, Any], dict[str, Entry]]:
    """The header and the entries of our own store.

    Raises:
        InputError: the file is none, or damaged.
    """
    entries: dict[str, Entry] = {}
    header: dict[str, Any] = {}
    for place, row in lines(path):
        if not header:
            if row.get("format") != FORMAT:
                raise no_store(path)
            header = row
            continue
        try:
            name, rewards = row["id"], row["rewards"]
            if "completion_ids" in row:
                entries[name] = Entry(
                    Prompt(name, row["prompt"], row["columns"]),
                    tuple(row["prompt_ids"]),
                    tuple(tuple(ids) for ids in row["completion_ids"]),
                    tuple(row["completions"]),
                    log_probs=check_log_probs(place, row.get("log_probs"), row["completion_ids"]),
                )
            entry = entries[name]
            if "columns" in row:
                entry.prompt = Prompt(name, row["prompt"], row["columns"])
        except (KeyError, TypeError) as error:
            raise InputError(f"{place}, is damaged ({error!r} is missing)") from error
        entry.verified = row.get("verified")
        # A later line without rewards takes back what an earlier one gave.
        entry.rewards = (
            None if rewards is None else check_rewards(place, name, rewards, len(entry.texts))
        )
    return header, entries


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


Progress = Callable[[str, int, int], None]
"""Called with what is being done, the prompts done and all prompts."""


def collect(
    language_model: LanguageModel,
    task: Task,
    rollouts: int = 64,
    *,
    seed: int = 0,
    out: Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> list[Rollouts]:
    """Sampled rollouts of every prompt of a task.

    Arguments:
        language_model: what samples.
        task: prompts and verifier.
        rollouts: N, of each prompt.
        seed: of the draws.
        out: a folder, in which ``rollouts.jsonl`` grows; an interrupted call goes on there.
        progress: called after each prompt.
        options: batch, backend, vllm_options of :func:`~ustat_pg.llm.rollouts.sample`.

    Raises:
        InputError: as that function says, or a verifier that raised at every prompt.
    """
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    found = sample(
        language_model,
        task,
        rollouts,
        seed=seed,
        store=None if out is None else out / "rollouts.jsonl",
        progress=None if progress is None else lambda done, of: progress("sampled", done, of),
        **options,
    )
    if not found:
        raise InputError(
            f"the verifier raised at every prompt: {next(iter(found.failed.values()))}"
        )
    return list(found)


def greedy_rewards(
    language_model: LanguageModel, task: Task, names: Sequence[str]
) -> NDArray[np.float64]:
    """The rewards of one most probable completion of each prompt, (P,): the baseline of ReMax.

    They are constants of their prompts, so :func:`ustat_pg.llm.estimates.curves` has ReMax's error.

    Arguments:
        language_model: the policy.
        task: the prompts and the verifier.
        names: ids of prompts, in a pool's order.

    Raises:
        InputError: a prompt that the task has not, that with its completion is longer than the
            context, or at whose completion the verifier raised; or memory ran out.
    """
    known = {prompt.id: prompt for prompt in task.prompts}
    if unknown := [name for name in names if name not in known]:
        raise InputError(
            f"the task has no prompt {unknown[0]!r}: ReMax takes a greedy completion of each"
        )
    longest = task.max_new_tokens
    prompts = [tokenise(language_model, known[name]) for name in names]
    for name, ids in zip(names, prompts, strict=True):
        check_lengths(language_model, name, len(ids), longest)

    def greedy(part: slice) -> list[tuple[int, ...]]:
        return most_probable(language_model, prompts[part], longest)

    parts = in_slices(len(prompts), 64, "completions", greedy, lambda _: None)
    drawn = [tokens for _, part in parts for tokens in part]
    found = []
    for name, tokens in zip(names, drawn, strict=True):
        try:
            rewards = task.rewards(known[name], decoded(language_model, [tokens]), [tokens])
        except VerifierError as error:
            raise InputError(
                f"a greedy completion has no reward, which ReMax takes: {error}"
            ) from error
        found.append(float(rewards[0]))
    return np.array(found)
