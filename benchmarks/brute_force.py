"""Gradient errors by sampling: what a language model's pool is measured against.

Nothing here knows of Gram matrices or of moments. The gradient of (1/G) Σ_i A_i log π(y_i | x) is taken
by an ordinary backward pass for each group and baseline, and the sample covariance of R such gradients
has the MSE as its trace, without bias and without the true gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ustat_pg.estimators import advantages

__all__ = ["brute_force"]

Array = NDArray[np.float64]
Completions = Sequence[Sequence[int]]

_BATCH = 64
"""Completions in one forward pass."""


def brute_force(
    model: torch.nn.Module,
    prompt: Sequence[int],
    completions: Completions,
    rewards: Array,
    group_size: int,
    baselines: Sequence[str],
    value: float,
) -> Array:
    """tr Cov(ĝ | x) of each baseline, (baselines,), from the groups that completions of a prompt make.

    Arguments:
        model: a causal language model in eval mode; its parameters with ``requires_grad`` count.
        prompt: tokens.
        completions: tokens of each, R G of them.
        rewards: of each.
        group_size: G.
        baselines: vanilla, grpo, oracle; all unbiased, so that the variance is the MSE.
        value: V(x), for the oracle.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def groups() -> Iterator[Any]:
        for start in range(0, len(completions), group_size):
            group = slice(start, start + group_size)
            z = rewards[group]
            rows = [
                advantages(name, z, **({"value": value} if name == "oracle" else {}))
                for name in baselines
            ]
            weights = np.array(rows) / group_size
            yield _gradients(model, parameters, prompt, completions[group], weights)

    return _spread(groups(), len(baselines))


def _log_probs(model: Any, prompt: Sequence[int], completions: Completions, device: Any) -> Any:
    """log π(y | x), (n,)."""
    ignored = -100
    parts = [torch.tensor(list(completion), device=device) for completion in completions]
    tokens = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=ignored)
    start = torch.tensor(list(prompt), device=device).expand(len(completions), -1)
    ids = torch.cat([start, tokens.clamp(min=0)], dim=1)
    mask = torch.cat([torch.ones_like(start), (tokens != ignored).long()], dim=1)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    logits = logits[:, len(prompt) - 1 : -1].mT.float()
    losses = torch.nn.functional.cross_entropy(
        logits, tokens, ignore_index=ignored, reduction="none"
    )
    return -losses.sum(dim=1)


def _gradients(
    model: Any,
    parameters: Sequence[Any],
    prompt: Sequence[int],
    completions: Completions,
    weights: Array,
) -> Any:
    """Σ_i w_i ∇ log π(y_i | x) for each row of weights, (rows, d)."""
    total: Any = 0
    for start in range(0, len(completions), _BATCH):
        part = slice(start, start + _BATCH)
        logs = _log_probs(model, prompt, completions[part], parameters[0].device)
        rows = torch.as_tensor(weights[:, part], dtype=logs.dtype, device=logs.device)
        slopes = [
            torch.autograd.grad(logs, parameters, row, retain_graph=True, materialize_grads=True)
            for row in rows
        ]
        flat = [
            torch.cat([component.reshape(-1).double() for component in slope]) for slope in slopes
        ]
        total = total + torch.stack(flat)
    return total


def _spread(gradients: Iterator[Any], baselines: int) -> Array:
    """Trace of the sample covariance of the groups' gradients, (baselines,)."""
    mean: Any = 0.0
    squares, number = np.zeros(baselines), 0
    for number, gradient in enumerate(gradients, start=1):
        # Welford's update of the mean and of the sum of squared deviations.
        apart = gradient - mean
        mean = mean + apart / number
        squares += (apart * (gradient - mean)).sum(dim=1).cpu().numpy()
    return squares / (number - 1)
