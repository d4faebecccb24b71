"""From a model and a task to a scored pool: sample, reward, score, each part kept as it is finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..memory import in_slices
from ..validation import InputError
from .scored import ScoredPool

if TYPE_CHECKING:
    from .models import LanguageModel
    from .prompts import Task
    from .store import Rollouts

__all__ = ["Progress", "collect", "greedy_rewards", "score"]

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
    from .rollouts import sample

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
            config of
            :func:`~ustat_pg.llm.scoring.score_pool`.

    Raises:
        InputError: as that function says.
    """
    from .scoring import score_pool

    return score_pool(
        language_model,
        pools,
        out=None if out is None else out / "scored",
        saved=None if out is None else out / "scored.npz",
        progress=None if progress is None else lambda done, of: progress("scored", done, of),
        **options,
    )


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
    from .generation import most_probable
    from .models import check_lengths, tokenise
    from .prompts import VerifierError
    from .rollouts import decoded

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
