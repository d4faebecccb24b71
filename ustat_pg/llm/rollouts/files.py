"""Reading rollouts and rewards from your own files, and from logs of trainers
(:mod:`ustat_pg.llm.rollouts.logs`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...files.reading import kind, read_json
from ...validation import InputError
from ..models.loading import LanguageModel, check_lengths, tokenise, weights_digest
from ..pool.scored import LEAST_ROLLOUTS
from ..prompts import Prompt, Task, check_rewards, short
from .logs import groups_of_log, is_log, words_of
from .stored import NONE, Rollouts, RolloutsList, decoded, lines, read_store, verify, warn_of

_ROUNDING = 1e-3
"""The largest log-probability above 0 that rounding in half precision explains."""

_OWN = {"id", "prompt", "prompt_ids", "completions", "completion_ids", "rewards", "finished"}
_OWN |= {"log_probs", "parts"}
"""Entries of a line that are not columns of its prompt."""


def load_rollouts(
    path: str | Path,
    language_model: LanguageModel | None = None,
    task: Task | None = None,
    *,
    group_by: Sequence[str] = (),
    reward: str | None = None,
    stale: bool = False,
) -> RolloutsList:
    """Rollouts from a store of :func:`~ustat_pg.llm.rollouts.stored.sample`, a trainer's log, or a file.

    Your own file is JSONL with one prompt per line: ``prompt`` (text or messages), ``completions`` (texts) or
        ``completion_ids`` (tokens), and optionally ``rewards``, ``id``, ``prompt_ids``, ``finished``,
        ``log_probs`` (of each token of each completion) and columns for the verifier. The end-of-text token
        is added to a text, unless ``finished`` (a list of true and false) says that it was cut off.

    Arguments:
        path: the file; for a log also a folder of files.
        language_model: the model that drew them; needed if tokens or texts are missing. A store of another
            model is then an error.
        task: task with the verifier for completions without rewards in the file; prompts with the same id get
            its columns.
        group_by: columns of a log that are equal for all completions of a group (default: prompt and step).
        reward: column of a log's rewards, or a sum of columns, ``correct+0.5*format``; needed if there are
            several.
        stale: whether another policy may have drawn them; its log-probabilities must be in the file.

    Returns:
        the rollouts in the order of the file, without prompts at which the verifier raised an error, and
        without groups of a log that do not have the most common size; a warning names or counts them. Groups
        of a log with the same prompt belong to one prompt in a scored pool.
    """
    path = Path(path)
    rows = _rows(path, group_by, reward)
    prompts = {} if task is None else {prompt.id: prompt for prompt in task.prompts}
    if _is_store(rows):
        header, pools = read_store(path)
        drawn = header["config"]["weights"]
        # The scores would belong to another policy.
        if language_model and not stale and drawn != weights_digest(language_model.model):
            raise InputError(
                f"the rollouts of {path} were drawn from {header.get('model')} (weights {drawn}), and "
                f"{language_model.name} has other weights: score them with the model that drew them"
            )
    else:
        pools = {
            name: _user_rollouts(place, name, row, language_model, prompts)
            for place, name, row in _named(rows)
        }
    result, logged = RolloutsList(), _logged(path, group_by, reward)
    for name, rollouts in pools.items():
        _refuse_few(path, name, len(rollouts.completion_ids))
        if language_model is not None:
            longest = max(map(len, rollouts.completion_ids))
            check_lengths(language_model, name, len(rollouts.prompt_ids), longest)
        if stale and rollouts.log_probs is None:
            raise InputError(
                f"prompt {name!r} of {path} has no log_probs: the log-probability of each token under the "
                "policy that drew it is needed; the stores that `ustat-pg llm mse` writes have them"
            )
        if not len(rollouts.rewards):
            if task is None:
                raise InputError(
                    f"prompt {name!r} of {path} has no rewards: give them in the file, or a task "
                    "whose verifier rewards the completions"
                )
            rollouts = replace(rollouts, prompt=prompts.get(name, rollouts.prompt))
            rollouts = verify(task, rollouts, result.failed)
        if name not in result.failed:
            result.append(replace(rollouts, logged=logged))
    warn_of(result.failed, len(pools))
    return result


def _rows(
    path: Path, group_by: Sequence[str], reward: str | None, unequal: bool = False
) -> list[tuple[str, dict[str, Any]]]:
    """The prompts of a file, or the groups of a log, with their places."""
    if _logged(path, group_by, reward):
        return groups_of_log(path, group_by, reward, unequal=unequal)
    _refuse_columns(path, group_by, reward)
    rows = list(lines(path))
    if not rows:
        raise InputError(f"{path} is empty: it must have one prompt per line")
    return rows


def _logged(path: Path, group_by: Sequence[str], reward: str | None) -> bool:
    """Whether a file is a log, also judged by the named columns."""
    return is_log(path, (*group_by, *(reward or "").split("+")))


def _refuse_columns(path: Path, group_by: Sequence[str], reward: str | None) -> None:
    if group_by or reward is not None:
        raise InputError(
            f"{path} is not a log with a row for each completion: leave out group_by and reward, which "
            "name its columns"
        )


def _is_store(rows: list[tuple[str, dict[str, Any]]]) -> bool:
    return str(rows[0][1].get("format", "")).startswith("ustat_pg rollouts")


def _refuse_few(path: Path, name: str, rollouts: int, least: int = LEAST_ROLLOUTS) -> None:
    if rollouts < least:
        raise InputError(
            f"prompt {short(name)} of {path} has {rollouts} rollout{'s' * (rollouts != 1)}: "
            f"it must have at least {least}"
        )


def _user_rollouts(
    place: str,
    name: str,
    row: dict[str, Any],
    language_model: LanguageModel | None,
    prompts: dict[str, Prompt],
) -> Rollouts:
    """One line of a user's file; a missing prompt comes from the given ones."""
    if "prompt" in row:
        columns = {key: value for key, value in row.items() if key not in _OWN}
        prompt = Prompt(name, row["prompt"], columns)
    elif name in prompts:
        prompt = prompts[name]
    else:
        raise InputError(
            f"{place}, has no prompt: it must be an object like "
            '{"prompt": "...", "completions": ["...", ...], "rewards": [1, 0, ...]}'
        )
    texts: Any = row.get("completions")
    tokens: Any = row.get("completion_ids")
    prompt_ids: Any = row.get("prompt_ids")
    fault = None
    if texts is None and tokens is None:
        fault = "neither completions nor completion_ids"
    elif texts is not None and not _all(texts, str):
        fault = "completions that are not a list of texts"
    elif tokens is not None and not (_all(tokens, list) and all(_all(t, int) for t in tokens)):
        fault = "completion_ids that are not lists of whole numbers"
    elif None not in (texts, tokens) and len(texts) != len(tokens):
        fault = f"{len(texts)} completions and {len(tokens)} completion_ids"
    elif prompt_ids is not None and not _all(prompt_ids, int):
        fault = "prompt_ids that are not a list of whole numbers"
    elif language_model is None and None in (texts, tokens, prompt_ids):
        fault = (
            "texts without tokens or tokens without texts: give the model that drew them, whose "
            "tokenizer knows the other"
        )
    if fault is not None:
        raise InputError(f"{place}, has {fault}")
    if language_model is not None:
        if prompt_ids is None:
            prompt_ids = tokenise(language_model, prompt)
        if tokens is None:
            tokens = _tokens(language_model, place, texts, row.get("finished"))
        most = language_model.model.get_input_embeddings().weight.shape[0]
        for token in (token for ids in (prompt_ids, *tokens) for token in ids):
            if not 0 <= token < most:
                raise InputError(
                    f"{place}, has the token {token}: {language_model.name} has tokens 0 to {most - 1}"
                )
        if texts is None:
            texts = decoded(language_model, tokens)
    if not all(tokens):
        raise InputError(f"{place}, has a completion without tokens: it must have at least one")
    ids = tuple(prompt_ids), tuple(map(tuple, tokens))
    logs, rewards = row.get("log_probs"), row.get("rewards")
    return Rollouts(
        prompt,
        *ids,
        tuple(texts),
        log_probs=None if logs is None else _log_probs(place, logs, tokens),
        rewards=NONE if rewards is None else check_rewards(place, name, rewards, len(tokens)),
    )


def _named(rows: list[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Rows with their places and the ids of their prompts (default: the position)."""
    names = set()
    for position, (place, row) in enumerate(rows):
        name = str(row.get("id", position))
        if name in names:
            raise InputError(
                f"{place}: a prompt with the id {name!r} stood before; put all completions of a prompt "
                "on one line"
            )
        names.add(name)
        yield place, name, row


def _all(value: Any, kind: type | tuple[type, ...]) -> bool:
    """Whether a value is a list with items of one type; true and false are not whole numbers."""
    return isinstance(value, list) and all(
        isinstance(item, kind) and not isinstance(item, bool) for item in value
    )


def _tokens(
    language_model: LanguageModel, place: str, texts: Sequence[str], finished: Any
) -> list[list[int]]:
    """Completions as tokens, with the end-of-text token if they were finished."""
    flags = [True] * len(texts) if finished is None else _flags(place, finished, len(texts))
    end = language_model.tokenizer.eos_token_id
    rows = [language_model.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return [
        [*row, end] if flag and end is not None else list(row)
        for row, flag in zip(rows, flags, strict=True)
    ]


def _flags(place: str, finished: Any, count: int) -> list[bool]:
    """Whether each completion was finished."""
    if not isinstance(finished, list) or [type(flag) for flag in finished] != [bool] * count:
        raise InputError(
            f"{place}, has finished = {finished!r}: it must be true or false for each completion"
        )
    return finished


def _log_probs(
    place: str, value: Any, completions: Sequence[Sequence[int]]
) -> tuple[tuple[float, ...], ...]:
    lengths = [*map(len, completions)]
    sound = _all(value, list) and [*map(len, value)] == lengths
    if not sound or not all(_all([x], (int, float)) for row in value for x in row):
        raise InputError(
            f"{place}, has other log_probs than one list for each of {len(lengths)} completions, with one "
            "number for each of its tokens"
        )
    for log in (log for row in value for log in row):
        if not -math.inf < log <= _ROUNDING:
            raise InputError(
                f"{place}, has the log-probability {log!r}: each must be a finite number, at most 0"
            )
    return tuple(tuple(map(float, row)) for row in value)


@dataclass(frozen=True, eq=False)
class LoggedRewards:
    """Rewards without rollouts, with other information from the file.

    Attributes:
        names: the prompts' ids, (P,).
        rewards: (P, N).
        finished: whether each completion was finished and not cut off, (P, N); None if the file does not say.
        parts: summands of the rewards by name, (P, N) each; empty unless several were named.
        prompts: number of each row's prompt, (P,); a prompt may repeat in a log.
    """

    names: tuple[str, ...]
    rewards: NDArray[np.float64]
    finished: NDArray[np.bool_] | None = None
    parts: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    prompts: NDArray[np.intp] | None = None


def load_rewards(
    path: str | Path, *, group_by: Sequence[str] = (), reward: str | None = None
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """The prompts' ids, (P,), and the rewards, (P, N), of :func:`logged_rewards`."""
    found = logged_rewards(path, group_by=group_by, reward=reward)
    return found.names, found.rewards


def logged_rewards(
    path: str | Path, *, group_by: Sequence[str] = (), reward: str | None = None
) -> LoggedRewards:
    """Read rewards without a model, for the share of groups without signal and for pass rates.

    Arguments:
        path: JSON like ``{"rewards": [[1, 0, ...], ...]}``, optionally with ``ids``; JSONL with ``rewards``
            and optionally ``id`` on each line; or any file of :func:`load_rollouts`, such as a trainer's log.
            Prompts of a store at which the verifier raised an error are left out.
        group_by, reward: as for :func:`load_rollouts`.
    """
    path = Path(path)
    table: dict[str, NDArray[np.float64]] = {}
    flags: list[list[bool] | None] = []
    parts: list[dict[str, list[float]]] = []
    seen: dict[str, int] = {}
    prompts: list[int] = []
    logged = _logged(path, group_by, reward)
    for place, name, row, values in _rewarded(path, group_by, reward):
        table[name] = values
        first, number = next(iter(table)), len(values)
        _refuse_few(path, name, number, 2)
        if number != len(table[first]):
            raise InputError(
                f"prompt {short(name)} of {path} has {number} rewards and prompt {short(first)} has "
                f"{len(table[first])}: all prompts must have the same number"
            )
        finished = row.get("finished")
        flags.append(None if finished is None else _flags(place, finished, number))
        parts.append(row.get("parts", {}))
        # Prompts of a user's file count as different even if their texts are equal.
        words = json.dumps(row["prompt"]) if logged and "prompt" in row else name
        prompts.append(seen.setdefault(words, len(seen)))
    if not table:
        raise InputError(f"{path} has no rewards")
    return LoggedRewards(
        tuple(table),
        np.stack(list(table.values())),
        None if None in flags else np.array(flags),
        {name: np.array([each[name] for each in parts]) for name in parts[0]},
        np.array(prompts),
    )


def rewards_of_prompts(
    path: str | Path, *, group_by: Sequence[str] = (), reward: str | None = None
) -> tuple[dict[str, list[NDArray[np.float64]]], bool]:
    """The rewards of each prompt, in groups of any sizes, and whether the file names its prompts.

    Prompts are equal if their texts are, or their ids where there is no text; without both, they are the
    file's own, by their places.

    Arguments:
        path, group_by, reward: as for :func:`logged_rewards`.
    """
    path = Path(path)
    found: dict[str, list[NDArray[np.float64]]] = {}
    named = True
    for _, name, row, values in _rewarded(path, group_by, reward, unequal=True):
        _refuse_few(path, name, len(values), 1)
        words = json.dumps(row["prompt"]) if "prompt" in row else json.dumps(name)
        found.setdefault(words, []).append(values)
        named = named and ("prompt" in row or "id" in row)
    if not found:
        raise InputError(f"{path} has no rewards")
    return found, named


def _rewarded(
    path: Path, group_by: Sequence[str], reward: str | None, unequal: bool = False
) -> Iterator[tuple[str, str, dict[str, Any], NDArray[np.float64]]]:
    """The places of prompts or groups, their names, rows and rewards."""
    names: set[str] = set()
    for place, name, row in _named(_reward_rows(path, group_by, reward, unequal)):
        if row.get("rewards") is None:
            raise InputError(f"{place}, has no rewards: it has {sorted(row)}")
        if "id" not in row and "prompt" in row:
            name = str(words_of(row["prompt"]))
        name = next(each for each in _visits(name) if each not in names)
        names.add(name)
        yield place, name, row, check_rewards(place, name, row["rewards"], None)


def _visits(name: str) -> Iterator[str]:
    """The names of a prompt's groups."""
    yield name
    for visit in count(2):
        yield f"{name} ({visit})"


def _reward_rows(
    path: Path, group_by: Sequence[str], reward: str | None, unequal: bool
) -> list[tuple[str, dict[str, Any]]]:
    """The prompts of a file of rewards, which may be one JSON object."""
    if kind(path) == ".json" and not path.is_dir() and not is_log(path):
        _refuse_columns(path, group_by, reward)
        whole = read_json(path)
        if not isinstance(whole, dict) or not isinstance(whole.get("rewards"), list):
            raise InputError(f'{path} must be an object like {{"rewards": [[1, 0, 1, 1], ...]}}')
        ids = whole.get("ids", [None] * len(whole["rewards"]))
        if not isinstance(ids, list) or len(ids) != len(whole["rewards"]):
            raise InputError(f"{path} must have one id for each of its lists of rewards")
        pairs = zip(ids, whole["rewards"], strict=True)
        return [
            (
                f"{path}, list {number}",
                {"rewards": rewards} | ({} if name is None else {"id": name}),
            )
            for number, (name, rewards) in enumerate(pairs, 1)
        ]
    rows = _rows(path, group_by, reward, unequal)
    if not _is_store(rows):
        return rows
    header, pools = read_store(path)
    ends = set(header["config"]["end_tokens"])
    return [
        (
            str(path),
            {
                "id": name,
                "rewards": pool.rewards,
                "finished": [bool(ids) and ids[-1] in ends for ids in pool.completion_ids],
            },
        )
        for name, pool in pools.items()
        if len(pool.rewards)
    ]
