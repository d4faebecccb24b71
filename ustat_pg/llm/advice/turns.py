"""Pools of a language model's episodes; a turn is a completion, given everything before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...noise import EpisodePool
from ...validation import InputError, number
from ..models.loading import LanguageModel, check_lengths, tokenise
from ..prompts import Prompt
from ..scores import Asked, Scores

_NEEDED = ("prompt", "episode", "context", "completion", "reward")


def episode_pool(
    language_model: LanguageModel, turns: Iterable[Mapping[str, Any]], **options: Any
) -> EpisodePool:
    """Score the turns of logged episodes by the model that wrote them.

    Arguments:
        language_model: the model, in eval mode.
        turns: one entry per turn, in order within its episode: ``prompt``, a name; ``episode``, a name or
            number within the prompt; ``context``, all that the model read before the turn; ``completion``,
            its output; and ``reward``. Context and completion are texts or lists of token ids; a context may
            also be messages; a text of a completion has no end-of-text token.
        options: parameters, memory, method, autocast_bf16, sketch of :class:`~ustat_pg.llm.scores.Scores`;
            sketch is the size of the pool's scores.

    Raises:
        InputError: a turn lacks an entry, has an empty completion or does not fit the model's context.
    """
    scores = Scores(language_model.model, **options)
    episodes: dict[tuple[Any, Any], list[tuple[float, Asked]]] = {}
    for place, turn in enumerate(turns):
        where = f"turn {place}"
        if missing := [name for name in _NEEDED if name not in turn]:
            raise InputError(f"{where}: {missing[0]} is missing; it must have {', '.join(_NEEDED)}")
        context = _ids(language_model, f"{where}: context", turn["context"])
        completion = _ids(language_model, f"{where}: completion", turn["completion"])
        check_lengths(language_model, where, len(context), len(completion))
        asked = Asked(context, [completion], name=where)
        episodes.setdefault((turn["prompt"], turn["episode"]), []).append(
            (number(f"{where}: reward", turn["reward"]), asked)
        )
    if not episodes:
        raise InputError("there are no turns: give the turns of at least four episodes of a prompt")
    shape = len(episodes), max(map(len, episodes.values()))
    rewards, reached = np.zeros(shape), np.zeros(shape)
    for e, rows in enumerate(episodes.values()):
        rewards[e, : len(rows)], reached[e, : len(rows)] = [reward for reward, _ in rows], 1
    made = scores.many(asked for rows in episodes.values() for _, asked in rows)
    sketches = np.concatenate([one.scores for one in made])
    spread = np.zeros((*shape, sketches.shape[1]))
    spread[reached > 0] = sketches
    names = np.unique([str(prompt) for prompt, _ in episodes], return_inverse=True)[1]
    return EpisodePool(rewards, reached, spread, prompts=names)


def _ids(language_model: LanguageModel, name: str, value: Any) -> tuple[int, ...]:
    """The tokens of a text; a list of tokens is returned as it is."""
    if isinstance(value, str) and name.endswith("completion"):
        tokens = language_model.tokenizer(value, add_special_tokens=False)["input_ids"]
    elif value and (isinstance(value, str) or isinstance(value[0], Mapping)):
        tokens = tokenise(language_model, Prompt(id=name, text=value))
    else:
        tokens = value
    if not len(tokens):
        raise InputError(f"{name} has no tokens")
    return tuple(map(int, tokens))
