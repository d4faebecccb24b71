"""Rollouts and rewards of others: own files, and the logs of trainers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..reading import read_json
from ..validation import InputError
from .logs import groups_of_log, is_log
from .models import LanguageModel, check_lengths, tokenise, weights_digest
from .prompts import Prompt, Task, check_rewards
from .rollouts import decoded, verify, warn_of
from .scored import LEAST_ROLLOUTS
from .store import Entry, RolloutsList, check_log_probs, lines, read_store

__all__ = ["load_rewards", "load_rollouts"]


def load_rollouts(
    path: str | Path,
    language_model: LanguageModel | None = None,
    task: Task | None = None,
    *,
    group_by: Sequence[str] = (),
    reward: str | None = None,
    stale: bool = False,
) -> RolloutsList:
    """Rollouts from a store of :func:`~ustat_pg.llm.rollouts.sample`, from a trainer's log with a row
    for each completion (:mod:`ustat_pg.llm.logs`), or from your own file.

    Your own file is JSONL, one prompt a line: ``prompt`` (text or messages), ``completions`` (texts)
    or ``completion_ids`` (tokens), and perhaps ``rewards``, ``id``, ``prompt_ids``, ``finished``,
    ``log_probs`` (of each token of each completion) and columns for the verifier. Tokens are better than
    texts: a text can be cut into other tokens than were drawn. A text gets the end-of-text token behind
    it, which was drawn but is not in the text, unless ``finished`` (a list of true and false) says that it
    was cut off.

    Arguments:
        path: the file; of a log also a folder of files.
        language_model: the model that drew them; needed where tokens or texts are missing, and then
            a store of another model is refused.
        task: its verifier rewards what has no rewards; prompts with the same id take its columns.
            Rewards that are in the file are taken as they are.
        group_by: columns of a log whose values a group's completions share; prompt and step unless
            given.
        reward: column of a log's rewards; needed where it has several.
        stale: another policy may have drawn them, whose log-probabilities are in the file.

    Returns:
        the rollouts in the order of the file, without those whose verifier raised (a
        :class:`~ustat_pg.llm.rollouts.VerifierWarning` names them) and without groups of another size
        than most in a log (a :class:`~ustat_pg.llm.logs.LogWarning` counts them).

    Raises:
        InputError: fewer than 4 completions of a prompt, rewards that are no finite numbers or not
            one for each completion, rewards missing without a task, tokens missing without a model,
            a prompt longer than the context, or log-probabilities that are missing where ``stale``, not
            one for each token, or no log-probabilities.
    """
    path = Path(path)
    rows = _rows(path, group_by, reward)
    known = {} if task is None else {prompt.id: prompt for prompt in task.prompts}
    if _is_store(rows):
        stored, entries = read_store(path)
        if not stale:
            _same_model(path, stored, language_model)
    else:
        entries = {}
        for position, (place, row) in enumerate(rows):
            entry = _user_entry(place, position, row, language_model, known)
            if entry.prompt.id in entries:
                raise InputError(
                    f"{place}: a prompt with the id {entry.prompt.id!r} stood before; put all "
                    "completions of a prompt on one line"
                )
            entries[entry.prompt.id] = entry
    result = RolloutsList()
    for name, entry in entries.items():
        if len(entry.completion_ids) < LEAST_ROLLOUTS:
            raise InputError(
                f"prompt {name!r} of {path} has {len(entry.completion_ids)} rollouts: it must have "
                f"at least {LEAST_ROLLOUTS}"
            )
        if language_model is not None:
            longest = max(map(len, entry.completion_ids))
            check_lengths(language_model, name, len(entry.prompt_ids), longest)
        if stale and entry.log_probs is None:
            raise InputError(
                f"prompt {name!r} of {path} has no log_probs: the log-probability of each token under the "
                "policy that drew it is needed; the stores that `ustat-pg llm mse --out` writes have them, "
                "but for vLLM's and those of earlier versions"
            )
        if entry.rewards is None:
            if task is None:
                raise InputError(
                    f"prompt {name!r} of {path} has no rewards: give them in the file, or a task "
                    "whose verifier rewards the completions"
                )
            entry.prompt = known.get(name, entry.prompt)
            verify(task, entry, result.failed, None)
        if entry.rewards is not None:
            result.append(entry.rollouts())
    warn_of(result.failed, len(entries))
    return result


def _rows(
    path: Path, group_by: Sequence[str], reward: str | None
) -> list[tuple[str, dict[str, Any]]]:
    """The prompts of a file with their places: its lines, or the groups of a log."""
    if is_log(path):
        return groups_of_log(path, group_by, reward)
    if group_by or reward is not None:
        raise InputError(
            f"{path} has one prompt a line: --group-by and --reward are for logs with a row for each "
            "completion"
        )
    rows = list(lines(path))
    if not rows:
        raise InputError(f"{path} is empty: it must hold one prompt a line")
    return rows


def _is_store(rows: list[tuple[str, dict[str, Any]]]) -> bool:
    return str(rows[0][1].get("format", "")).startswith("ustat_pg rollouts")


def _same_model(path: Path, header: dict[str, Any], language_model: LanguageModel | None) -> None:
    """Refuse a store drawn from other weights: its scores would be of another policy."""
    if language_model is None:
        return
    drawn = header.get("config", {}).get("weights")
    here = weights_digest(language_model.model)
    if drawn != here:
        raise InputError(
            f"the rollouts of {path} were drawn from {header.get('model')} (weights {drawn}), and "
            f"{language_model.name} has other weights ({here}): score them with the model that drew "
            "them"
        )


def _user_entry(
    place: str,
    position: int,
    row: dict[str, Any],
    language_model: LanguageModel | None,
    known: dict[str, Prompt],
) -> Entry:
    """One line of a user's file."""
    name = str(row["id"]) if "id" in row else str(position)
    if "prompt" in row:
        own = {"id", "prompt", "prompt_ids", "completions", "completion_ids", "rewards", "finished"}
        own.add("log_probs")
        columns = {key: value for key, value in row.items() if key not in own}
        prompt = Prompt(name, row["prompt"], columns)
    elif name in known:
        prompt = known[name]
    else:
        raise InputError(
            f"{place}, has no prompt: it must be an object like "
            '{"prompt": "...", "completions": ["...", ...], "rewards": [1, 0, ...]}'
        )
    texts: Any = row.get("completions")
    tokens: Any = row.get("completion_ids")
    if texts is None and tokens is None:
        raise InputError(f"{place}, has neither completions nor completion_ids")
    if texts is not None and not _all(texts, str):
        raise InputError(f"{place}, has completions that are not a list of texts")
    if tokens is not None and not (_all(tokens, list) and all(_all(t, int) for t in tokens)):
        raise InputError(f"{place}, has completion_ids that are not lists of whole numbers")
    count = len(texts if tokens is None else tokens)
    if texts is not None and len(texts) != count:
        raise InputError(f"{place}, has {len(texts)} completions and {count} completion_ids")
    prompt_ids: Any = row.get("prompt_ids")
    if prompt_ids is not None and not _all(prompt_ids, int):
        raise InputError(f"{place}, has prompt_ids that are not a list of whole numbers")
    if language_model is None and (texts is None or tokens is None or prompt_ids is None):
        raise InputError(
            f"{place}, has texts without tokens or tokens without texts: give the model that drew "
            "them, whose tokenizer knows the other"
        )
    if language_model is not None:
        if prompt_ids is None:
            prompt_ids = tokenise(language_model, prompt)
        if tokens is None:
            tokens = _tokens(language_model, place, texts, row.get("finished"))
        if texts is None:
            texts = decoded(language_model, tokens)
        _in_vocabulary(language_model, place, [prompt_ids, *tokens])
    if not all(tokens):
        raise InputError(f"{place}, has a completion without tokens: it must have at least one")
    entry = Entry(prompt, tuple(prompt_ids), tuple(map(tuple, tokens)), tuple(texts))
    entry.log_probs = check_log_probs(place, row.get("log_probs"), tokens)
    if row.get("rewards") is not None:
        entry.rewards = check_rewards(place, name, row["rewards"], count)
    return entry


def _all(value: Any, kind: type) -> bool:
    """Whether a value is a list of things of a kind; true and false are no whole numbers."""
    return isinstance(value, list) and all(
        isinstance(item, kind) and not isinstance(item, bool) for item in value
    )


def _tokens(
    language_model: LanguageModel, place: str, texts: Sequence[str], finished: Any
) -> list[list[int]]:
    """Completions as tokens, with the end-of-text token where they were finished."""
    if finished is not None and not (
        isinstance(finished, list)
        and len(finished) == len(texts)
        and all(isinstance(value, bool) for value in finished)
    ):
        raise InputError(
            f"{place}, has finished = {finished!r}: it must be true or false for each completion"
        )
    end = language_model.tokenizer.eos_token_id
    result = []
    for i, text in enumerate(texts):
        ids = language_model.tokenizer(text, add_special_tokens=False)["input_ids"]
        if end is not None and (finished is None or finished[i]):
            ids = [*ids, end]
        result.append(ids)
    return result


def _in_vocabulary(
    language_model: LanguageModel, place: str, rows: Sequence[Sequence[int]]
) -> None:
    """Refuse tokens that the model does not have."""
    most = language_model.model.get_input_embeddings().weight.shape[0]
    for row in rows:
        for token in row:
            if not 0 <= token < most:
                raise InputError(
                    f"{place}, has the token {token}: {language_model.name} has tokens 0 to "
                    f"{most - 1}"
                )


def load_rewards(
    path: str | Path, *, group_by: Sequence[str] = (), reward: str | None = None
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Rewards alone, for what needs no model: the share of groups without signal, and pass rates.

    Arguments:
        path: JSON like ``{"rewards": [[1, 0, ...], ...]}``, with ``ids`` perhaps; JSONL with
            ``rewards`` and perhaps ``id`` on each line; or any file of :func:`load_rollouts`, a trainer's
            log above all. Prompts of a store whose verifier raised are left out.
        group_by, reward: those of :func:`load_rollouts`.

    Returns:
        the prompts' ids, (P,), and the rewards, (P, N).

    Raises:
        InputError: no rewards, rewards that are no finite numbers, fewer than 4 of a prompt, or
            prompts with different numbers of them.
    """
    path = Path(path)
    rows = _reward_rows(path, group_by, reward)
    if not rows:
        raise InputError(f"{path} has no rewards")
    table: dict[str, NDArray[np.float64]] = {}
    for place, name, rewards in rows:
        if name in table:
            raise InputError(f"{place}: a prompt with the id {name!r} stood before")
        table[name] = check_rewards(place, name, rewards, None)
        first = next(iter(table))
        if len(table[name]) < LEAST_ROLLOUTS:
            raise InputError(
                f"prompt {name!r} of {path} has {len(table[name])} rollouts: it must have at least "
                f"{LEAST_ROLLOUTS}"
            )
        if len(table[name]) != len(table[first]):
            raise InputError(
                f"prompt {name!r} of {path} has {len(table[name])} rewards and prompt {first!r} has "
                f"{len(table[first])}: all prompts must have the same number"
            )
    return tuple(table), np.stack(list(table.values()))


def _reward_rows(
    path: Path, group_by: Sequence[str], reward: str | None
) -> list[tuple[str, str, Any]]:
    """(place, prompt's id, rewards) of every prompt of a file of rewards."""
    whole = None
    if path.suffix == ".json":
        whole = read_json(path)
        if not isinstance(whole, dict) or not isinstance(whole.get("rewards"), list):
            raise InputError(f'{path} must be an object like {{"rewards": [[1, 0, 1, 1], ...]}}')
    else:
        found = _rows(path, group_by, reward)
        if len(found) == 1 and _nested(found[0][1].get("rewards")):
            whole = found[0][1]
    if whole is not None:
        lists = whole["rewards"]
        ids = whole.get("ids", list(range(len(lists))))
        if not isinstance(ids, list) or len(ids) != len(lists):
            raise InputError(f"{path} must have one id for each of its {len(lists)} lists")
        return [(str(path), str(name), rewards) for name, rewards in zip(ids, lists, strict=True)]
    if _is_store(found):
        _, entries = read_store(path)
        return [(str(path), n, e.rewards) for n, e in entries.items() if e.rewards is not None]
    for place, row in found:
        if row.get("rewards") is None:
            raise InputError(f"{place}, has no rewards: it has {sorted(row)}")
    return [
        (place, str(row.get("id", position)), row["rewards"])
        for position, (place, row) in enumerate(found)
    ]


def _nested(value: Any) -> bool:
    """Whether a value is a list of lists."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, list) for v in value)
