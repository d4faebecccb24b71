"""Rollouts: sampled completions of prompts with their rewards, stored as they come.

A completion is drawn from the model itself: temperature 1, nothing cut off, no penalties, whatever the
model's own generation settings say; else its probability would not be the model's and its score not
the gradient's. How it is drawn is :mod:`ustat_pg.llm.generation`.

A store is a JSONL file: a header with the configuration, then one line for each finished prompt,
written and synced as a whole. A line torn by an interruption is dropped, finished prompts are never
sampled again, and another configuration is refused. With a prompt's rewards goes a digest of its text
and columns and of the verifier's file: where it is another, the kept completions are verified again.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._version import __version__
from ..validation import InputError, integer
from .generation import transformers_draw, vllm_draw
from .models import LanguageModel, check_lengths, end_tokens, tokenise, weights_digest
from .tasks import Prompt, Task, VerifierError, check_rewards

try:
    import fcntl
except ImportError:  # Windows has no such locks.
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "FEWEST_ROLLOUTS",
    "Rollouts",
    "RolloutsList",
    "VerifierWarning",
    "load_rewards",
    "load_rollouts",
    "sample",
]

FEWEST_ROLLOUTS = 4
"""The unbiased moments of a pool take four different completions of a prompt."""

FORMAT = "ustat_pg rollouts 1"

_START = json.dumps({"format": FORMAT}).encode()[:-1] + b", "
"""How every store of this format begins, and nothing else."""


class VerifierWarning(RuntimeWarning):
    """A verifier raised at some prompts; they are left out, and named."""


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
    """

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    rewards: NDArray[np.float64]


class RolloutsList(list[Rollouts]):
    """Rollouts of several prompts; ``failed`` says at which prompts the verifier raised, and what."""

    def __init__(self, rollouts: Iterable[Rollouts] = (), failed: dict[str, str] | None = None):
        super().__init__(rollouts)
        self.failed = dict(failed or {})


@dataclass
class _Entry:
    """What a store knows of a prompt; rewards are missing where the verifier raised.

    ``verified`` is a digest of what the rewards depend on besides the completions.
    """

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    rewards: NDArray[np.float64] | None = None
    verified: str | None = None

    def rollouts(self) -> Rollouts:
        assert self.rewards is not None
        return Rollouts(self.prompt, self.prompt_ids, self.completion_ids, self.texts, self.rewards)


def sample(
    language_model: LanguageModel,
    task: Task,
    rollouts: int = 64,
    *,
    seed: int = 0,
    store: str | Path | None = None,
    batch: int = 256,
    backend: str = "transformers",
    vllm_options: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RolloutsList:
    """Sample completions of every prompt and reward them.

    A verifier that raises costs its prompt only: the completions are kept, a
    :class:`VerifierWarning` names the prompts, and the next run with the same store verifies them
    again without sampling. So it does where a prompt's text or columns, or the file that the verifier
    is defined in, have changed since; other modules that the verifier imports are not looked at.

    Arguments:
        language_model: see :func:`ustat_pg.llm.models.load_model`.
        task: prompts and verifier.
        rollouts: completions of each prompt, N >= 4.
        seed: the seed of the draws.
        store: a JSONL file to write to, and to go on from if it exists.
        batch: completions at a time; where memory runs out, fewer are taken, with a warning.
        backend: ``"transformers"``, or ``"vllm"`` where it is installed. vLLM draws with its own
            seeds, and its logits differ a little from those that score the completions.
        vllm_options: further arguments of ``vllm.LLM``, for instance ``gpu_memory_utilization``.
        progress: called with the prompts done and all prompts.

    Returns:
        the rollouts in the order of the task's prompts, without those whose verifier raised; their
        messages are in ``failed``.

    Raises:
        InputError: fewer than 4 rollouts, a prompt too long for the context, rewards that are no
            numbers, a store of another configuration, no vLLM, or memory ran out.
    """
    integer("rollouts", rollouts, FEWEST_ROLLOUTS)
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
        "verifier": _function_name(task.verifier),
        "seed": seed,
        "rollouts": rollouts,
        "max_new_tokens": task.max_new_tokens,
        "end_tokens": list(end_tokens(language_model)),
        "backend": backend,
    }
    source = _source_digest(task.verifier)
    with _Store(store, config, language_model.name) as kept:
        for prompt in task.prompts:
            entry = kept.entries.get(prompt.id)
            if entry is not None and entry.prompt_ids != ids[prompt.id]:
                raise InputError(
                    f"the store {store} has another prompt {prompt.id!r}: it belongs to other "
                    "prompts; name another store"
                )
        missing = [prompt for prompt in task.prompts if prompt.id not in kept.entries]
        draw = vllm_draw if backend == "vllm" else transformers_draw
        draws = draw(
            language_model,
            [(prompt.id, ids[prompt.id]) for prompt in missing],
            rollouts,
            task.max_new_tokens,
            seed,
            batch,
            vllm_options or {},
        )
        result = RolloutsList()
        done = len(task.prompts) - len(missing)
        if progress is not None:
            progress(done, len(task.prompts))
        for prompt, completions in zip(missing, draws, strict=True):
            texts = _decoded(language_model, completions)
            entry = _Entry(prompt, ids[prompt.id], completions, texts)
            entry.verified = _verified(prompt, source)
            _verify(task, entry, result.failed, kept)
            done += 1
            if progress is not None:
                progress(done, len(task.prompts))
        fresh = {prompt.id for prompt in missing}
        for prompt in task.prompts:
            entry = kept.entries[prompt.id]
            now = _verified(prompt, source)
            if prompt.id not in fresh and (entry.rewards is None or entry.verified != now):
                # The old rewards must not outlive a verifier that raises now.
                entry.prompt, entry.rewards, entry.verified = prompt, None, now
                _verify(task, entry, result.failed, kept)
            if entry.rewards is not None:
                result.append(entry.rollouts())
    where = "" if store is None else f"; {store} keeps their completions for the next run"
    _report(result.failed, len(task.prompts), where)
    return result


def _verify(task: Task, entry: _Entry, failed: dict[str, str], kept: _Store | None) -> None:
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


def _report(failed: dict[str, str], prompts: int, where: str = "") -> None:
    """Warn of the prompts whose verifier raised."""
    if failed:
        shown = "; ".join(list(failed.values())[:3]) + ("; ..." if len(failed) > 3 else "")
        warnings.warn(
            f"the verifier raised at {len(failed)} of {prompts} prompts, which are left out"
            f"{where}: {shown}",
            VerifierWarning,
            stacklevel=3,
        )


def _function_name(function: Any) -> str:
    """A function's module and name; of a module loaded from a file by its path, this path."""
    inner = _defined(function)
    module, name = getattr(inner, "__module__", ""), getattr(inner, "__qualname__", "")
    known = vars(sys.modules[module]) if module in sys.modules else {}
    spaces = getattr(inner, "__globals__", None)
    # Two files of one name, or a file named like a module, are told apart by their paths only.
    if spaces is not None and spaces is not known and "__file__" in spaces:
        module = str(Path(spaces["__file__"]).resolve())
    return f"{module}:{name}"


def _defined(function: Any) -> Any:
    """The function or class whose source says what a callable does."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif hasattr(function, "__func__"):
            function = function.__func__
        else:
            return function if hasattr(function, "__qualname__") else type(function)


def _source_digest(function: Any) -> str:
    """A hash of the file that a function is defined in; of its name where there is no such file."""
    inner = _defined(function)
    try:
        source = Path(inspect.getsourcefile(inner) or "").read_bytes()
    except (OSError, TypeError):
        try:
            source = inspect.getsource(inner).encode()
        except (OSError, TypeError):
            source = _function_name(function).encode()
    while isinstance(function, functools.partial):
        given = json.dumps([function.args, function.keywords], default=_type_name)
        source, function = source + given.encode(), function.func
    return hashlib.blake2b(source, digest_size=16).hexdigest()


def _type_name(value: Any) -> str:
    return type(value).__qualname__


def _verified(prompt: Prompt, source: str) -> str:
    """A hash of what a prompt's rewards depend on besides its completions."""
    known = [prompt.text, sorted(prompt.columns.items(), key=lambda item: item[0]), source]
    text = json.dumps(known, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _decoded(
    language_model: LanguageModel, completions: Sequence[Sequence[int]]
) -> tuple[str, ...]:
    """Completions as text, without special tokens."""
    return tuple(
        language_model.tokenizer.batch_decode(
            [list(ids) for ids in completions],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
    )


class _Store:
    """A JSONL file of rollouts, appended to line by line; without a path, memory only."""

    def __init__(self, path: str | Path | None, config: dict[str, Any], model: str):
        self.path = None if path is None else Path(path)
        self.entries: dict[str, _Entry] = {}
        self._file: Any = None
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab")
        try:
            _lock(self._file)
            if _drop_torn_line(self.path):
                self._go_on(config)
            else:
                versions = _versions()
                self._line(
                    {"format": FORMAT, "config": config, "model": model, "versions": versions}
                )
        except BaseException:
            self._file.close()
            raise

    def _go_on(self, config: dict[str, Any]) -> None:
        """Read what is there, if it was made with this configuration."""
        assert self.path is not None
        stored, self.entries = _read_store(self.path)
        made = stored.get("config", {})
        for name, value in config.items():
            if made.get(name) != value:
                raise InputError(
                    f"the store {self.path} was made with {name} = {made.get(name)!r}, and now "
                    f"{name} is {value!r}: name another store"
                )

    def __enter__(self) -> _Store:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, entry: _Entry, error: str | None) -> None:
        """Keep a prompt's completions, or its rewards where the completions are kept already."""
        known = entry.prompt.id in self.entries
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
                **verdict,
            }
        )

    def _line(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _lock(file: Any) -> None:
    """Hold a store for this run alone, where the system can (not on Windows)."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            f"the store {file.name} is being written by another run: wait for it, or name another"
        ) from None


def _versions() -> dict[str, str]:
    """The versions of what drew the completions."""
    import torch
    import transformers

    return {
        "ustat_pg": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _drop_torn_line(path: Path) -> bool:
    """Cut what stands behind the last newline of a store; whether a whole line is left.

    Raises:
        InputError: the file does not begin as a store does; nothing is cut then.
    """
    with path.open("r+b") as file:
        data = file.read()
        # A store torn in its first bytes is all that may be shorter than these.
        if not data.startswith(_START) and not _START.startswith(data):
            raise _no_store(path)
        end = data.rfind(b"\n") + 1
        if end < len(data):
            file.truncate(end)
    return end > 0


def _no_store(path: Path) -> InputError:
    return InputError(
        f"{path} is no store of rollouts of this library (its first line has no format "
        f"{FORMAT!r}): it is left as it is; name another store"
    )


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file with their places, for messages; a torn last line is dropped."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    rows = text.split("\n")
    store = rows[0].startswith('{"format": "ustat_pg rollouts')
    for number, line in enumerate(rows, 1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if store and number == len(rows):
                return
            raise InputError(f"{place}, is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise InputError(f"{place}, must be a JSON object")
        yield place, row


def _read_store(path: Path) -> tuple[dict[str, Any], dict[str, _Entry]]:
    """The header and the entries of our own store.

    Raises:
        InputError: the file is none, or damaged.
    """
    entries: dict[str, _Entry] = {}
    header: dict[str, Any] = {}
    for place, row in _lines(path):
        if not header:
            if row.get("format") != FORMAT:
                raise _no_store(path)
            header = row
            continue
        try:
            name, rewards = row["id"], row["rewards"]
            if "completion_ids" in row:
                entries[name] = _Entry(
                    Prompt(name, row["prompt"], row["columns"]),
                    tuple(row["prompt_ids"]),
                    tuple(tuple(ids) for ids in row["completion_ids"]),
                    tuple(row["completions"]),
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


def load_rollouts(
    path: str | Path,
    language_model: LanguageModel | None = None,
    task: Task | None = None,
) -> RolloutsList:
    """Rollouts from a store of :func:`sample`, or from your own file.

    Your own file is JSONL, one prompt a line: ``prompt`` (text or messages), ``completions`` (texts)
    or ``completion_ids`` (tokens), and perhaps ``rewards``, ``id``, ``prompt_ids``, ``finished`` and
    columns for the verifier. Tokens are better than texts: a text can be cut into other tokens than
    were drawn. A text gets the end-of-text token behind it, which was drawn but is not in the text,
    unless ``finished`` (a list of true and false) says that it was cut off.

    Arguments:
        path: the file.
        language_model: the model that drew them; needed where tokens or texts are missing, and then
            a store of another model is refused.
        task: its verifier rewards what has no rewards; prompts with the same id take its columns.
            Rewards that are in the file are taken as they are.

    Returns:
        the rollouts in the order of the file, without those whose verifier raised (a
        :class:`VerifierWarning` names them).

    Raises:
        InputError: fewer than 4 completions of a prompt, rewards that are no finite numbers or not
            one for each completion, rewards missing without a task, tokens missing without a model,
            or a prompt longer than the context.
    """
    path = Path(path)
    header = next(iter(_lines(path)), None)
    if header is None:
        raise InputError(f"{path} is empty: it must hold one prompt a line")
    known = {} if task is None else {prompt.id: prompt for prompt in task.prompts}
    if header[1].get("format", "").startswith("ustat_pg rollouts"):
        stored, entries = _read_store(path)
        _same_model(path, stored, language_model)
    else:
        entries = {}
        for position, (place, row) in enumerate(_lines(path)):
            entry = _user_entry(place, position, row, language_model, known)
            if entry.prompt.id in entries:
                raise InputError(
                    f"{place}: a prompt with the id {entry.prompt.id!r} stood before; put all "
                    "completions of a prompt on one line"
                )
            entries[entry.prompt.id] = entry
    result = RolloutsList()
    for name, entry in entries.items():
        if len(entry.completion_ids) < FEWEST_ROLLOUTS:
            raise InputError(
                f"prompt {name!r} of {path} has {len(entry.completion_ids)} rollouts: it must have "
                f"at least {FEWEST_ROLLOUTS}"
            )
        if language_model is not None:
            longest = max(map(len, entry.completion_ids))
            check_lengths(language_model, name, len(entry.prompt_ids), longest)
        if entry.rewards is None:
            if task is None:
                raise InputError(
                    f"prompt {name!r} of {path} has no rewards: give them in the file, or a task "
                    "whose verifier rewards the completions"
                )
            entry.prompt = known.get(name, entry.prompt)
            _verify(task, entry, result.failed, None)
        if entry.rewards is not None:
            result.append(entry.rollouts())
    _report(result.failed, len(entries))
    return result


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
) -> _Entry:
    """One line of a user's file."""
    name = str(row["id"]) if "id" in row else str(position)
    if "prompt" in row:
        own = {"id", "prompt", "prompt_ids", "completions", "completion_ids", "rewards", "finished"}
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
            texts = _decoded(language_model, tokens)
        _in_vocabulary(language_model, place, [prompt_ids, *tokens])
    if not all(tokens):
        raise InputError(f"{place}, has a completion without tokens: it must have at least one")
    entry = _Entry(prompt, tuple(prompt_ids), tuple(map(tuple, tokens)), tuple(texts))
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


def load_rewards(path: str | Path) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Rewards alone, for what needs no model: the share of groups without signal, and pass rates.

    Arguments:
        path: JSON like ``{"rewards": [[1, 0, ...], ...]}``, with ``ids`` perhaps; JSONL with
            ``rewards`` and perhaps ``id`` on each line; or any file of :func:`load_rollouts`.
            Prompts of a store whose verifier raised are left out.

    Returns:
        the prompts' ids, (P,), and the rewards, (P, N).

    Raises:
        InputError: no rewards, rewards that are no finite numbers, fewer than 4 of a prompt, or
            prompts with different numbers of them.
    """
    path = Path(path)
    rows = _reward_rows(path)
    if not rows:
        raise InputError(f"{path} has no rewards")
    table: dict[str, NDArray[np.float64]] = {}
    for place, name, rewards in rows:
        if name in table:
            raise InputError(f"{place}: a prompt with the id {name!r} stood before")
        table[name] = check_rewards(place, name, rewards, None)
        first = next(iter(table))
        if len(table[name]) < FEWEST_ROLLOUTS:
            raise InputError(
                f"prompt {name!r} of {path} has {len(table[name])} rollouts: it must have at least "
                f"{FEWEST_ROLLOUTS}"
            )
        if len(table[name]) != len(table[first]):
            raise InputError(
                f"prompt {name!r} of {path} has {len(table[name])} rewards and prompt {first!r} has "
                f"{len(table[first])}: all prompts must have the same number"
            )
    return tuple(table), np.stack(list(table.values()))


def _reward_rows(path: Path) -> list[tuple[str, str, Any]]:
    """(place, prompt's id, rewards) of every prompt of a file of rewards."""
    whole = None
    if path.suffix == ".json":
        try:
            whole = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read as JSON: {error}") from error
        if not isinstance(whole, dict) or not isinstance(whole.get("rewards"), list):
            raise InputError(f'{path} must be an object like {{"rewards": [[1, 0, 1, 1], ...]}}')
    else:
        lines = list(_lines(path))
        if len(lines) == 1 and _nested(lines[0][1].get("rewards")):
            whole = lines[0][1]
    if whole is not None:
        lists = whole["rewards"]
        ids = whole.get("ids", list(range(len(lists))))
        if not isinstance(ids, list) or len(ids) != len(lists):
            raise InputError(f"{path} must have one id for each of its {len(lists)} lists")
        return [(str(path), str(name), rewards) for name, rewards in zip(ids, lists, strict=True)]
    if lines and str(lines[0][1].get("format", "")).startswith("ustat_pg rollouts"):
        _, entries = _read_store(path)
        return [(str(path), n, e.rewards) for n, e in entries.items() if e.rewards is not None]
    for place, row in lines:
        if row.get("rewards") is None:
            raise InputError(f"{place}, has no rewards: it has {sorted(row)}")
    return [
        (place, str(row.get("id", position)), row["rewards"])
        for position, (place, row) in enumerate(lines)
    ]


def _nested(value: Any) -> bool:
    """Whether a value is a list of lists."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, list) for v in value)
