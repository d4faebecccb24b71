"""Sampling completions from the model itself: temperature 1, no truncation, no penalties.

:func:`transformers_draw` chooses each token as the inverse of the distribution function at an addressed
uniform, see :mod:`ustat_pg.sampling.rng`: a draw is a function of (seed, prompt, completion, position). So
order, batches and interruptions change only the rounding of the model's logits, and two models share
draws.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...execution.memory import in_slices
from ...sampling.rng import cell_key, words
from ...validation import InputError
from .loading import LanguageModel, end_tokens


class Drawn(NamedTuple):
    """Completions of a prompt: the tokens of each, and their log-probabilities if they are known."""

    tokens: tuple[tuple[int, ...], ...]
    log_probs: tuple[tuple[float, ...], ...] | None = None


def stripped(ids: Sequence[int], ends: Sequence[int]) -> tuple[int, ...]:
    """The tokens up to and including the first end token.

    The pad token can be drawn like any other token, so it does not mark the end.

    >>> stripped([5, 0, 1, 0, 0], [1])
    (5, 0, 1)
    """
    for position, token in enumerate(ids):
        if token in ends:
            return tuple(ids[: position + 1])
    return tuple(ids)


def uniforms(
    seed: int, prompt: str, completions: Sequence[int], length: int
) -> NDArray[np.float64]:
    """The uniforms in [0, 1) that choose the tokens of some of a prompt's completions, (n, length).

    They have 53 bits each. Completion i is the same for every n, and its beginning is the same for every
    length.
    """
    bits = words(cell_key(seed, f"rollouts\x00{prompt}"), completions, 0, 2 * length)
    high, low = bits[:, 0::2].astype(np.uint64), bits[:, 1::2].astype(np.uint64)
    return ((high >> np.uint64(5)) * 2.0**26 + (low >> np.uint64(6))) * 2.0**-53


def _inverse_cdf(
    draws: NDArray[np.float64],
    prompt_tokens: int,
    names: Sequence[str],
    ends: Sequence[int],
    logs: list[Any],
) -> Callable[[Any, Any], Any]:
    """A logits processor that keeps one token: the inverse of the distribution function at a uniform.

    Greedy choice of this token is then an exact draw from the softmax of the raw logits. ``names`` are the
    prompts' of the rows, for messages; ``logs`` gets the log-probabilities of the chosen tokens, (rows,) for
    each position.
    """

    def process(input_ids: Any, scores: Any) -> Any:
        import torch

        # MPS has no float64; on other devices it keeps the sums over a large vocabulary exact.
        exact = torch.float32 if scores.device.type == "mps" else torch.float64
        probs = torch.softmax(scores.to(exact), dim=-1)
        sums = probs.cumsum(dim=-1)
        for row in (~torch.isfinite(sums[:, -1])).nonzero().flatten().tolist():
            drawn = input_ids[row, prompt_tokens:].tolist()
            # Tokens after the end of a completion are discarded.
            if not set(ends).intersection(drawn):
                raise InputError(
                    f"the model's logits for token {len(drawn) + 1} of a completion of prompt "
                    f"{names[row]!r} are not finite: nothing can be drawn from them; look at "
                    "its weights, or take a wider dtype"
                )
        step = torch.as_tensor(draws[:, input_ids.shape[1] - prompt_tokens], dtype=exact)
        # Times the last sum: rounding must not put a uniform behind the last token.
        level = step.to(scores.device)[:, None] * sums[:, -1:]
        chosen = torch.searchsorted(sums, level, right=True).clamp_(max=scores.shape[-1] - 1)
        logs.append(probs.gather(1, chosen)[:, 0].log())
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen, 0.0)

    return process


def transformers_draw(
    language_model: LanguageModel,
    prompts: Sequence[tuple[str, tuple[int, ...]]],
    rollouts: int,
    length: int,
    seed: int,
    batch: int,
    first: int = 0,
) -> Iterator[list[Drawn]]:
    """Draw completions of each prompt in turn with ``generate``; several prompts share a call and are
    returned together.

    Prompts are ids and tokens. ``batch`` is halved, with a warning, if memory runs out; ``first`` is the
    number of a prompt's first completion, so that its draws continue.
    """

    def drawn(part: slice) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        numbers = (divmod(number, rollouts) for number in range(part.start, part.stop))
        rows = [(*prompts[which], first + i) for which, i in numbers]
        return _generate(language_model, rows, length, seed)

    total, waiting = rollouts * len(prompts), []
    for _, part in in_slices(total, batch, "completions", drawn):
        waiting += part
        done = []
        while len(waiting) >= rollouts:
            tokens, logs = zip(*waiting[:rollouts], strict=True)
            del waiting[:rollouts]
            done.append(Drawn(tokens, logs))
        if done:
            yield done


def _generate(
    language_model: LanguageModel,
    rows: Sequence[tuple[str, tuple[int, ...], int]],
    length: int,
    seed: int,
) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Tokens and log-probabilities of a completion for each row (prompt's id, its tokens, which one)."""
    import torch
    from transformers import GenerationConfig

    numbers: dict[str, list[int]] = {}
    for name, _, i in rows:
        numbers.setdefault(name, []).append(i)
    draws = np.concatenate([uniforms(seed, name, i, length) for name, i in numbers.items()])
    ends, pad = end_tokens(language_model), language_model.tokenizer.pad_token_id
    width, device = max(len(ids) for _, ids, _ in rows), language_model.device
    number = {prompt: x for x, prompt in enumerate(dict.fromkeys(ids for _, ids, _ in rows))}
    padded = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in number])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in number])
    padded, mask = padded.to(device), mask.to(device)
    whose = torch.tensor([number[prompt] for _, prompt, _ in rows], device=device)
    steps: list[Any] = []
    choose: Any = _inverse_cdf(draws, width, [name for name, _, _ in rows], ends, steps)
    settings = GenerationConfig(
        max_new_tokens=length,
        do_sample=False,
        eos_token_id=list(ends) or None,
        pad_token_id=pad,
        use_cache=True,
    )
    with _plain_generation(language_model.model):
        out = language_model.model.generate(
            padded[whose],
            attention_mask=mask[whose],
            generation_config=settings,
            logits_processor=[choose],
            **_read_once(language_model.model, padded, mask, whose, pad),
        )
    drawn = [stripped(row, ends) for row in out[:, width:].tolist()]
    # Values are rounded to the model's own precision.
    logs = torch.stack(steps, dim=1).round(decimals=7).tolist()
    return [(ids, tuple(row[: len(ids)])) for ids, row in zip(drawn, logs, strict=True)]


def _read_once(model: Any, padded: Any, mask: Any, whose: Any, pad: int) -> dict[str, Any]:
    """The model's cache for each prompt without its last token, computed once for all rows of the prompt.

    It is None if that saves nothing, or if the model has another kind of cache.
    """
    from transformers import Cache, GenerationConfig

    if len(padded) == len(whose) or padded.shape[1] < 2:
        return {}
    read = model.generate(
        padded[:, :-1],
        attention_mask=mask[:, :-1],
        generation_config=GenerationConfig(
            max_new_tokens=1,
            do_sample=False,
            use_cache=True,
            pad_token_id=pad,
            return_dict_in_generate=True,
        ),
    )
    kept = getattr(read, "past_key_values", None)
    if not isinstance(kept, Cache):
        return {}
    kept.reorder_cache(whose)
    return {"past_key_values": kept}


@contextlib.contextmanager
def _plain_generation(model: Any) -> Iterator[None]:
    """The model in eval mode and without its own generation settings.

    ``generate`` takes missing settings from the model, so a stored temperature, top-k or repetition penalty
    would change the distribution.
    """
    from transformers import GenerationConfig

    # In an adapter, the base model inside is the owner.
    owners = [module for module in model.modules() if "generation_config" in vars(module)]
    stored, training = [owner.generation_config for owner in owners], model.training
    model.eval()
    for owner in owners:
        owner.generation_config = GenerationConfig()
    try:
        yield
    finally:
        for owner, settings in zip(owners, stored, strict=True):
            owner.generation_config = settings
        model.train(training)
