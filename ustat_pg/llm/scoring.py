"""Scoring a pool: every prompt's Gram matrix, and the inner products of folds of prompts.

Prompts are dealt to folds by a permutation with a fixed seed: files are often sorted, by kind or by
difficulty, and folds of neighbours would make standard errors depend on that. Results are in the order
of the prompts all the same.

A finished fold is one file: its Gram matrices, and the sum of its prompts' gradients, as long as the
model has parameters. The file's name is a hash of all that it depends on: the model's weights and the
parameters chosen, the fold's rollouts, the code and the versions of what computed it. So an interrupted
scoring goes on where it stopped, and results of other weights or other rollouts are never taken for
these. Once the pool itself is saved these files are deleted, and a later call finds the pool by the same
hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray

from .._version import __version__
from ..memory import ChunkWarning
from ..validation import InputError, integer
from .models import LanguageModel, weights_digest
from .rollouts import Rollouts
from .scored import LEAST_ROLLOUTS, ScoredPool, leave_one_out
from .scores import MEMORY, Scores

__all__ = ["DISK", "LEAST_FOLDS", "check_memory", "score_pool"]

Array = NDArray[np.float64]

LEAST_FOLDS = 8
"""Folds below which a jackknife over them has intervals too wide to be of use."""

DISK = 2**36
"""Bytes that the sums of gradients of all folds may take in files, unless told otherwise."""

_SHARE = 2
"""Sums that are held in memory may take one part in so many of it."""

_VECTORS = 6
"""Numbers of memory for each parameter unless told otherwise: two are sums, the rest activations."""

_SEED = 20_260_101
"""Of the permutation that deals prompts to folds."""


@dataclass(frozen=True)
class _Room:
    """What a scoring may take: bytes of memory, its folds, and the bytes of one sum of gradients."""

    memory: int
    folds: int
    sum_bytes: int
    held: int

    @property
    def left(self) -> int:
        """Memory besides the sums that are held in it."""
        return self.memory - self.held * self.sum_bytes


def check_memory(
    language_model: LanguageModel,
    prompts: int,
    *,
    parameters: str | Sequence[str] = "all",
    memory: int | None = None,
    method: str = "hooks",
    folds: int = 50,
    out: str | os.PathLike[str] | None = None,
    disk: int = DISK,
) -> None:
    """Refuse, before anything is sampled, what :func:`score_pool` would refuse for want of room.

    What completions take beside the sums of gradients depends on their lengths and is not known yet.

    Arguments:
        language_model: the model.
        prompts: how many.
        parameters, memory, method, folds, out, disk: as for :func:`score_pool`.

    Raises:
        InputError: ``memory`` or ``disk`` is too small for any completions.
    """
    with warnings.catch_warnings():
        # Of fewer folds; the scoring itself says so.
        warnings.simplefilter("ignore", ChunkWarning)
        scores = Scores(
            language_model.model, parameters=parameters, memory=memory or MEMORY, method=method
        )
        _room(scores, integer("prompts", prompts), memory, folds, out is not None, disk)


def _room(
    scores: Scores, prompts: int, memory: int | None, folds: int, on_disk: bool, disk: int
) -> _Room:
    """Memory and folds of a scoring; one sum is held where the others are in files."""
    sum_bytes = scores.d * torch.finfo(scores.dtype).bits // 8
    wanted = min(integer("folds", folds), prompts)
    if memory is None:
        least = 1 if on_disk else min(LEAST_FOLDS, wanted)
        memory = max(MEMORY, _VECTORS * sum_bytes, _SHARE * least * sum_bytes)
    integer("memory", memory)
    number = _folds(wanted, sum_bytes, disk if on_disk else memory // _SHARE, on_disk)
    room = _Room(memory, number, sum_bytes, 1 if on_disk else number)
    # One gradient at least is made beside what is held.
    if room.left <= sum_bytes:
        raise InputError(
            f"memory is {memory} bytes: sums of gradients of {scores.d} parameters take "
            f"{(room.held + 1) * sum_bytes}, and completions come on top; raise memory="
        )
    return room


def score_pool(
    language_model: LanguageModel,
    pools: Iterable[Rollouts],
    *,
    parameters: str | Sequence[str] = "all",
    memory: int | None = None,
    method: str = "hooks",
    autocast_bf16: bool = False,
    folds: int = 50,
    out: str | os.PathLike[str] | None = None,
    disk: int = DISK,
    saved: str | os.PathLike[str] | None = None,
    config: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> ScoredPool:
    """Score all rollouts of all prompts by the model that wrote them.

    Arguments:
        language_model: the model, in eval mode.
        pools: the rollouts of each prompt, N >= 4 of every one.
        parameters, method, autocast_bf16: as for :class:`~ustat_pg.llm.scores.Scores`.
        memory: bytes to hold besides the model, sums of gradients included. Unless told otherwise 2
            GiB, or, where that is more, 6 times a sum's bytes (4 for each parameter in float32),
            and without ``out`` twice those of as many sums as are held at least (8, or fewer folds).
        folds: of prompts, for standard errors; fewer, but at least 8, where the sums of gradients
            of so many would not fit into ``disk`` (without ``out``: into half the memory), with a
            warning.
        out: a folder for finished folds, which a later call with the same arguments finds again.
        disk: bytes that the folds' sums may take there.
        saved: a file (.npz) for the pool. The folds' files are deleted once it is written, and a
            call with the same arguments, rollouts, weights and code reads it instead of scoring; a
            pool of others is scored anew and takes its place.
        config: what else is to be known of the pool: task, seed.
        progress: called with the number of prompts that are done, and of all.

    Raises:
        InputError: no prompts, fewer than 4 rollouts, unequal numbers of them, two prompts of one
            name, completions longer than the model's context, a folder that cannot be written to,
            and whatever :class:`~ustat_pg.llm.scores.Scores` refuses; the prompt is named.
    """
    prompts = _checked(list(pools), language_model)
    scores = Scores(
        language_model.model,
        parameters=parameters,
        memory=MEMORY if memory is None else memory,
        method=method,
        autocast_bf16=autocast_bf16,
    )
    room = _room(scores, len(prompts), memory, folds, out is not None, disk)
    scores.allow(room.memory, room.left)
    labels = _dealt(len(prompts), room.folds)
    made_of = {
        "model": language_model.name,
        "weights": weights_digest(language_model.model),
        "parameters": _hash("\n".join(scores.names)),
        "method": method,
        "autocast_bf16": bool(autocast_bf16),
        "precision": str(scores.dtype),
        "device": scores.device.type,
        "versions": _versions(),
        "code": _code(),
    }
    parts = [np.flatnonzero(labels == fold) for fold in range(room.folds)]
    split = [[prompts[i] for i in index] for index in parts]
    asked = {
        **(config or {}),
        **made_of,
        "parameters": [parameters] if isinstance(parameters, str) else list(parameters),
        "scored_parameters": scores.d,
        "folds": room.folds,
        "made_of": _hash(json.dumps([_made_from(made_of, part) for part in split])),
    }
    store = None if out is None else _Store(Path(out), made_of)
    if saved is not None and (known := _known(Path(saved), prompts, asked)) is not None:
        _say(progress, len(prompts), 0, len(prompts))
        if store is not None:
            store.delete(split)
        return known
    found: list[_Fold] = []
    done = 0
    for part in split:
        ready = store.get(part) if store is not None else None
        if ready is None:
            ready = _score(scores, part, partial(_say, progress, len(prompts), done))
            if store is not None:
                ready = store.put(part, ready)
        done += len(part)
        _say(progress, len(prompts), 0, done)
        found.append(ready)
    back = np.argsort(np.concatenate(parts))
    pool = ScoredPool(
        prompts=tuple(rollouts.prompt.id for rollouts in prompts),
        rewards=np.stack([rollouts.rewards for rollouts in prompts]),
        gram=np.concatenate([fold.gram for fold in found])[back],
        lengths=np.concatenate([fold.lengths for fold in found])[back],
        token_proxy=np.concatenate([fold.token_proxy for fold in found])[back],
        folds=labels,
        fold_gram=_between(found, room.memory),
        config=asked,
    )
    if saved is not None:
        pool.save(saved)
        if store is not None:
            store.delete(split)
    return pool


def _dealt(prompts: int, folds: int) -> NDArray[np.int64]:
    """The fold of each prompt, (P,): sizes differ by one at most."""
    labels = np.empty(prompts, dtype=np.int64)
    order = np.random.default_rng(_SEED).permutation(prompts)
    for fold, index in enumerate(np.array_split(order, folds)):
        labels[index] = fold
    return labels


def _known(path: Path, prompts: Sequence[Rollouts], config: Mapping[str, Any]) -> ScoredPool | None:
    """The pool of an earlier call, if it was made of the same; a damaged file is as good as none."""
    try:
        pool = ScoredPool.load(path)
    except InputError:
        return None
    same = pool.config.get("made_of") == config["made_of"]
    if not same or pool.prompts != tuple(rollouts.prompt.id for rollouts in prompts):
        return None
    return replace(pool, config=config)


def _checked(pools: list[Rollouts], language_model: LanguageModel) -> list[Rollouts]:
    if not pools:
        raise InputError("there are no rollouts: at least one prompt is needed")
    count = len(pools[0].completion_ids)
    names: set[str] = set()
    for rollouts in pools:
        name, number = rollouts.prompt.id, len(rollouts.completion_ids)
        if name in names:
            raise InputError(f"prompt {name!r} occurs twice: its rollouts must be in one place")
        names.add(name)
        if number < LEAST_ROLLOUTS:
            raise InputError(
                f"prompt {name!r} has {number} rollouts: at least {LEAST_ROLLOUTS} are needed"
            )
        if number != count:
            raise InputError(
                f"prompt {name!r} has {number} rollouts and {pools[0].prompt.id!r} {count}: "
                "every prompt must have equally many"
            )
        if np.shape(rollouts.rewards) != (number,) or not np.isfinite(rollouts.rewards).all():
            raise InputError(
                f"prompt {name!r} has rewards {rollouts.rewards!r}: one finite number for each of "
                f"{number} rollouts is needed"
            )
        longest = len(rollouts.prompt_ids) + max(map(len, rollouts.completion_ids))
        if longest > language_model.context:
            raise InputError(
                f"prompt {name!r} and its longest completion have {longest} tokens: the model's "
                f"context is {language_model.context}"
            )
    return pools


def _folds(number: int, sum_bytes: int, room: int, on_disk: bool) -> int:
    """As many folds as are asked for, and fit."""
    fit = room // sum_bytes
    if fit >= number:
        return number
    least = min(LEAST_FOLDS, number)
    allowed = (
        f"disk is {room} bytes"
        if on_disk
        else f"memory is {room * _SHARE} bytes, of which one half may hold sums of gradients"
    )
    where = "disk=" if on_disk else "memory=, or give a folder for them, out="
    if fit < least:
        raise InputError(
            f"{allowed}: sums of gradients of {least} folds take {least * sum_bytes}; raise {where}"
        )
    warnings.warn(
        f"{fit} folds of prompts instead of {number}: sums of gradients take {sum_bytes} bytes each, "
        f"and {allowed}; to have more, raise {where}",
        ChunkWarning,
        stacklevel=4,
    )
    return int(fit)


@dataclass(frozen=True, eq=False)
class _Fold:
    """Results of a fold of p prompts; its sum of gradients is in memory, or in the file."""

    gram: Array
    lengths: Array
    token_proxy: Array
    gradient: NDArray[np.floating] | Path

    def size(self) -> int:
        if isinstance(self.gradient, Path):
            with zipfile.ZipFile(self.gradient) as archive, archive.open(_MEMBER) as file:
                return int(_header(file)[0])
        return len(self.gradient)


_MEMBER = "gradient.npy"


def _score(scores: Scores, prompts: Sequence[Rollouts], progress: Callable[[int], None]) -> _Fold:
    grams, lengths, proxies = [], [], []
    total: Any = None
    for number, rollouts in enumerate(prompts):
        if number:
            progress(number)
        weights = leave_one_out(np.asarray(rollouts.rewards, dtype=np.float64))
        try:
            one = scores.of(rollouts.prompt_ids, rollouts.completion_ids, weights)
        except InputError as error:
            raise InputError(f"prompt {rollouts.prompt.id!r}: {error}") from None
        grams.append(one.gram)
        lengths.append(one.lengths.astype(np.float64))
        proxies.append(one.token_proxy)
        total = one.gradient if total is None else total.add_(one.gradient)
    return _Fold(np.stack(grams), np.stack(lengths), np.stack(proxies), total.cpu().numpy())


def _say(progress: Callable[[int, int], Any] | None, total: int, before: int, done: int) -> None:
    if progress is not None:
        progress(before + done, total)


# Files.


class _Store:
    """A folder of finished folds, each named by a hash of what made it."""

    def __init__(self, folder: Path, made_of: Mapping[str, Any]) -> None:
        self.folder = folder
        self._made_of = dict(made_of)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: folds cannot be kept here: {error.strerror}") from None

    def _path(self, prompts: Sequence[Rollouts]) -> Path:
        return self.folder / f"fold-{_made_from(self._made_of, prompts)}.npz"

    def delete(self, folds: Sequence[Sequence[Rollouts]]) -> None:
        """Take away the files of these folds, and no others."""
        for prompts in folds:
            self._path(prompts).unlink(missing_ok=True)

    def get(self, prompts: Sequence[Rollouts]) -> _Fold | None:
        """The finished fold, or None; a damaged file is as good as none."""
        path = self._path(prompts)
        try:
            # Opened here, so that it is closed where it turns out to be no archive.
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                fold = _Fold(file["gram"], file["lengths"], file["token_proxy"], path)
            fold.size()
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        return fold

    def put(self, prompts: Sequence[Rollouts], fold: _Fold) -> _Fold:
        """Write a fold whole or not at all; the same fold, with its sum of gradients on disk."""
        path = self._path(prompts)
        temporary = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            with temporary.open("wb") as file:
                np.savez(
                    file,
                    gram=fold.gram,
                    lengths=fold.lengths,
                    token_proxy=fold.token_proxy,
                    gradient=np.asarray(fold.gradient),
                )
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise InputError(f"{path}: the fold cannot be kept: {error.strerror}") from None
        finally:
            temporary.unlink(missing_ok=True)
        return _Fold(fold.gram, fold.lengths, fold.token_proxy, path)


def _between(folds: Sequence[_Fold], memory: int) -> Array:
    """Inner products of the folds' sums of gradients, read side by side in blocks."""
    total = np.zeros((len(folds), len(folds)))
    d = folds[0].size()
    step = max(1, memory // (32 * len(folds)))
    with ExitStack() as stack:
        readers = [_reader(fold, stack) for fold in folds]
        for start in range(0, d, step):
            rows = np.stack([reader(start, min(step, d - start)) for reader in readers])
            rows = rows.astype(np.float64)
            total += rows @ rows.T
    return total


def _reader(fold: _Fold, stack: ExitStack) -> Callable[[int, int], NDArray[np.floating]]:
    if not isinstance(fold.gradient, Path):
        array = fold.gradient
        return lambda start, count: array[start : start + count]
    archive = stack.enter_context(zipfile.ZipFile(fold.gradient))
    file = stack.enter_context(archive.open(_MEMBER))
    _, dtype = _header(file)

    def following(start: int, count: int) -> NDArray[np.floating]:
        return np.frombuffer(file.read(count * dtype.itemsize), dtype=dtype)

    return following


def _header(file: Any) -> tuple[int, np.dtype]:
    """Length and type of the array that follows; the file is then at its first entry."""
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return shape[0], dtype


def _made_from(made_of: Mapping[str, Any], prompts: Sequence[Rollouts]) -> str:
    """A hash of all that the results of some prompts depend on."""
    rollouts = [
        [r.prompt.id, list(r.prompt_ids), [list(c) for c in r.completion_ids], list(r.rewards)]
        for r in prompts
    ]
    return _hash(json.dumps([json.dumps(made_of, sort_keys=True), rollouts], default=_plain))


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's."""
    return value.item()


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _versions() -> dict[str, str]:
    names = ("numpy", "torch", "transformers")
    return {"ustat_pg": __version__, **{name: version(name) for name in names}}


def _code() -> str:
    """A hash of the source that computes scores."""
    here = Path(__file__).resolve().parent
    return _hash("".join((here / name).read_text("utf-8") for name in ("scores.py", "scoring.py")))
