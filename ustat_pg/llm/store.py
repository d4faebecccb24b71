"""Stores of rollouts: JSONL files that are appended to line by line.

A header with the configuration, then one line for each finished prompt, written and synced as a
whole. A line torn by an interruption is dropped, finished prompts are never sampled again, and another
configuration is refused.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..reading import json_value, read_text
from ..validation import InputError
from ..whole_files import versions
from .prompts import Prompt, check_rewards, short

__all__ = ["Entry", "Rollouts", "RolloutsList", "Store", "check_log_probs", "lines", "read_store"]

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
