"""From a model and a task to a scored pool: sample, reward, score, each part kept as it is finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..validation import InputError
from .scored import ScoredPool

if TYPE_CHECKING:
    from .models import LanguageModel
    from .prompts import Task
    from .store import Rollouts

__all__ = ["Progress", "collect", "score"]

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the prompts done and all prompts."""


def collect(
    language_model: LanguageModel,
    task: Task | None,
    rollouts: int = 64,
    *,
    seed: int = 0,
    out: Path | None = None,
    file: Path | None = None,
    log: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> list[Rollouts]:
    """Rollouts of every prompt of a task: a file's, or sampled.

    Arguments:
        language_model: what samples, or wrote the file.
        task: prompts and verifier; None where a file has its own prompts and rewards.
        rollouts: N, of each prompt.
        seed: of the draws.
        out: a folder, in which ``rollouts.jsonl`` grows; an interrupted call goes on there.
        file: a user's own rollouts, see :func:`~ustat_pg.llm.files.load_rollouts`.
        log: what of a log is a group, and its rewards: ``group_by`` and ``reward`` of the same function;
            and whether another policy drew them, ``stale``.
        progress: called after each prompt.
        options: batch, backend, vllm_options of :func:`~ustat_pg.llm.rollouts.sample`.

    Raises:
        InputError: as these functions say, or a verifier that raised at every prompt.
    """
    from .files import load_rollouts
    from .rollouts import sample

    if file is not None:
        return list(load_rollouts(file, language_model, task, **(log or {})))
    if task is None:
        raise InputError("there is neither a task to sample nor a file of rollouts")
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
