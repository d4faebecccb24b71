"""The bias of later passes over one batch of a language model: ``python -m benchmarks.second_pass``.

    python -m benchmarks.second_pass         the model base that ships with the library, 10 min of one core

A replication draws batches at the same prompts. Passes over one of them move the parameters. There it gives a
gradient of the surrogate, weighted by the ratio to the policy that drew it, and so does another batch, which
is fresh. Before the passes both gradients have the same mean, so the mean of

    (own - fresh after the passes) - (own - fresh before them)

is the bias of using rollouts again, at any rate. It is taken along the gradient u of other rollouts, over
⟨u, ∇J⟩. Its first order in the step is known for these very rollouts, from Mᵢ u and sᵢ of each output. There
products of two prompts have the same mean for both batches, so they are left out ("groups"), and the passes
only add what is beyond the first order. Beside it stand the formula of theory/reuse.md, estimated from the
same rollouts, and the rule of thumb that ``explain`` prints.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.func import functional_call, grad, jvp, vmap

from benchmarks.group_sizes import number
from simulations.language_models.cells import padded
from ustat_pg.inference import Means
from ustat_pg.llm.models.loading import load_model
from ustat_pg.llm.pool.scored import leave_one_out
from ustat_pg.llm.rollouts.stored import sample
from ustat_pg.llm.tasks.named import load_task
from ustat_pg.predictions import even_reuse_bias
from ustat_pg.predictions.closed_forms import reuse_slope
from ustat_pg.validation import Array

RATIOS = ("sequence", "token")
PASSES = (2, 4)
BEFORE = 64
"""The batches before, whose squared gradients Adam remembers."""
RATES = (("sgd", 3e-4), ("sgd", 1e-3), ("adam", 1e-4), ("adam", 3e-3))
"""Optimizers with learning rates; Adam's are those of the trainings that ship with the library."""
KINDS = ("sgd", "adam")
MOMENTUM = 0.9
GROUPS = 4
"""The groups of a replication at each prompt: two for passes, all for what is of first order."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Rollouts at the same number per prompt, of which each prompt's follow each other.

    Arguments:
        text, sampled: tokens, and 1 where they were sampled, (outputs, length).
        rewards: (prompts, rollouts).
    """

    text: Any
    sampled: Any
    rewards: Array

    @cached_property
    def weights(self) -> Any:
        """Leave-one-out advantages over the number of outputs, (outputs,)."""
        return torch.tensor(leave_one_out(self.rewards).ravel() / self.rewards.size).float()

    def part(self, first: int, last: int) -> Batch:
        """Some rollouts of each prompt."""
        shape = *self.rewards.shape, -1
        text, sampled = (
            rows.view(shape)[:, first:last].flatten(0, 1) for rows in (self.text, self.sampled)
        )
        return Batch(text, sampled, self.rewards[:, first:last])


class Policy:
    """A model as a function of one vector of parameters, and the prompts of a task."""

    def __init__(self, name: str, prompts: int) -> None:
        self.model = load_model(name, dtype="float32")
        # Fused attention has no derivatives of second order.
        self.model.model.set_attn_implementation("eager")
        task = load_task(name)
        self.task = replace(task, prompts=task.prompts[:prompts])
        parameters = dict(self.model.model.named_parameters())
        self.shapes = {key: value.shape for key, value in parameters.items()}
        self.start = torch.cat([value.detach().flatten() for value in parameters.values()])

    def draw(self, rollouts: int, seed: int) -> Batch:
        """Rollouts at each prompt."""
        drawn = sample(self.model, self.task, rollouts, seed=seed)
        rows = [(each.prompt_ids, tokens) for each in drawn for tokens in each.completion_ids]
        return Batch(*padded(rows), np.array([each.rewards for each in drawn]))

    def logs(self, theta: Any, text: Any, sampled: Any) -> Any:
        """log π of each sampled token, (outputs, length - 1)."""
        parts = theta.split([shape.numel() for shape in self.shapes.values()])
        weights = {
            key: part.view(shape)
            for part, (key, shape) in zip(parts, self.shapes.items(), strict=True)
        }
        words = {"input_ids": text, "use_cache": False}
        logits = functional_call(self.model.model, weights, (), words).logits[:, :-1]
        chosen = torch.log_softmax(logits, dim=-1).gather(2, text[:, 1:, None])[..., 0]
        return chosen * sampled[:, 1:]

    def ratios(self, theta: Any, text: Any, sampled: Any, ratio: str) -> Any:
        """π_θ/π of each output; or the sum of its tokens' ratios, (outputs,)."""
        with torch.no_grad():
            old = self.logs(self.start, text, sampled)
        change = self.logs(theta, text, sampled) - old
        if ratio == "sequence":
            return change.sum(dim=1).exp()
        return (change.exp() * sampled[:, 1:]).sum(dim=1)

    def gradient(self, theta: Any, batch: Batch, ratio: str = RATIOS[0]) -> Any:
        """The gradient of the surrogate, (d,)."""

        def surrogate(theta: Any) -> Any:
            return batch.weights @ self.ratios(theta, batch.text, batch.sampled, ratio)

        return grad(surrogate)(theta)

    def curved(self, batch: Batch, along: Any, ratio: str) -> tuple[Any, Any]:
        """sᵢ and Mᵢ u of each output, (outputs, d) each."""

        def one(text: Any, sampled: Any) -> Any:
            def gradient(theta: Any) -> Any:
                return grad(lambda t: self.ratios(t, text[None], sampled[None], ratio)[0])(theta)

            return jvp(gradient, (self.start,), (along,))

        with torch.no_grad():
            return vmap(one, chunk_size=64)(batch.text, batch.sampled)


def first_order(products: Any, rewards: Any, group_size: int) -> float:
    """The formula's slope along u at one prompt, without bias (reuse).

    Arguments:
        products: ⟨u, Mᵢ sⱼ⟩ of N rollouts, (N, N).
        rewards: z, (N,).
    """
    count, own, apart = len(rewards), np.diag(products), leave_one_out(rewards)
    others = np.array([np.delete(rewards, k).var(ddof=1) for k in range(count)])
    square = (own * (apart**2 - others / (count - 1))).mean()
    halves = np.split(np.arange(count), 2)
    first, second = (leave_one_out(rewards[half]) / len(half) for half in halves)
    across = products[np.ix_(*halves)] + products[np.ix_(*halves[::-1])].T
    product = first @ across @ second / 2
    return float(reuse_slope(group_size, 1.0, square, (own * others).mean(), product))


def optimizer(kind: str, rate: float, theta: Any, squares: Any) -> Any:
    """A new optimizer; Adam remembers the squares of the batches before, but no momentum of theirs."""
    if kind == "sgd":
        return torch.optim.SGD([theta], rate, maximize=True)
    made = torch.optim.Adam([theta], rate, (MOMENTUM, 0.999), maximize=True)
    made.state[theta] = {
        "step": torch.tensor(1e6),
        "exp_avg": torch.zeros_like(theta),
        "exp_avg_sq": squares.clone(),
    }
    return made


def metrics(squares: Any) -> dict[str, Any]:
    """The factors of a gradient's entries in a step, to first order, by optimizer; small squares are raised,
    because Adam's next squares contain the step's own.
    """
    return {"sgd": torch.ones_like(squares), "adam": squares.clamp(squares.mean() / 100).rsqrt()}


def length(kind: str, rate: float, steps: int) -> float:
    """The weight of one gradient in a number of steps that all have it."""
    kept = 0.0 if kind == "sgd" else MOMENTUM
    return rate * sum(1 - kept**step for step in range(1, steps + 1))


def beyond(
    policy: Policy, own: Batch, fresh: Batch, along: Any, squares: Any, slopes: Sequence[Any]
) -> tuple[Any, Any]:
    """What the bias along u has beyond its first order in these rollouts, (ratios, rates, passes); and the KL
    divergence of the first step, (rates,).

    Arguments:
        slopes: for each ratio the derivative of (own - fresh) along u, (d,).
    """
    before = policy.gradient(policy.start, own)
    apart = (before - policy.gradient(policy.start, fresh)) @ along
    found, moved = np.empty((len(RATIOS), len(RATES), len(PASSES))), np.empty(len(RATES))
    for (i, ratio), (j, how) in product(enumerate(RATIOS), enumerate(RATES)):
        theta, gradient = policy.start.clone(), before
        steps = optimizer(*how, theta, squares)
        for step in range(2, PASSES[-1] + 1):
            theta.grad = gradient
            steps.step()
            if step == 2:
                weights = policy.ratios(theta, fresh.text, fresh.sampled, RATIOS[0])
                moved[j] = float((weights - 1 - weights.log()).mean())
            gradient = policy.gradient(theta, own, ratio)
            if step in PASSES:
                bias = (gradient - policy.gradient(theta, fresh, ratio)) @ along - apart
                known = length(*how, step - 1) * (slopes[i] @ (metrics(squares)[how[0]] * before))
                found[i, j, PASSES.index(step)] = bias - known
    return found, moved


@dataclass(frozen=True, eq=False)
class Setting:
    """What all replications share.

    Arguments:
        policy: the model and its prompts.
        group_size: G.
        along: u, the gradient of other rollouts, (d,).
        squares: the mean square of a batch's gradient, (d,).
    """

    policy: Policy
    group_size: int
    along: Any
    squares: Any

    @classmethod
    def of(cls, name: str, prompts: int, group_size: int) -> Setting:
        """From two pools of ``BEFORE`` batches that no replication uses."""
        policy = Policy(name, prompts)
        pools = [policy.draw(BEFORE * group_size, seed=10**6 + k) for k in (0, 1)]
        gradients, others = (
            torch.stack(
                [
                    policy.gradient(policy.start, pool.part(first, first + group_size))
                    for first in range(0, BEFORE * group_size, group_size)
                ]
            )
            for pool in pools
        )
        return cls(policy, group_size, gradients.mean(dim=0), (others**2).mean(dim=0))

    def replication(self, seed: int) -> dict[str, Array]:
        """The numbers of one replication."""
        policy, size = self.policy, self.group_size
        every = policy.draw(GROUPS * size, seed)
        own, fresh = every.part(0, size), every.part(size, 2 * size)
        shape = prompts, _, _, _ = len(every.rewards), GROUPS, size, -1
        rewards = every.rewards.reshape(shape[:3])
        weights = torch.tensor(leave_one_out(rewards) / own.rewards.size).float()
        factors, slopes = metrics(self.squares), []
        groups, formula = np.empty((2, len(RATIOS), len(factors)))
        for i, ratio in enumerate(RATIOS):
            scores, changes = (rows.view(shape) for rows in policy.curved(every, self.along, ratio))
            pushes = torch.einsum("pai,paid->pad", weights, changes)
            slopes.append((pushes[:, 0] - pushes[:, 1]).sum(dim=0))
            for k, factor in enumerate(factors.values()):
                table = changes.flatten(1, 2) @ (scores * factor).flatten(1, 2).mT
                cells = table.view(prompts, GROUPS, size, GROUPS, size)
                # Rows are the groups of the estimate, columns those of the step.
                pairs = torch.einsum("pai,paibj,pbj->ab", weights, cells, weights).numpy()
                again = pairs.trace()
                groups[i, k] = again / GROUPS - (pairs.sum() - again) / (GROUPS * (GROUPS - 1))
                both = zip(table.double().numpy(), every.rewards, strict=True)
                formula[i, k] = sum(first_order(*one, size) for one in both) / prompts**2
        steps = torch.einsum("pai,paid,d->pa", weights, scores, self.along).numpy()
        past, moved = beyond(policy, own, fresh, self.along, self.squares, slopes)
        return {
            "rates": every.rewards.mean(axis=1),
            "norms": (scores**2).sum(dim=3).mean(dim=(1, 2)).numpy(),
            "gradients": steps.mean(axis=1),
            "variance": steps.sum(axis=0).var(ddof=1),
            "groups": groups,
            "formula": formula,
            "beyond": past,
            "moved": moved,
        }


def over_gradient(mean: dict[str, Array], group_size: int) -> dict[str, Array]:
    """The results over ⟨u, ∇J⟩, from means over replications; KL divergences as they are."""
    signal = mean["gradients"].sum()
    outputs = mean["rates"].size * group_size
    rule = even_reuse_bias(mean["rates"], outputs) * mean["norms"] * mean["gradients"]
    lengths = np.array([[length(*how, last - 1) for last in PASSES] for how in RATES])
    kinds = [KINDS.index(kind) for kind, _ in RATES]
    found = {name: mean[name] / signal for name in ("groups", "formula")}
    first, expected = (value[:, kinds, None] * lengths for value in found.values())
    measured, noise = first + mean["beyond"] / signal, np.sqrt(mean["variance"]) / signal
    return found | {
        "rule": rule.sum() / signal,
        "expected": expected,
        "measured": measured,
        "noise": noise,
        "over noise": measured / noise,
        "moved": mean["moved"],
    }


def results(rows: Sequence[dict[str, Array]], group_size: int) -> dict[str, tuple[Array, ...]]:
    """The results of replications with the ends of their 95% intervals, by the jackknife."""
    count, sums = len(rows), {name: np.sum([row[name] for row in rows], axis=0) for name in rows[0]}
    every = over_gradient({name: value / count for name, value in sums.items()}, group_size)
    without = [
        over_gradient(
            {name: (value - row[name]) / (count - 1) for name, value in sums.items()}, group_size
        )
        for row in rows
    ]
    found = {}
    for name, value in every.items():
        apart = np.array([np.ravel(other[name]) for other in without])
        ends = Means(np.ravel(value), apart, parts="replications").interval()
        found[name] = value, *(end.reshape(np.shape(value)) for end in ends)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.second_pass")
    parser.add_argument("--model", default="embedded:base", help="its task has the same name")
    parser.add_argument("--prompts", type=int, default=8, help="B, the same in every batch")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--replications", type=int, default=150)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    setting = Setting.of(options.model, options.prompts, options.group_size)
    rows = [setting.replication(seed) for seed in range(options.replications)]
    found = results(rows, options.group_size)

    def cell(name: str, *place: int) -> str:
        return number(*(float(part[place]) for part in found[name]))

    rates, norms = (np.mean([row[name] for row in rows], axis=0) for name in ("rates", "norms"))
    print(f"pass rates {rates.round(2)}, mean squared lengths of scores {norms.round()}\n")
    print("| ratio | step | groups | formula | rule of thumb |\n|---|---|---|---|---|")
    for (i, ratio), (k, kind) in product(enumerate(RATIOS), enumerate(KINDS)):
        rule = cell("rule") if kind == "sgd" else "-"
        print(f"| {ratio} | {kind} | {cell('groups', i, k)} | {cell('formula', i, k)} | {rule} |")
    print(f"\nnoise of a step along the gradient, over it: {cell('noise')}\n")
    print("| step | rate | KL of a step | ratio | pass | formula | measured | over noise |")
    print("|---|---|---|---|---|---|---|---|")
    for (j, (kind, rate)), (i, ratio) in product(enumerate(RATES), enumerate(RATIOS)):
        for k, last in enumerate(PASSES):
            cells = [cell(name, i, j, k) for name in ("expected", "measured", "over noise")]
            words = [kind, f"{rate:g}", cell("moved", j), ratio, last, *cells]
            print(f"| {' | '.join(map(str, words))} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
