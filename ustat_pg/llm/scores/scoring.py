"""Scoring a pool: the norm and a sketch of every completion's score.

A scored prompt is small, and if a folder is given it is saved as a file at once. The file's name is a hash of
everything that it depends on: the model's weights and the chosen parameters, the prompt's rollouts, the code
and the versions of libraries. So an interrupted scoring continues where it stopped, a call with more prompts
scores only the new ones, and results of other weights or rollouts are never reused. Several processes may
score different prompts into one folder. A damaged file is ignored.

Scores do not depend on rewards: if another verifier gives other rewards to the same completions, scores are
    not computed again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ...estimators import KL_KINDS, kl_values
from ...files.digests import source_digest
from ...files.reading import read_arrays
from ...files.whole import versions
from ...validation import InputError
from ..models.loading import LanguageModel, check_lengths, tokenise, weights_digest
from ..pool.scored import LEAST_ROLLOUTS, ScoredPool, TokenWeights, write_arrays
from ..prompts import Task
from ..rollouts.stored import Progress, Rollouts, same_prompts
from . import Asked, Scores


def check_memory(language_model: LanguageModel, task: Task, **options: Any) -> Scores:
    """Raise an error before sampling if :func:`score_pool` would not accept the model or the lengths.

    The longest prompt goes through the model once, with a completion of ``max_new_tokens``, the longest of
    the task. A short completion is differentiated in both ways.

    Returns:
        the scores object for :func:`score_pool`.
    """
    scores = Scores(language_model.model, **options)
    longest = max(len(tokenise(language_model, prompt)) for prompt in task.prompts)
    room = language_model.context - longest
    # A prompt without room for tokens raises an error when it is sampled.
    scores.require(longest, max(1, min(task.max_new_tokens, room)))
    return scores


def score_pool(
    language_model: LanguageModel,
    pools: Iterable[Rollouts],
    *,
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
        pools: rollouts of each prompt, equally many, at least 4.
        token_weights: factors of the tokens' scores, from the ratio to the policy that drew them; the
            rollouts must have its log-probabilities. The pool then gives the noise and signal of that
            gradient.
        out: folder for results: prompts in ``scored``, where a later call with the same weights, options and
            code finds them, and the pool in ``scored.npz``. Processes that score different prompts may share
            it.
        config: further information on the pool, such as task and seed.
        progress: called after each prompt.
        scores: scores object of this model and these options, if it exists.
        options: parameters, memory, method, autocast_bf16, sketch, optimizer of
            :class:`~ustat_pg.llm.scores.Scores`.
    """
    prompts = list(pools)
    refuse_unequal(prompts, language_model)
    scores = scores or Scores(language_model.model, **options)
    chosen = options.get("parameters", "all")
    made_by = {
        "model": language_model.name,
        "weights": weights_digest(language_model.model),
        "parameters": [chosen] if isinstance(chosen, str) else list(chosen),
        "method": scores.method,
        "autocast_bf16": scores.autocast_bf16,
        "sketch": scores.sketch,
        "token_weights": None if token_weights is None else asdict(token_weights),
        "precision": str(scores.dtype),
        "device": scores.device.type,
        "versions": versions("ustat_pg", "numpy", "torch", "transformers"),
        "code": source_digest(Path(__file__).resolve()),
    }
    if scores.metric is not None:
        made_by["metric"] = dict(scores.metric.facts)
    files: list[Path | None] = [None] * len(prompts)
    if out is not None:
        for x, rollouts in enumerate(prompts):
            content = _key([made_by, scores.names, _content(rollouts, token_weights)])
            files[x] = out / "scored" / f"prompt-{content}.npz"
    read = ((x, _read(file)) for x, file in enumerate(files) if file is not None)
    entries = {x: entry for x, entry in read if entry is not None}
    missing = [x for x in range(len(prompts)) if x not in entries]
    # Neighbours go through the model together, so prompts are sorted by length, the longest first.
    missing.sort(key=lambda x: -_longest(prompts[x]))
    done = len(prompts) - len(missing)
    if progress is not None and done:
        progress("scored", done, len(prompts))
    made = _score(scores, [prompts[x] for x in missing], token_weights)
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


def pool_of_scores(scores: Scores, prompts: Sequence[Rollouts]) -> ScoredPool:
    """The pool of some prompts, scored without saving."""
    return _pool(prompts, list(_score(scores, prompts)), {})


def _longest(rollouts: Rollouts) -> int:
    """Tokens of the prompt and its longest completion."""
    return len(rollouts.prompt_ids) + max(map(len, rollouts.completion_ids))


def _score(
    scores: Scores, prompts: Sequence[Rollouts], token_weights: TokenWeights | None = None
) -> Iterator[dict[str, Any]]:
    """Each prompt's entries in the arrays of a pool."""
    entries: list[dict[str, Any]] = []

    def asked() -> Iterator[Asked]:
        for rollouts in prompts:
            factors: list[Any] | None = None
            entry: dict[str, Any] = {}
            if token_weights is not None:
                factors, entry = _stale(scores, rollouts, token_weights)
            entries.append(entry)
            ids = rollouts.prompt_ids, rollouts.completion_ids
            yield Asked(*ids, factors, name=rollouts.prompt.id)

    for x, made in enumerate(scores.many(asked())):
        yield entries[x] | {name: each for name, each in vars(made).items() if each is not None}


def _stale(
    scores: Scores, rollouts: Rollouts, token_weights: TokenWeights
) -> tuple[list[Any], dict[str, Any]]:
    """The weights of each completion's tokens, and the pool's entries for comparing the two policies."""
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


def _pool(
    prompts: Sequence[Rollouts], entries: Sequence[dict[str, Any]], config: Mapping[str, Any]
) -> ScoredPool:
    """Score one prompt after the other."""
    numbers = same_prompts(prompts)
    return ScoredPool(
        clusters=np.array(numbers) if max(numbers) + 1 < len(numbers) else None,
        prompts=tuple(rollouts.prompt.id for rollouts in prompts),
        rewards=np.stack([rollouts.rewards for rollouts in prompts]),
        lengths=np.array([[len(ids) for ids in rollouts.completion_ids] for rollouts in prompts]),
        config=config,
        **{name: np.stack([entry[name] for entry in entries]) for name in entries[0]},
    )


def refuse_unequal(pools: Sequence[Rollouts], language_model: LanguageModel) -> None:
    """Raise an error before hours of scoring if the rollouts cannot form a pool."""
    if not pools:
        raise InputError("there are no rollouts: give at least one prompt")
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
    """A finished prompt, or None; a damaged file counts as missing."""
    try:
        return read_arrays(path)
    except InputError:
        return None


def _write(path: Path, entry: dict[str, Any]) -> None:
    try:
        write_arrays(path, **entry)
    except OSError as error:
        raise InputError(f"{path}: a scored prompt cannot be saved: {error.strerror}") from None


def _content(rollouts: Rollouts, token_weights: TokenWeights | None) -> list[Any]:
    """The parts of a prompt's rollouts on which its scores depend."""
    content: list[Any] = [rollouts.prompt.id, rollouts.prompt_ids, rollouts.completion_ids]
    if token_weights is not None:
        # Clipping depends on the sign of the advantage.
        content += [rollouts.log_probs, np.asarray(rollouts.rewards).tolist()]
    return content


def _key(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=lambda number: number.item())
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
