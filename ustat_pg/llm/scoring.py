"""Scoring a pool: every prompt's norms and sums, and a sketch of its gradient.

A scored prompt is small, and with a folder it is a file as soon as it is scored. The file's name is a hash
of all that it depends on: the model's weights and the parameters chosen, the prompt's rollouts, the code and
the versions of what computed it. So an interrupted scoring goes on where it stopped, a call of more prompts
scores the further ones, and results of other weights or other rollouts are never taken for these. Several
processes may score different prompts into one folder. A damaged file is as good as none.

Norms and the Gram matrix do not depend on rewards, sums of scores do, linearly: where another verifier gives
other rewards to the same completions, those alone are differentiated whose rewards have changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..digests import source_digest
from ..estimators import KL_KINDS, kl_values
from ..reading import read_arrays
from ..validation import InputError
from ..whole_files import versions
from .models import LanguageModel, check_lengths, tokenise, weights_digest
from .pool import (
    LEAST_ROLLOUTS,
    ScoredPool,
    TokenWeights,
    length_weights,
    moment_weights,
    write_arrays,
)
from .prompts import Task
from .rollouts import Progress, Rollouts, same_prompts
from .scores import Asked, PromptScores, Scores

Array = NDArray[np.float64]


def check_memory(
    language_model: LanguageModel, task: Task, *, by_length: bool = False, **options: Any
) -> Scores:
    """Refuse, before anything is sampled, a model or a length that :func:`score_pool` would refuse.

    The longest prompt goes through the model once, with a completion of ``max_new_tokens``: no completion
    of the task holds more. A short one is differentiated in both ways.

    Returns:
        what scores the rollouts then, for :func:`score_pool`.
    """
    scores = Scores(language_model.model, **options)
    longest = max(len(tokenise(language_model, prompt)) for prompt in task.prompts)
    room = language_model.context - longest
    # A prompt that leaves none is refused when it is sampled.
    scores.require(longest, max(1, min(task.max_new_tokens, room)), more=2 * by_length)
    return scores


def score_pool(
    language_model: LanguageModel,
    pools: Iterable[Rollouts],
    *,
    gram: bool = True,
    by_length: bool = False,
    token_weights: TokenWeights | None = None,
    out: Path | None = None,
    config: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    scores: Scores | None = None,
    **options: Any,
) -> ScoredPool:
    """Score all rollouts of all prompts by the model that wrote them.

    Arguments:
        language_model: the model, in eval mode.
        pools: the rollouts of each prompt, equally many, at least 4.
        gram: keep the Gram matrices too, which weighted baselines need, if the completions of every
            prompt fit in memory at once; else the pool is without.
        by_length: keep the sums of scores over their lengths too, of which
            :func:`~ustat_pg.llm.estimates.noise_to_signal` makes the noise of a loss that averages the tokens
            of a completion; two more sums of the parameters' size on the device.
        token_weights: factors of the scores of tokens, by the ratio to the policy that drew them: the
            rollouts have its log-probabilities. The pool then has the noise and signal of that gradient.
        out: a folder: the prompts go into ``scored``, in which a later call with the same weights, options
            and code finds them again, and the pool into ``scored.npz``. Processes that each score a part of
            the prompts may share it.
        config: further facts of the pool: task, seed.
        progress: called after each prompt.
        scores: those of this model and these options, if they have been made.
        options: parameters, memory, method, autocast_bf16, sketch of
            :class:`~ustat_pg.llm.scores.Scores`.
    """
    prompts = list(pools)
    refuse_unequal(prompts, language_model)
    # Weighted baselines are of scores whose mean is 0.
    gram = gram and token_weights is None
    scores = scores or Scores(language_model.model, **options)
    chosen = options.get("parameters", "all")
    made_by = {
        "model": language_model.name,
        "weights": weights_digest(language_model.model),
        "parameters": [chosen] if isinstance(chosen, str) else list(chosen),
        "method": scores.method,
        "autocast_bf16": scores.autocast_bf16,
        "sketch": scores.sketch,
        "gram": gram,
        "by_length": by_length,
        "token_weights": None if token_weights is None else asdict(token_weights),
        "precision": str(scores.dtype),
        "device": scores.device.type,
        "versions": versions("ustat_pg", "numpy", "torch", "transformers"),
        "code": source_digest(Path(__file__).resolve()),
    }
    files: list[Path | None] = [None] * len(prompts)
    if out is not None:
        for x, rollouts in enumerate(prompts):
            content = _key([made_by, scores.names, _content(rollouts, token_weights)])
            rewards = _key(np.asarray(rollouts.rewards).tolist())
            files[x] = out / "scored" / f"prompt-{content}-{rewards}.npz"
    read = ((x, _read(file)) for x, file in enumerate(files) if file is not None)
    entries = {x: entry for x, entry in read if entry is not None}
    missing = [x for x in range(len(prompts)) if x not in entries]
    # Neighbours go through the model together: those of about one length, the longest first.
    missing.sort(key=lambda x: -_longest(prompts[x]))
    done = len(prompts) - len(missing)
    if progress is not None and done:
        progress("scored", done, len(prompts))
    others = {}
    if gram and not by_length:
        found = ((x, _of_other_rewards(files[x], prompts[x])) for x in missing)
        others = {x: entry for x, entry in found if entry is not None}
    rest = [x for x in missing if x not in others]
    made = chain(
        _rewarded_anew(scores, [(prompts[x], entry) for x, entry in others.items()]),
        _score(scores, [prompts[x] for x in rest], gram, by_length, token_weights),
    )
    missing = [*others, *rest]
    for number, (x, entry) in enumerate(zip(missing, made, strict=True), start=done + 1):
        entries[x] = entry
        if (file := files[x]) is not None:
            _write(file, entry)
        if progress is not None:
            progress("scored", number, len(prompts))
    in_order = [entries[x] for x in range(len(prompts))]
    pool = _pool(prompts, in_order, {**(config or {}), **made_by, "scored_parameters": scores.d})
    if out is not None:
        pool.save(out / "scored.npz")
    return pool


def pool_of_scores(
    scores: Scores, prompts: Sequence[Rollouts], *, gram: bool = False
) -> ScoredPool:
    """The pool of some prompts, scored here and now and kept nowhere; with Gram matrices or without."""
    return _pool(prompts, list(_score(scores, prompts, gram)), {})


def _longest(rollouts: Rollouts) -> int:
    """Tokens of the prompt and its longest completion."""
    return len(rollouts.prompt_ids) + max(map(len, rollouts.completion_ids))


def _score(
    scores: Scores,
    prompts: Sequence[Rollouts],
    gram: bool,
    by_length: bool = False,
    token_weights: TokenWeights | None = None,
) -> Iterator[dict[str, Any]]:
    """Each prompt's entries in the arrays of a pool."""
    entries: list[dict[str, Any]] = []

    def asked() -> Iterator[Asked]:
        for rollouts in prompts:
            rewards, lengths = _facts(rollouts)
            every = moment_weights(rewards)
            weights, factors = _few(every, rewards)[0], None
            entry: dict[str, Any] = {}
            if by_length:
                weights = np.concatenate([weights, length_weights(every, lengths)])
            if token_weights is not None:
                factors, entry = _stale(scores, rollouts, token_weights)
            entries.append(entry)
            ids = rollouts.prompt_ids, rollouts.completion_ids
            yield Asked(*ids, weights, factors, name=rollouts.prompt.id)

    for x, made in enumerate(scores.many(asked(), gram=gram)):
        yield entries[x] | _entry(prompts[x], made, by_length)


def _rewarded_anew(
    scores: Scores, changed: Sequence[tuple[Rollouts, dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """Each prompt's entries from those of other rewards, by the scores of completions whose own changed."""

    def asked() -> Iterator[Asked]:
        for rollouts, before in changed:
            apart = np.asarray(rollouts.rewards) - before["rewards"]
            which = np.flatnonzero(apart)
            completions = [rollouts.completion_ids[i] for i in which]
            yield Asked(
                rollouts.prompt_ids, completions, apart[None, which], name=rollouts.prompt.id
            )

    for (rollouts, before), made in zip(changed, scores.many(asked()), strict=True):
        rewards, _ = _facts(rollouts)
        weights, count = moment_weights(rewards), len(rewards)
        assert made.sketches is not None
        more = made.sketches[0] - before["total_sketches"] * (
            rewards.mean() - before["rewards"].mean()
        )
        sketches = before["sketches"] + more / (count - 1)
        yield before | {
            "rewards": rewards,
            "sums": weights @ before["gram"] @ weights.T,
            # Equal rewards leave exactly nothing.
            "sketches": sketches if np.ptp(rewards) else np.zeros_like(sketches),
        }


def _facts(rollouts: Rollouts) -> tuple[Array, Array]:
    """Rewards and lengths of a prompt's completions."""
    rewards = np.asarray(rollouts.rewards, dtype=np.float64)
    return rewards, np.array([len(ids) for ids in rollouts.completion_ids], dtype=np.float64)


def _entry(rollouts: Rollouts, made: PromptScores, by_length: bool) -> dict[str, Any]:
    """A prompt's entries in the arrays of a pool, without those of an older policy."""
    rewards, lengths = _facts(rollouts)
    back = _few(moment_weights(rewards), rewards)[1]
    few = back.shape[1]
    assert made.products is not None
    assert made.sketches is not None
    entry = {
        "rewards": rewards,
        "squared_norms": made.squared_norms,
        "sums": back @ made.products[:few, :few] @ back.T,
        "lengths": lengths,
        "token_proxy": made.token_proxy,
        "sketches": back[1] @ made.sketches[:few] / (len(rewards) - 1),
        "total_sketches": back[0] @ made.sketches[:few],
        "surprise": made.surprise,
        "surprise_variance": made.surprise_variance,
        "whole": np.array(made.whole),
    }
    if by_length:
        entry["length_sums"] = made.products[few:, few:]
        entry["length_sketches"] = made.sketches[few:]
    if made.gram is not None:
        entry["gram"] = made.gram
    return entry


def _stale(
    scores: Scores, rollouts: Rollouts, token_weights: TokenWeights
) -> tuple[list[Any], dict[str, Any]]:
    """The weights of each completion's tokens, and the pool's entries that compare the two policies."""
    old, name = rollouts.log_probs, rollouts.prompt.id
    if old is None:
        raise InputError(
            f"prompt {name!r}: its rollouts have no log-probabilities of the policy that drew them"
        )
    lengths = np.array([len(ids) for ids in rollouts.completion_ids])
    mask = np.arange(lengths.max()) < lengths[:, None]
    log_ratio = np.zeros(mask.shape)
    try:
        new = scores.log_probs(rollouts.prompt_ids, rollouts.completion_ids)
    except InputError as error:
        raise InputError(f"prompt {name!r}: {error}") from None
    log_ratio[mask] = np.concatenate(new) - np.concatenate([np.array(logs) for logs in old])
    factors = token_weights.of(log_ratio, mask, rollouts.rewards)
    kinds = [kl_values(log_ratio, kind).sum(axis=1) for kind in KL_KINDS]
    entry = {
        "divergences": np.stack(kinds, axis=1),
        "bound": token_weights.bound(log_ratio, mask, rollouts.rewards),
    }
    return [row[here] for row, here in zip(factors, mask, strict=True)], entry


def _few(weights: Array, rewards: Array) -> tuple[Array, Array]:
    """As many weights as there are different rewards, at most 3, and the matrix that gives 1, z̃, z̃² of them.

    For two rewards, 0 and 1 for example, the sums for each are enough: one sum fewer to hold.
    """
    values, place = np.unique(rewards, return_index=True)
    if len(values) > 2:
        return weights, np.eye(3)
    return (rewards == values[:, None]).astype(np.float64), weights[:, place]


def _pool(
    prompts: Sequence[Rollouts], entries: Sequence[dict[str, Any]], config: Mapping[str, Any]
) -> ScoredPool:
    """One prompt after the other; Gram matrices only where every prompt has one."""
    common = set.intersection(*map(set, entries)) - {"whole"}
    numbers = same_prompts(prompts)
    return ScoredPool(
        clusters=np.array(numbers) if max(numbers) + 1 < len(numbers) else None,
        prompts=tuple(rollouts.prompt.id for rollouts in prompts),
        config={**config, "whole_sums": all(bool(entry["whole"]) for entry in entries)},
        **{name: np.stack([entry[name] for entry in entries]) for name in sorted(common)},
    )


def refuse_unequal(pools: Sequence[Rollouts], language_model: LanguageModel) -> None:
    """Refuse rollouts that make no pool, before hours of scoring."""
    if not pools:
        raise InputError("there are no rollouts: at least one prompt is needed")
    count = len(pools[0].completion_ids)
    for rollouts in pools:
        name, number = rollouts.prompt.id, len(rollouts.completion_ids)
        if number < LEAST_ROLLOUTS or number != count:
            raise InputError(
                f"prompt {name!r} has {number} rollouts and {pools[0].prompt.id!r} {count}: every prompt "
                f"must have equally many, at least {LEAST_ROLLOUTS}"
            )
        longest = max(map(len, rollouts.completion_ids))
        check_lengths(language_model, name, len(rollouts.prompt_ids), longest)


# Files.


def _read(path: Path) -> dict[str, Any] | None:
    """A finished prompt, or None; a damaged file is as good as none."""
    try:
        return read_arrays(path)
    except InputError:
        return None


def _of_other_rewards(path: Path | None, rollouts: Rollouts) -> dict[str, Any] | None:
    """The same completions with other rewards, as few others as there are, and a Gram matrix; or None."""
    if path is None:
        return None
    content, _, _ = path.stem.rpartition("-")
    read = (_read(other) for other in sorted(path.parent.glob(f"{content}-*.npz")))
    entries = [entry for entry in read if entry is not None and "gram" in entry]
    apart = [np.count_nonzero(entry["rewards"] != rollouts.rewards) for entry in entries]
    return entries[int(np.argmin(apart))] if entries else None


def _write(path: Path, entry: dict[str, Any]) -> None:
    try:
        write_arrays(path, **entry)
    except OSError as error:
        raise InputError(f"{path}: a scored prompt cannot be kept: {error.strerror}") from None


def _content(rollouts: Rollouts, token_weights: TokenWeights | None) -> list[Any]:
    """The parts of a prompt's rollouts, except rewards, that its scores depend on."""
    return [
        rollouts.prompt.id,
        rollouts.prompt_ids,
        rollouts.completion_ids,
        None if token_weights is None else rollouts.log_probs,
    ]


def _key(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=lambda number: number.item())
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
