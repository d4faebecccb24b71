"""Rollouts: sampled completions of prompts with their rewards, stored as soon as they are drawn.

A completion is drawn from the model itself: temperature 1, no truncation, no penalties, without the model's
    own generation settings; otherwise its probability would not be the model's, and its score not that of the
    gradient. :mod:`ustat_pg.llm.models.generation` draws it.

A store is a JSONL file that is appended to line by line: a header with the configuration, then one line
for each finished prompt, written and synced as a whole. A line that an interruption cut is dropped, finished
prompts are never sampled again, and another configuration is an error. A digest of the prompt's text and
columns and of the verifier's file is stored with the rewards; if it differs, the stored completions are
verified again.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ...execution.memory import refuse_beyond
from ...files.reading import json_value, read_text
from ...files.whole import versions
from ...validation import InputError, integer
from ..models.generation import Drawn, transformers_draw
from ..models.loading import LanguageModel, check_lengths, end_tokens, tokenise, weights_digest
from ..pool.scored import LEAST_ROLLOUTS
from ..prompts import Prompt, Task, VerifierError, function_name, short, source_digest, verified_by

FORMAT = "ustat_pg rollouts 1"

MOST_LINES = 2**32
"""Size of the largest file of lines, in bytes: rollouts of language models are long."""

_COMPLETION = 160
"""The bytes of the shortest completion: its tokens, their log-probabilities and its text."""

_START = json.dumps({"format": FORMAT}).encode()[:-1] + b", "
"""The beginning of every store of this format, and of no other file."""

Progress = Callable[[str, int, int], None]
"""A function that is called with a word for the work, the number of finished prompts and of all prompts."""

NONE = np.empty(0)
"""The rewards of completions without rewards."""


@dataclass(frozen=True, eq=False)
class Rollouts:
    """The completions of one prompt.

    Attributes:
        prompt: the prompt.
        prompt_ids: its tokens.
        completion_ids: tokens of each of N completions, including the end-of-text token if it was sampled,
            without padding.
        texts: the completions, decoded without special tokens.
        rewards: (N,); in a store also (0,), if the verifier raised an error.
        log_probs: log-probabilities of the tokens under the policy that drew them, or None.
        verified: digest of everything that the rewards depend on, except the completions.
        logged: whether this is a group of a log, in which the prompt may repeat.
    """

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    rewards: NDArray[np.float64] = field(default_factory=lambda: NONE)
    log_probs: tuple[tuple[float, ...], ...] | None = None
    verified: str | None = None
    logged: bool = False

    def first(self, count: int) -> Rollouts:
        """The first completions, with their rewards."""
        return replace(
            self,
            completion_ids=self.completion_ids[:count],
            texts=self.texts[:count],
            rewards=self.rewards[:count],
            log_probs=None if self.log_probs is None else self.log_probs[:count],
        )

    def joined(self, more: Rollouts) -> Rollouts:
        """These completions and further completions of the same prompt, not yet verified."""
        both = self.log_probs is not None and more.log_probs is not None
        return replace(
            more,
            completion_ids=self.completion_ids + more.completion_ids,
            texts=self.texts + more.texts,
            log_probs=(self.log_probs or ()) + (more.log_probs or ()) if both else None,
        )


class RolloutsList(list[Rollouts]):
    """Rollouts of several prompts; ``failed`` has the errors of the verifier by the prompts' ids."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}


def same_prompts(rollouts: Sequence[Rollouts]) -> list[int]:
    """The number of each entry's prompt; groups of a log with the same tokens have the same number.

    Prompts of a user's list count as different even if their texts are equal, because each was drawn
    separately.
    """
    seen: dict[Any, int] = {}
    keys = (each.prompt_ids if each.logged else place for place, each in enumerate(rollouts))
    return [seen.setdefault(key, len(seen)) for key in keys]


class LogWarning(RuntimeWarning):
    """Rows or groups of a log are left out; the message gives their number."""


class VerifierWarning(RuntimeWarning):
    """A verifier raised errors at some prompts; the message names them, and they are left out."""


# The store.


class _Store:
    """Rollouts by their prompts' ids, and the JSONL file to which they are appended, if any."""

    def __init__(self, file: IO[bytes] | None = None):
        self.rollouts: dict[str, Rollouts] = {}
        self._file = file

    def count(self, prompt: Prompt) -> int:
        """The number of completions of a prompt."""
        return len(self.rollouts[prompt.id].texts) if prompt.id in self.rollouts else 0

    def verify(self, task: Task, rollouts: Rollouts, failed: dict[str, str]) -> None:
        """Reward completions and keep both; an error in rewards does not lose completions, because sampling
        is expensive.
        """
        try:
            rollouts = verify(task, rollouts, failed)
        except InputError as error:
            self._keep(rollouts, str(error))
            raise
        self._keep(rollouts, failed.get(rollouts.prompt.id))

    def _keep(self, rollouts: Rollouts, error: str | None) -> None:
        """Write a prompt's completions, or only its rewards if the completions are already stored."""
        prompt, before = rollouts.prompt, self.rollouts.get(rollouts.prompt.id)
        self.rollouts[prompt.id] = rollouts
        row: dict[str, Any] = {"id": prompt.id}
        if before is None or before.completion_ids != rollouts.completion_ids:
            row["prompt_ids"] = rollouts.prompt_ids
            row["completion_ids"] = rollouts.completion_ids
            row["completions"] = rollouts.texts
            row["log_probs"] = rollouts.log_probs
        row |= {"prompt": prompt.text, "columns": prompt.columns, "verified": rollouts.verified}
        row["rewards"] = rollouts.rewards.tolist() or None
        self.line(row if error is None else row | {"error": error})

    def line(self, row: dict[str, Any]) -> None:
        """Append a line."""
        if self._file is not None:
            self._file.write(json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())


@contextmanager
def _opened(path: Path | None, config: dict[str, Any], model: str) -> Iterator[_Store]:
    """The store of a path, locked for this run; without a path, a store in memory."""
    if path is None:
        yield _Store()
        return
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(f"{path}.lock").acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"the store {path} is being written by another run: wait for it, or name another"
        ) from None
    with lock, path.open("ab") as file:
        store = _Store(file)
        if _drop_torn_line(path):
            header, store.rollouts = read_store(path)
            _refuse_another(path, header["config"], config)
        else:
            made_by = versions("ustat_pg", "torch", "transformers")
            header = {"format": FORMAT, "config": config, "model": model, "versions": made_by}
            store.line(header)
        yield store


def _refuse_another(path: Path, before: dict[str, Any], config: dict[str, Any]) -> None:
    for name, value in config.items():
        # Draws are addressed, so the stored ones are the first of any number.
        if name == "rollouts" or before.get(name) == value:
            continue
        if name == "verifier" and _moved(before.get(name), value):
            continue
        raise InputError(
            f"the store {path} was made with {name} = {before.get(name)!r}, and now "
            f"{name} is {value!r}: name another store"
        )


def _moved(before: Any, now: str) -> bool:
    """Whether a verifier of this library has another name only because its module has moved."""
    old, new = (str(each).partition(":") for each in (before, now))
    return old[2] == new[2] and all(each[0].startswith("ustat_pg.") for each in (old, new))


def _drop_torn_line(path: Path) -> bool:
    """Cut a store after its last newline; the result says whether a whole line remains."""
    with path.open("r+b") as file:
        data = file.read()
        # Only a store that was cut in its first bytes may be shorter than these.
        if not data.startswith(_START) and not _START.startswith(data):
            raise _no_store(path)
        end = data.rfind(b"\n") + 1
        if end < len(data):
            file.truncate(end)
    return end > 0


def _no_store(path: Path) -> InputError:
    return InputError(
        f"{path} is not a store of rollouts of this library (its first line has no format "
        f"{FORMAT!r}): it is left as it is; name another store"
    )


def lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file with their places, for messages.

    The last line may be incomplete, for example in a running job; it is then left out with a warning.
    """
    rows = read_text(path, MOST_LINES).split("\n")
    store = rows[0].startswith('{"format": "ustat_pg rollouts')
    for number, line in enumerate(rows, 1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json_value(line, place)
        except InputError:
            if number < len(rows) or number == 1:
                raise
            # For our own store the next steps report it.
            if not store:
                warn_torn(path, place)
            return
        if not isinstance(row, dict):
            raise InputError(f"{place}, is {short(row)}: every line must be a JSON object")
        yield place, row


def warn_torn(path: Path, place: str) -> None:
    """Warn about an incomplete last line."""
    warnings.warn(
        f"{place}, is incomplete, like the last line of a running job: {path} is read up to it",
        LogWarning,
        stacklevel=3,
    )


def read_store(path: Path) -> tuple[dict[str, Any], dict[str, Rollouts]]:
    """The header of our own store, and its rollouts by the prompts' ids."""
    rows = lines(path)
    _, header = next(rows, ("", {}))
    if header.get("format") != FORMAT:
        raise _no_store(path)
    latest: dict[str, dict[str, Any]] = {}
    for place, row in rows:
        # A later line without rewards removes the rewards of an earlier line.
        latest.setdefault(str(row.get("id")), {}).update(row, place=place)
    rollouts = {}
    for name, row in latest.items():
        try:
            logs = row.get("log_probs")
            rollouts[name] = Rollouts(
                Prompt(name, row["prompt"], row["columns"]),
                tuple(row["prompt_ids"]),
                tuple(map(tuple, row["completion_ids"])),
                tuple(row["completions"]),
                np.array(row["rewards"] or (), dtype=np.float64),
                None if logs is None else tuple(map(tuple, logs)),
                row.get("verified"),
            )
        except (KeyError, TypeError) as error:
            raise InputError(f"{row['place']}, is damaged ({error!r} is missing)") from error
    return header, rollouts


# Sampling.


def sample(
    language_model: LanguageModel,
    task: Task,
    rollouts: int = 64,
    *,
    seed: int = 0,
    store: str | Path | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
) -> RolloutsList:
    """Sample completions of every prompt, and reward them.

    An error of the verifier only affects its prompt: a :class:`VerifierWarning` names the prompts, and the
        next run with the same store verifies them again without sampling. It also does so if a prompt's text
        or columns, or the verifier's file, have changed; modules that the file imports are not checked.

    If more rollouts are requested than a store has, only the missing ones are drawn, and then all of that
    prompt are verified; if fewer are requested, the first ones are returned. All are the same as if drawn at
    once, up to the rounding of the model.

    Arguments:
        rollouts: number of completions of each prompt, N >= 4.
        store: JSONL file to write, and to continue from if it exists.
        batch: number of completions at a time (default: 256); if memory runs out, fewer are used, with a
            warning.

    Returns:
        the rollouts in the order of the task's prompts, without prompts at which the verifier raised an
        error; the messages are in ``failed``.
    """
    integer("rollouts", rollouts, LEAST_ROLLOUTS)
    refuse_beyond("completions", rollouts * len(task.prompts), _COMPLETION)
    if batch is not None:
        integer("batch", batch)
    integer("seed", seed, 0)
    ids = {prompt.id: tokenise(language_model, prompt) for prompt in task.prompts}
    for name, tokens in ids.items():
        check_lengths(language_model, name, len(tokens), task.max_new_tokens)
    config = {
        "weights": None if store is None else weights_digest(language_model.model),
        "task": task.name,
        "verifier": function_name(task.verifier),
        "seed": seed,
        "rollouts": rollouts,
        "max_new_tokens": task.max_new_tokens,
        "end_tokens": list(end_tokens(language_model)),
    }
    source, total = source_digest(task.verifier), len(task.prompts)
    path = None if store is None else Path(store)
    with _opened(path, config, language_model.name) as kept:
        for prompt in task.prompts:
            if kept.count(prompt) and kept.rollouts[prompt.id].prompt_ids != ids[prompt.id]:
                raise InputError(
                    f"the store {store} has another prompt {prompt.id!r}: it belongs to other "
                    "prompts; name another store"
                )
        # Prompts with equally many completions continue together.
        missing = [prompt for prompt in task.prompts if kept.count(prompt) < rollouts]
        missing.sort(key=kept.count)

        def draws() -> Generator[list[Drawn], None, None]:
            for first, group in groupby(missing, key=kept.count):
                prompts = [(prompt.id, ids[prompt.id]) for prompt in group]
                given = language_model, prompts, rollouts - first, task.max_new_tokens, seed
                yield from transformers_draw(*given, batch or 256, first)

        result, done = RolloutsList(), total - len(missing)
        if progress is not None:
            progress("sampled", done, total)
        with closing(draws()) as every:
            for several in every:
                # The message is given once per batch, because its first prompt takes as long as all.
                for prompt, drawn in zip(missing[done - total :], several, strict=False):
                    texts = decoded(language_model, drawn.tokens)
                    new = Rollouts(prompt, ids[prompt.id], drawn.tokens, texts)
                    new = replace(
                        new, log_probs=drawn.log_probs, verified=verified_by(prompt, source)
                    )
                    if kept.count(prompt):
                        new = kept.rollouts[prompt.id].joined(new)
                    kept.verify(task, new, result.failed)
                done += len(several)
                if progress is not None:
                    progress("sampled", done, total)
        for prompt in task.prompts:
            now, stored = verified_by(prompt, source), kept.rollouts[prompt.id]
            verified = stored.verified == now and len(stored.rewards) > 0
            if not verified and prompt.id not in result.failed:
                # The old rewards must not stay if the verifier raises an error now.
                anew = replace(stored, prompt=prompt, rewards=NONE, verified=now)
                kept.verify(task, anew, result.failed)
            if prompt.id not in result.failed:
                result.append(kept.rollouts[prompt.id].first(rollouts))
    where = "" if store is None else f"; {store} keeps their completions for the next run"
    warn_of(result.failed, total, where)
    if not result:
        raise InputError(f"no prompt has rewards: {next(iter(result.failed.values()))}")
    return result


def verify(task: Task, rollouts: Rollouts, failed: dict[str, str]) -> Rollouts:
    """The completions with rewards, or without if the verifier raises an error, which goes to ``failed``."""
    try:
        rewards = task.rewards(rollouts.prompt, rollouts.texts, rollouts.completion_ids)
    except VerifierError as error:
        failed[rollouts.prompt.id], rewards = str(error), NONE
    return replace(rollouts, rewards=rewards)


def warn_of(failed: dict[str, str], prompts: int, where: str = "") -> None:
    """Warn about the prompts at which the verifier raised an error."""
    if failed:
        shown = "; ".join(list(failed.values())[:3]) + ("; ..." if len(failed) > 3 else "")
        warnings.warn(
            f"the verifier raised an error at {len(failed)} of {prompts} prompts, which are left out"
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
