"""Gradient errors by sampling gradients anew: the cross-check of the pool, and what it costs.

Nothing here knows of Gram matrices or of moments. For every group size fresh rollouts are drawn, the
gradient of (1/G) Σ_i A_i log π(y_i | x) is taken by ordinary backward passes, and the sample covariance
of R such gradients has the MSE as its trace, without bias and without the true gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from ..baselines import ALIASES
from ..estimators import advantages
from ..validation import InputError, finite_array, integer

__all__ = ["BASELINES", "BruteForce", "Draw", "brute_force"]

Array = NDArray[np.float64]
Completions = Sequence[Sequence[int]]

Draw = Callable[[int, int, int], tuple[Completions, ArrayLike]]
"""(prompt index, rollouts, seed) to the tokens of that many fresh completions and their rewards."""

BASELINES = ("vanilla", "grpo", "oracle", "norm-weighted")
"""All of them are unbiased, so that the variance is the MSE."""
_LEAVE_ONE_OUT = ("grpo", "norm-weighted")


@dataclass(frozen=True, eq=False)
class BruteForce:
    """The error of each baseline at each group size and prompt, and the cost.

    Arguments:
        baselines: names.
        group_sizes: G.
        mse: E‖ĝ - g‖² given the prompt, (baselines, group sizes, P).
        se: their Monte Carlo standard errors, of the same shape; those of the differences of
            consecutive gradients, at least as large as the true ones.
        rollouts: drawn at each group size, (group sizes,).
        seconds: spent on draws and gradients at each group size, (group sizes,).
    """

    baselines: tuple[str, ...]
    group_sizes: tuple[int, ...]
    mse: Array
    se: Array
    rollouts: NDArray[np.int64]
    seconds: Array

    def frame(self) -> pd.DataFrame:
        """Means over prompts: baseline, group_size, mse, se (given these prompts), rollouts, seconds.

        Rollouts and seconds of a group size are those of all baselines together.
        """
        count, sizes = len(self.baselines), len(self.group_sizes)
        return pd.DataFrame(
            {
                "baseline": np.repeat(self.baselines, sizes),
                "group_size": np.tile(self.group_sizes, count),
                "mse": self.mse.mean(axis=2).ravel(),
                "se": np.sqrt((self.se**2).sum(axis=2)).ravel() / self.mse.shape[2],
                "rollouts": np.tile(self.rollouts, count),
                "seconds": np.tile(self.seconds, count),
            }
        )


def brute_force(
    model: torch.nn.Module,
    prompt_ids: Sequence[Sequence[int]],
    draw: Draw,
    *,
    group_sizes: Sequence[int],
    baselines: Sequence[str] = ("vanilla", "grpo", "oracle"),
    replications: int = 100,
    values: ArrayLike | None = None,
    seed: int = 0,
    batch: int = 64,
) -> BruteForce:
    """tr Cov(ĝ | x) of each baseline from R fresh gradients a prompt and group size.

    All baselines share the draws. Gradients are those of parameters with ``requires_grad``; three
    vectors of that size are held for each baseline. The norm-weighted baseline takes a backward
    pass for each completion besides.

    Arguments:
        model: a causal language model in eval mode: called with input_ids and attention_mask, it
            returns logits.
        prompt_ids: the tokens of each of P prompts, at least one token each.
        draw: gives fresh rollouts.
        group_sizes: G; at least 2 for leave-one-out baselines.
        baselines: of :data:`BASELINES`.
        replications: R, even and at least 4.
        values: V(x), (P,), for the oracle only.
        seed: from which the seeds of all draws come.
        batch: completions in one forward pass.

    Raises:
        InputError: any of these is not as said, or a draw of the wrong size.
    """
    sizes = tuple(integer("group size", size) for size in group_sizes)
    if not sizes or not len(prompt_ids):
        raise InputError("at least one prompt and one group size are needed")
    names = _names(baselines, min(sizes), values)
    rounds = integer("replications", replications, 4)
    if rounds % 2:
        raise InputError(f"replications are {rounds}: they must be even, errors come from pairs")
    integer("seed", seed, 0)
    known = np.zeros(len(prompt_ids)) if values is None else finite_array("values", values, 1)
    if len(known) != len(prompt_ids):
        raise InputError(f"values have {len(known)} entries: there are {len(prompt_ids)} prompts")
    policy = _Policy(model, batch)
    shape = (len(names), len(sizes), len(prompt_ids))
    mse, se, seconds = np.empty(shape), np.empty(shape), np.zeros(len(sizes))
    for place, size in enumerate(sizes):
        for x, prompt in enumerate(prompt_ids):
            started = time.perf_counter()
            own = int(np.random.SeedSequence([seed, x, size]).generate_state(1)[0])
            completions, given = draw(x, rounds * size, own)
            rewards = _checked(completions, given, rounds * size, f"of prompt {x}")
            gradients = policy.groups(prompt, completions, rewards, size, names, known[x])
            mse[:, place, x], se[:, place, x] = _spread(gradients, len(names))
            seconds[place] += time.perf_counter() - started
    rollouts = rounds * len(prompt_ids) * np.array(sizes, dtype=np.int64)
    return BruteForce(names, sizes, mse, se, rollouts, seconds)


def _names(baselines: Sequence[str], least: int, values: ArrayLike | None) -> tuple[str, ...]:
    if isinstance(baselines, str):
        raise InputError(f"baselines are {baselines!r}: give a list of names")
    names = tuple(ALIASES.get(name, name) for name in baselines)
    for name in names:
        if name not in BASELINES:
            raise InputError(f"baseline {name!r} is unknown: choose one of {', '.join(BASELINES)}")
    if not names:
        raise InputError("no baselines are given: at least one is needed")
    if least < 2 and set(names) & set(_LEAVE_ONE_OUT):
        raise InputError(f"group size is {least}: leave-one-out needs at least 2")
    if (values is not None) != ("oracle" in names):
        raise InputError("values are given with, and only with, the baseline oracle")
    return names


def _checked(completions: Completions, rewards: ArrayLike, count: int, which: str) -> Array:
    """The rewards, after refusing numbers that do not match and completions without a token."""
    values = finite_array(f"rewards {which}", rewards, 1)
    if len(completions) != count or len(values) != count:
        raise InputError(
            f"{len(completions)} completions and {len(values)} rewards are {which}: "
            f"there must be {count} of each"
        )
    if not all(len(completion) for completion in completions):
        raise InputError(f"a completion {which} is empty: it must have a token")
    return values


class _Policy:
    """Gradients of log-probabilities of completions, by plain autograd."""

    def __init__(self, model: torch.nn.Module, batch: int) -> None:
        if model.training:
            raise InputError("the model is in training mode: call model.eval() first")
        self.model, self.batch = model, integer("batch", batch)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise InputError("no parameter of the model requires a gradient")

    def groups(
        self,
        prompt: Sequence[int],
        completions: Completions,
        rewards: Array,
        group_size: int,
        names: Sequence[str],
        value: float,
    ) -> Iterator[Any]:
        """The gradient of each group in turn, (baselines, d)."""
        if not len(prompt):
            raise InputError("a prompt is empty: it must have a token")
        for start in range(0, len(completions), group_size):
            group = slice(start, start + group_size)
            own, z = completions[group], rewards[group]
            extra: dict[str, dict[str, Any]] = {"oracle": {"value": value}}
            if "norm-weighted" in names:
                extra["norm-weighted"] = {"squared_norms": self.squared_norms(prompt, own)}
            rows = [advantages(name, z, **extra.get(name, {})) for name in names]
            yield self.gradients(prompt, own, np.array(rows) / group_size)

    def log_probs(self, prompt: Sequence[int], completions: Completions) -> Any:
        """log π(y | x), (n,)."""
        device, ignored = self.parameters[0].device, -100
        parts = [torch.tensor(list(completion), device=device) for completion in completions]
        tokens = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=ignored)
        start = torch.tensor(list(prompt), device=device).expand(len(completions), -1)
        ids = torch.cat([start, tokens.clamp(min=0)], dim=1)
        mask = torch.cat([torch.ones_like(start), (tokens != ignored).long()], dim=1)
        logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        logits = logits[:, len(prompt) - 1 : -1].mT
        logits = logits if logits.dtype == torch.float64 else logits.float()
        losses = torch.nn.functional.cross_entropy(
            logits, tokens, ignore_index=ignored, reduction="none"
        )
        return -losses.sum(dim=1)

    def flat(self, logs: Any, weights: Any, keep: bool = False) -> Any:
        """Σ_i w_i ∇ log π_i as one vector in double precision."""
        parts = torch.autograd.grad(
            logs, self.parameters, weights, retain_graph=keep, materialize_grads=True
        )
        return torch.cat([part.reshape(-1).double() for part in parts])

    def gradients(self, prompt: Sequence[int], completions: Completions, weights: Array) -> Any:
        """Σ_i w_i ∇ log π(y_i | x) for each row of weights, (rows, d)."""
        total: Any = 0
        for start in range(0, len(completions), self.batch):
            part = slice(start, start + self.batch)
            logs = self.log_probs(prompt, completions[part])
            own = torch.as_tensor(weights[:, part], dtype=logs.dtype, device=logs.device)
            last = len(own) - 1
            rows = [self.flat(logs, row, keep=i < last) for i, row in enumerate(own)]
            total = total + torch.stack(rows)
        return total

    def squared_norms(self, prompt: Sequence[int], completions: Completions) -> Array:
        """‖s‖² of each completion, by a backward pass each."""
        every = np.ones((1, 1))
        scores = (self.gradients(prompt, [one], every)[0] for one in completions)
        return np.array([float(score @ score) for score in scores])


def _spread(gradients: Iterator[Any], baselines: int) -> tuple[Array, Array]:
    """Trace of the sample covariance of the groups' gradients and its error, (baselines,) each."""
    mean: Any = 0.0
    squares = np.zeros(baselines)
    halves, previous, number = [], None, 0
    for number, found in enumerate(gradients, start=1):
        # Welford's update of the mean and of the sum of squared deviations.
        apart = found - mean
        mean = mean + apart / number
        squares += (apart * (found - mean)).sum(dim=1).cpu().numpy()
        if previous is None:
            previous = found
        else:
            halves.append(((found - previous) ** 2).sum(dim=1).cpu().numpy() / 2)
            previous = None
    pairs = np.array(halves)
    return squares / (number - 1), pairs.std(axis=0, ddof=1) / np.sqrt(len(pairs))
