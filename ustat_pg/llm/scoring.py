"""Scoring a pool: every prompt's norms and sums, and a sketch of its gradient.

What is kept of a prompt is small, and with a folder it is a file as soon as the prompt is scored. The
file's name is a hash of all that it depends on: the model's weights and the parameters chosen, the
prompt's rollouts, the code and the versions of what computed it. So an interrupted scoring goes on where
it stopped, and results of other weights or other rollouts are never taken for these. Several processes
may score different prompts into one folder; a last call with all prompts finds every file there and only
puts the pool together. Once the pool itself is saved these files are deleted: it has the same hashes, and a
later call, of more prompts or of fewer, takes from it what it can.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..digests import source_digest
from ..reading import read_arrays
from ..validation import InputError
from ..whole_files import versions
from .models import LanguageModel, check_lengths, tokenise, weights_digest
from .pool import (
    LEAST_ROLLOUTS,
    ScoredPool,
    TokenWeights,
    divergences,
    length_weights,
    moment_weights,
    write_arrays,
)
from .prompts import Task
from .rollouts import Progress, Rollouts
from .scores import Scores

__all__ = ["check_memory", "pool_of_scores", "score", "score_pool"]

Array = NDArray[np.float64]


def check_memory(
    language_model: LanguageModel,
    task: Task,
    *,
    by_length: bool = False,
    **options: Any,
) -> None:
    """Refuse, before anything is sampled, what :func:`score_pool` would refuse after it.

    The longest prompt goes through the model once, with a completion of ``max_new_tokens``: what that
    holds is what any completion of the task holds at most. A short one is differentiated in both ways.

    Arguments:
        language_model: the model.
        task: prompts, and the longest completion.
        by_length: as for :func:`score_pool`.
        options: of :class:`~ustat_pg.llm.scores.Scores`.

    Raises:
        InputError: as :class:`~ustat_pg.llm.scores.Scores` says.
    """
    scores = Scores(language_model.model, **options)
    longest = max(len(tokenise(language_model, prompt)) for prompt in task.prompts)
    room = language_model.context - longest
    # A prompt that leaves none is refused by what samples.
    scores.require(longest, max(1, min(task.max_new_tokens, room)), more=2 * by_length)


def score_pool(
    language_model: LanguageModel,
    pools: Iterable[Rollouts],
    *,
    gram: bool = True,
    by_length: bool = False,
    token_weights: TokenWeights | None = None,
    out: str | os.PathLike[str] | None = None,
    saved: str | os.PathLike[str] | None = None,
    config: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], Any] | None = None,
    **options: Any,
) -> ScoredPool:
    """Score all rollouts of all prompts by the model that wrote them.

    Arguments:
        language_model: the model, in eval mode.
        pools: the rollouts of each prompt, N >= 4 of every one.
        gram: keep the Gram matrices too, which weighted baselines need, if the completions of every
            prompt fit in memory at once; else the pool is without.
        by_length: keep the sums of scores over their lengths too, of which
            :func:`~ustat_pg.llm.estimates.noise_to_signal` makes what a loss that averages the tokens of a
            completion does; two more sums of the parameters' size on the device.
        token_weights: what multiplies the scores of tokens, by the ratio to the policy that drew them: the
            rollouts have its log-probabilities. The pool then has the noise and signal of that gradient.
        out: a folder for finished prompts, which a later call with the same arguments finds again.
            Processes that each score a part of the prompts may share it.
        saved: a file (.npz) for the pool. The prompts' files are deleted once it is written, and a
            call with the same arguments, weights and code takes from it the prompts whose rollouts are
            the same; the new pool takes its place, and of prompts that are not asked for now files stay.
        config: what else is to be known of the pool: task, seed.
        progress: called with the number of prompts that are done, and of all.
        options: parameters, memory, method, autocast_bf16, sketch of
            :class:`~ustat_pg.llm.scores.Scores`.

    Raises:
        InputError: no prompts, fewer than 4 rollouts, unequal numbers of them, two prompts of one
            name, completions longer than the model's context, rollouts without log-probabilities where
            tokens are weighted, a folder that cannot be written to,
            and whatever :class:`~ustat_pg.llm.scores.Scores` refuses; the prompt is named.
    """
    prompts = _checked(list(pools), language_model)
    # Weighted baselines are of scores whose mean is 0.
    gram = gram and token_weights is None
    scores = Scores(language_model.model, **options)
    made_of = {
        "model": language_model.name,
        "weights": weights_digest(language_model.model),
        "parameters": _hash("\n".join(scores.names)),
        "method": scores.method,
        "autocast_bf16": scores.autocast_bf16,
        "sketch": scores.sketch,
        "gram": bool(gram),
        "by_length": bool(by_length),
        "token_weights": None if token_weights is None else token_weights.config,
        "precision": str(scores.dtype),
        "device": scores.device.type,
        "versions": versions("ustat_pg", "numpy", "torch", "transformers"),
        "code": source_digest(Path(__file__).resolve()),
    }
    chosen = options.get("parameters", "all")
    made = _hash(json.dumps(made_of, sort_keys=True))[:16]
    names = [f"{made}-{_rollouts_digest(rollouts, token_weights)}" for rollouts in prompts]
    asked = {
        **(config or {}),
        **made_of,
        "parameters": [chosen] if isinstance(chosen, str) else list(chosen),
        "scored_parameters": scores.d,
        "made_of": names,
    }
    parts = None if out is None else _folder(Path(out))
    before = {} if saved is None else _before(Path(saved), made)

    def done(number: int) -> None:
        if progress is not None:
            progress(number, len(prompts))

    found = []
    for number, (rollouts, name) in enumerate(zip(prompts, names, strict=True), start=1):
        _, one = before.pop(name, (None, None))
        # A file that is still there has the Gram matrix that the pool may lack.
        if parts is not None:
            one = _read(_part(parts, name)) or one
        if one is None:
            one = _score(scores, rollouts, gram, by_length, token_weights)
            if parts is not None:
                _write(_part(parts, name), one)
        found.append(one)
        done(number)
    pool = _pool(prompts, found, asked)
    if saved is not None:
        if parts is not None:
            for name, (prompt, one) in before.items():
                if prompt not in pool.prompts:
                    _write(_part(parts, name), one)
        pool.save(saved)
        if parts is not None:
            for name, one in zip(names, found, strict=True):
                if "gram" not in one or pool.gram is not None:
                    _part(parts, name).unlink(missing_ok=True)
            with suppress(OSError):
                parts.rmdir()
    return pool


def pool_of_scores(scores: Scores, prompts: Sequence[Rollouts]) -> ScoredPool:
    """The pool of some prompts, scored here and now and kept nowhere.

    Raises:
        InputError: as for :func:`score_pool`.
    """
    return _pool(prompts, [_score(scores, rollouts, False) for rollouts in prompts], {})


def _score(
    scores: Scores,
    rollouts: Rollouts,
    gram: bool,
    by_length: bool = False,
    token_weights: TokenWeights | None = None,
) -> dict[str, Any]:
    """A prompt's entries in the arrays of a pool."""
    rewards = np.asarray(rollouts.rewards, dtype=np.float64)
    every = moment_weights(rewards)
    weights, back = _few(every, rewards)
    few = len(weights)
    if by_length:
        lengths = np.array([len(each) for each in rollouts.completion_ids], dtype=np.float64)
        weights = np.concatenate([weights, length_weights(every, lengths)])
    more, factors = dict[str, Array](), None
    try:
        if token_weights is not None:
            factors, more = _stale(scores, rollouts, token_weights)
        one = scores.of(
            rollouts.prompt_ids,
            rollouts.completion_ids,
            weights,
            gram=gram,
            token_weights=factors,
        )
    except InputError as error:
        raise InputError(f"prompt {rollouts.prompt.id!r}: {error}") from None
    assert one.products is not None
    assert one.sketches is not None
    found = {
        "rewards": rewards,
        "squared_norms": one.squared_norms,
        "sums": back @ one.products[:few, :few] @ back.T,
        "lengths": one.lengths.astype(np.float64),
        "token_proxy": one.token_proxy,
        "sketches": back[1] @ one.sketches[:few] / (len(rewards) - 1),
        "surprise": one.surprise,
        "surprise_variance": one.surprise_variance,
        "whole": np.array(one.whole),
        **more,
    }
    if token_weights is not None:
        found["total_sketches"] = back[0] @ one.sketches[:few]
    if by_length:
        found |= {
            "length_sums": one.products[few:, few:],
            "length_sketches": one.sketches[few:],
        }
    return found if one.gram is None else found | {"gram": one.gram}


def _stale(
    scores: Scores, rollouts: Rollouts, token_weights: TokenWeights
) -> tuple[list[Any], dict[str, Array]]:
    """The weights of each completion's tokens, and what else the ratio of the two policies says."""
    old = rollouts.log_probs
    if old is None:
        raise InputError("its rollouts have no log-probabilities of the policy that drew them")
    lengths = np.array([len(each) for each in rollouts.completion_ids])
    if [len(each) for each in old] != lengths.tolist():
        raise InputError("its rollouts have log-probabilities of another number of tokens")
    mask = np.arange(lengths.max()) < lengths[:, None]
    log_ratio = np.zeros(mask.shape)
    new = scores.log_probs(rollouts.prompt_ids, rollouts.completion_ids)
    log_ratio[mask] = np.concatenate(new) - np.concatenate([np.array(each) for each in old])
    if not np.isfinite(log_ratio).all():
        raise InputError("log-probabilities of the policy that drew the rollouts are not finite")
    factors = token_weights.of(log_ratio, mask, rollouts.rewards)
    more = {
        "divergences": divergences(log_ratio),
        "bound": token_weights.bound(log_ratio, mask, rollouts.rewards),
    }
    return [row[here] for row, here in zip(factors, mask, strict=True)], more


def _few(weights: Array, rewards: Array) -> tuple[Array, Array]:
    """As many of 1, z̃, z̃² as there are different rewards, and the matrix that gives all three.

    Two rewards, 0 and 1 for example, are the roots of z̃² = (u + v) z̃ - u v: one sum fewer to hold.
    """
    values, place = np.unique(rewards, return_index=True)
    if len(values) > 2:
        return weights, np.eye(3)
    if len(values) == 1:
        return weights[:1], np.eye(3)[:, :1]
    u, v = weights[1, place]
    return weights[:2], np.array([[1.0, 0.0], [0.0, 1.0], [-u * v, u + v]])


def _pool(
    prompts: Sequence[Rollouts], found: Sequence[dict[str, Any]], config: Mapping[str, Any]
) -> ScoredPool:
    """One prompt after the other; Gram matrices only where every prompt has one."""
    every = set.intersection(*(set(one) for one in found)) - {"whole"}
    return ScoredPool(
        prompts=tuple(rollouts.prompt.id for rollouts in prompts),
        config={**config, "whole_sums": all(bool(one["whole"]) for one in found)},
        **{name: np.stack([one[name] for one in found]) for name in sorted(every)},
    )


def _before(path: Path, made: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """By their names, the prompts of an earlier call's pool and their entries, if they were made so.

    A damaged file is as good as none.
    """
    try:
        pool = ScoredPool.load(path)
    except InputError:
        return {}
    names = pool.config.get("made_of")
    if not isinstance(names, list):
        return {}
    whole = {"whole": np.array(pool.config["whole_sums"])}
    found = zip(names, pool.prompts, pool.entries(), strict=True)
    return {
        name: (prompt, one | whole) for name, prompt, one in found if name.startswith(f"{made}-")
    }


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
        longest = max(map(len, rollouts.completion_ids))
        check_lengths(language_model, name, len(rollouts.prompt_ids), longest)
    return pools


# Files.


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: scored prompts cannot be kept here: {error.strerror}") from None
    return path


def _part(folder: Path, name: str) -> Path:
    return folder / f"prompt-{name}.npz"


def _write(path: Path, one: dict[str, Any]) -> None:
    try:
        write_arrays(path, **one)
    except OSError as error:
        raise InputError(f"{path}: a scored prompt cannot be kept: {error.strerror}") from None


def _read(path: Path) -> dict[str, Any] | None:
    """A finished prompt, or None; a damaged file is as good as none."""
    try:
        return read_arrays(path)
    except InputError:
        return None


def _rollouts_digest(rollouts: Rollouts, token_weights: TokenWeights | None) -> str:
    """A hash of what a prompt's scores depend on besides the model and the code."""
    own: list[Any] = [
        rollouts.prompt.id,
        list(rollouts.prompt_ids),
        [list(c) for c in rollouts.completion_ids],
        list(rollouts.rewards),
    ]
    if token_weights is not None:
        own.append(rollouts.log_probs)
    return _hash(json.dumps(own, default=_plain))


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's."""
    return value.item()


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def score(
    language_model: LanguageModel,
    pools: Sequence[Rollouts],
    *,
    out: Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> ScoredPool:
    """Score a pool; in a folder it leaves ``scored.npz``.

    Finished prompts, from which an interrupted call goes on, are in ``scored`` until then and deleted
    after. A call with the same weights and options takes from ``scored.npz`` the prompts whose rollouts
    are the same; where the weights, the options or the code differ, all is scored anew.

    Arguments:
        language_model: whose scores.
        pools: rollouts of each prompt.
        out: the folder.
        progress: called after each prompt.
        options: parameters, memory, method, autocast_bf16, sketch, gram, by_length, token_weights,
            config of :func:`score_pool`.

    Raises:
        InputError: as that function says.
    """
    return score_pool(
        language_model,
        pools,
        out=None if out is None else out / "scored",
        saved=None if out is None else out / "scored.npz",
        progress=None if progress is None else lambda done, of: progress("scored", done, of),
        **options,
    )
