"""Gradient errors by sampling gradients anew: the cross-check of the pool, and what it costs.

Nothing here knows of Gram matrices or of moments. For every group size fresh rollouts are drawn, the
gradient of (1/G) Σ_i A_i log π(y_i | x) is taken by ordinary backward passes, and the sample covariance
of R such gradients has the MSE as its trace, without bias and without the true gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from ..baselines import ALIASES
from ..estimators import advantages
from ..validation import InputError, finite_array, integer

__all__ = ["BASELINES", "BruteForce", "Draw", "brute_force", "group_gradients"]

Array = NDArray[np.float64]
Completions = Sequence[Sequence[int]]

Draw = Callable[[int, int, int], tuple[Completions, ArrayLike]]
"""(prompt index, rollouts, seed) to the tokens of that many fresh completions and their rewards."""

BASELINES = (
    "vanilla",
    "grpo",
    "oracle",
    "minimum-variance",
    "norm-weighted",
    "length-weighted",
    "token-weighted",
)
"""All of them are unbiased, so that the variance is the MSE."""
_WEIGHTED = BASELINES[4:]


@dataclass(frozen=True, eq=False)
class BruteForce:
    """The error of each baseline at each group size and prompt, and the cost.

    Arguments:
        baselines: names.
        group_sizes: G.
        mse: E‖ĝ - g‖² given the prompt, (baselines, group sizes, P).
        se: their Monte Carlo standard errors, of the same shape; those of the differences of
            consecutive gradients, at least as large as the true ones.
        replications: R, gradients at each prompt and group size.
        rollouts: drawn at each group size, (group sizes,).
        draw_seconds, gradient_seconds: spent at each group size, (group sizes,).
    """

    baselines: tuple[str, ...]
    group_sizes: tuple[int, ...]
    mse: Array
    se: Array
    replications: int
    rollouts: NDArray[np.int64]
    draw_seconds: Array
    gradient_seconds: Array

    def frame(self) -> pd.DataFrame:
        """Means over prompts: baseline, group_size, mse, se (given these prompts), rollouts, seconds.

        Rollouts and seconds of a group size are those of all baselines together.
        """
        prompts = self.mse.shape[2]
        count, sizes = len(self.baselines), len(self.group_sizes)
        return pd.DataFrame(
            {
                "baseline": np.repeat(self.baselines, sizes),
                "group_size": np.tile(self.group_sizes, count),
                "mse": self.mse.mean(axis=2).ravel(),
                "se": np.sqrt((self.se**2).sum(axis=2)).ravel() / prompts,
                "rollouts": np.tile(self.rollouts, count),
                "seconds": np.tile(self.draw_seconds + self.gradient_seconds, count),
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
    optimal: ArrayLike | None = None,
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
        optimal: b*(x), (P,), for minimum-variance only.
        seed: from which the seeds of all draws come.
        batch: completions in one forward pass.

    Raises:
        InputError: any of these is not as said, or a draw of the wrong size.
    """
    sizes = tuple(integer("group size", size) for size in group_sizes)
    if not sizes or not len(prompt_ids):
        raise InputError("at least one prompt and one group size are needed")
    names = _names(baselines, min(sizes))
    rounds = integer("replications", replications, 4)
    if rounds % 2:
        raise InputError(f"replications are {rounds}: they must be even, errors come from pairs")
    integer("seed", seed, 0)
    integer("batch", batch)
    known = {
        "oracle": _given("values", values, "oracle", names, len(prompt_ids)),
        "minimum-variance": _given("optimal", optimal, "minimum-variance", names, len(prompt_ids)),
    }
    policy = _Policy(model, batch)
    shape = (len(names), len(sizes), len(prompt_ids))
    mse, se = np.empty(shape), np.empty(shape)
    seconds = np.zeros((2, len(sizes)))
    for place, size in enumerate(sizes):
        for x, prompt in enumerate(prompt_ids):
            started = time.perf_counter()
            own = int(np.random.SeedSequence([seed, x, size]).generate_state(1)[0])
            completions, rewards = _drawn(draw, x, rounds * size, own)
            drawn = time.perf_counter()
            own_values = {k: float(v[x]) for k, v in known.items() if v is not None}
            gradients = _gradients(
                policy, list(prompt), completions, rewards, size, names, own_values
            )
            mse[:, place, x], se[:, place, x] = _spread(gradients, len(names))
            seconds[:, place] += drawn - started, time.perf_counter() - drawn
    rollouts = np.array([rounds * size * len(prompt_ids) for size in sizes], dtype=np.int64)
    return BruteForce(names, sizes, mse, se, rounds, rollouts, seconds[0], seconds[1])


def group_gradients(
    model: torch.nn.Module,
    prompt_ids: Sequence[int],
    completions: Completions,
    rewards: ArrayLike,
    group_size: int,
    baselines: Sequence[str],
    known: Mapping[str, float] | None = None,
    *,
    batch: int = 64,
) -> torch.Tensor:
    """The gradient estimate of each group of given rollouts of one prompt, by ordinary backward passes.

    Arguments:
        model: as for :func:`brute_force`.
        prompt_ids: tokens of the prompt.
        completions: tokens of m G completions; consecutive ones make a group.
        rewards: (m G,).
        group_size: G.
        baselines: of :data:`BASELINES`.
        known: V(x) under ``oracle`` and b*(x) under ``minimum-variance``, where asked for.
        batch: completions in one forward pass.

    Returns:
        (m, baselines, d) in double precision, all held at once.

    Raises:
        InputError: as for :func:`brute_force`, or completions that do not fill groups.
    """
    size = integer("group size", group_size)
    names = _names(baselines, size)
    integer("batch", batch)
    given = dict(known or {})
    needed = {"oracle", "minimum-variance"} & set(names)
    if set(given) != needed:
        raise InputError(f"known has {sorted(given)}: these baselines need {sorted(needed)}")
    numbers = {name: float(finite_array(name, value, 0)) for name, value in given.items()}
    if not len(completions) or len(completions) % size:
        raise InputError(f"{len(completions)} completions do not make groups of {size}")
    values = _checked(completions, rewards, len(completions), "given")
    policy = _Policy(model, batch)
    found = _gradients(policy, list(prompt_ids), completions, values, size, names, numbers)
    return torch.stack(list(found))


def _names(baselines: Sequence[str], least: int) -> tuple[str, ...]:
    if isinstance(baselines, str):
        raise InputError(f"baselines are {baselines!r}: give a list of names")
    names = tuple(ALIASES.get(name, name) for name in baselines)
    for name in names:
        if name not in BASELINES:
            raise InputError(f"baseline {name!r} is unknown: choose one of {', '.join(BASELINES)}")
    if not names:
        raise InputError("no baselines are given: at least one is needed")
    if least < 2 and any(name == "grpo" or name in _WEIGHTED for name in names):
        raise InputError(f"group size is {least}: leave-one-out needs at least 2")
    return names


def _given(
    name: str, value: ArrayLike | None, baseline: str, names: Sequence[str], prompts: int
) -> Array | None:
    if (value is not None) != (baseline in names):
        raise InputError(f"{name} are given with, and only with, the baseline {baseline}")
    if value is None:
        return None
    array = finite_array(name, value, 1)
    if len(array) != prompts:
        raise InputError(f"{name} have {len(array)} entries: there are {prompts} prompts")
    return array


def _drawn(draw: Draw, prompt: int, count: int, seed: int) -> tuple[Completions, Array]:
    completions, given = draw(prompt, count, seed)
    return completions, _checked(completions, given, count, f"of prompt {prompt}")


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
    """Log-probabilities of completions and their gradients, by plain autograd."""

    def __init__(self, model: torch.nn.Module, batch: int) -> None:
        if model.training:
            raise InputError("the model is in training mode: call model.eval() first")
        self.model, self.batch = model, batch
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise InputError("no parameter of the model requires a gradient")

    def token_log_probs(self, prompt: list[int], completions: Completions) -> tuple[Any, Any]:
        """log π of every token at each sampled position (n, T, v), and tokens (n, T), padded by -1."""
        if not prompt:
            raise InputError("a prompt is empty: it must have a token")
        device = self.parameters[0].device
        longest = max(len(c) for c in completions)
        tokens = torch.full((len(completions), longest), -1, dtype=torch.long)
        for row, completion in enumerate(completions):
            tokens[row, : len(completion)] = torch.tensor(list(completion))
        tokens = tokens.to(device)
        start = torch.tensor(prompt, device=device).expand(len(completions), -1)
        ids = torch.cat([start, tokens.clamp(min=0)], dim=1)
        mask = torch.cat([torch.ones_like(start), (tokens >= 0).long()], dim=1)
        logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        logits = logits[:, len(prompt) - 1 : -1]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return torch.log_softmax(logits, dim=-1), tokens

    def log_probs(self, prompt: list[int], completions: Completions) -> Any:
        """log π(y | x), (n,)."""
        table, tokens = self.token_log_probs(prompt, completions)
        chosen = table.gather(2, tokens.clamp(min=0)[..., None])[..., 0]
        return (chosen * (tokens >= 0)).sum(dim=1)

    def flat(self, loss: Any, keep: bool) -> Any:
        """The gradient of a number as one vector in double precision."""
        parts = torch.autograd.grad(loss, self.parameters, retain_graph=keep, allow_unused=True)
        return torch.cat(
            [
                (torch.zeros_like(p) if part is None else part).reshape(-1).double()
                for p, part in zip(self.parameters, parts, strict=True)
            ]
        )

    def gradients(self, prompt: list[int], completions: Completions, weights: Array) -> Any:
        """Σ_i w_i ∇ log π(y_i | x) for each row of weights, (rows, d)."""
        total: Any = 0
        for start in range(0, len(completions), self.batch):
            part = slice(start, start + self.batch)
            logs = self.log_probs(prompt, completions[part])
            own = torch.as_tensor(weights[:, part], dtype=logs.dtype, device=logs.device)
            last = len(own) - 1
            total = total + torch.stack(
                [self.flat((row * logs).sum(), keep=i < last) for i, row in enumerate(own)]
            )
        return total

    def squared_norms(self, prompt: list[int], completions: Completions) -> Array:
        """‖s‖² of each completion, by a backward pass each."""
        norms = []
        for completion in completions:
            score = self.flat(self.log_probs(prompt, [completion])[0], keep=False)
            norms.append(float(score @ score))
        return np.array(norms)

    def token_proxy(self, prompt: list[int], completions: Completions) -> Array:
        """Σ_t (1 - 2 π_t + Σ_v π_v²) of each completion."""
        found = []
        with torch.no_grad():
            for start in range(0, len(completions), self.batch):
                table, tokens = self.token_log_probs(
                    prompt, completions[start : start + self.batch]
                )
                probs = table.double().exp()
                chosen = probs.gather(2, tokens.clamp(min=0)[..., None])[..., 0]
                each = (1 - 2 * chosen + (probs**2).sum(dim=2)) * (tokens >= 0)
                found.append(each.sum(dim=1).cpu().numpy())
        return np.concatenate(found)


def _advantages(
    policy: _Policy,
    prompt: list[int],
    completions: Completions,
    rewards: Array,
    names: Sequence[str],
    known: Mapping[str, float],
) -> Array:
    rows = []
    for name in names:
        if name == "oracle":
            rows.append(advantages(name, rewards, value=known[name]))
        elif name == "minimum-variance":
            rows.append(advantages(name, rewards, optimal_baseline=known[name]))
        elif name in _WEIGHTED:
            if name == "norm-weighted":
                weights = policy.squared_norms(prompt, completions)
            elif name == "length-weighted":
                weights = np.array([float(len(completion)) for completion in completions])
            else:
                weights = policy.token_proxy(prompt, completions)
            rows.append(advantages("norm-weighted", rewards, squared_norms=weights))
        else:
            rows.append(advantages(name, rewards))
    return np.array(rows)


def _gradients(
    policy: _Policy,
    prompt: list[int],
    completions: Completions,
    rewards: Array,
    group_size: int,
    names: Sequence[str],
    known: Mapping[str, float],
) -> Iterator[Any]:
    """The gradient of each group in turn, (baselines, d)."""
    for start in range(0, len(completions), group_size):
        group = slice(start, start + group_size)
        weights = _advantages(policy, prompt, completions[group], rewards[group], names, known)
        yield policy.gradients(prompt, completions[group], weights / group_size)


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
