"""Training many networks at once against one after another: ``python -m benchmarks.network_training``.

Runs of grpo on a token problem, their parameters stacked and stepped together, against the same runs
in turn: by the same code with one run (or eight) at a time, and by the loop that a training script has (draw
token by token without a graph, then one forward and one backward pass of the drawn outputs). All
make the same runs on the same draws, which is checked before anything is timed. Rounds
interleave what is compared; a ratio is that of two times of one round.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tabulate import tabulate
from torch import Tensor

from benchmarks.ustatistics import machine
from ustat_pg import rng
from ustat_pg.engines import Constant, Estimator
from ustat_pg.engines.networks.cell import NetworkTraining
from ustat_pg.engines.networks.models import Model, model_of
from ustat_pg.policies.transformer import TransformerPolicy
from ustat_pg.problems import modular_sum

AGREEMENT = {"float64": 1e-9, "float32": 1e-3}
"""How far parameters of one run may be apart by rounding."""

GRPO = Estimator("grpo")
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """Digits whose sum is the prompt's, modulo their number.

    Arguments:
        width: of a network of one layer and two heads.
        precision: float64 or float32.
        steps: of every run.
        vocabulary, length: of the outputs.
        batch_size, group_size: B and G.
    """

    width: int
    precision: str = "float64"
    steps: int = 20
    vocabulary: int = 5
    length: int = 3
    batch_size: int = 5
    group_size: int = 16

    def training(self, runs: int) -> NetworkTraining:
        """All runs at once."""
        problem = modular_sum(self.vocabulary, self.length)
        policy = TransformerPolicy.initial(problem.space, problem.prompts, width=self.width)
        return NetworkTraining(
            problem,
            policy,
            self.group_size,
            self.steps,
            Constant(0.1),
            self.batch_size,
            precision=self.precision,
            block=runs,
        )


CASES = (
    Case(8),
    Case(8, "float32"),
    Case(90, steps=1),
    Case(90, "float32", steps=1),
)
QUICK = (Case(4, steps=2, vocabulary=3, length=2),)


def at_once(training: NetworkTraining, runs: int, seed: int) -> Array:
    """θ after the last step, (R, d)."""
    return training.train(GRPO, (training.steps,), seed=seed, replications=runs)[:, 0]


def in_eights(training: NetworkTraining, runs: int, seed: int) -> Array:
    """The same code, eight runs at a time: smaller arrays stay in the caches."""
    return at_once(replace(training, chunk=8), runs, seed)


def in_turn(training: NetworkTraining, runs: int, seed: int) -> Array:
    """The same code, one run after another."""
    return at_once(replace(training, chunk=1), runs, seed)


def by_script(training: NetworkTraining, runs: int, seed: int) -> Array:
    """One run after another, as a training script has it."""
    model = model_of(training.policy, training.device, training.precision)
    return np.stack([one_run(training, model, number, seed) for number in range(runs)])


def one_run(training: NetworkTraining, model: Model, number: int, seed: int) -> Array:
    """A loop over steps: prompts, outputs, rewards, loss, step; on the draws of the library."""
    batch, group, length = training.batch_size, training.group_size, model.length
    key = rng.cell_key(seed, training.address)
    rewards = torch.tensor(np.array(training.mean_rewards), dtype=model.dtype)
    powers = model.choices ** torch.arange(length - 1, -1, -1)
    ends = rng.thresholds(training.context_probs)
    where = rng.words(key, [number], rng.CONTEXT_SLOT, training.steps * batch)[0]
    prompts = torch.tensor(np.searchsorted(ends, where, side="right"))
    # In float64, as the library keeps it.
    theta = torch.tensor(np.array(training.policy.theta))
    for t, rate in enumerate(training.schedule.rates(training.steps), start=1):
        contexts = prompts[(t - 1) * batch : t * batch].repeat_interleave(group)
        slots = torch.tensor(rng.step_slots(t, np.arange(batch)))
        drawn = rng.words(key, torch.tensor(number), slots, group * (length + 1))
        drawn = drawn.reshape(batch * group, length + 1)
        here = theta.detach().to(model.dtype).requires_grad_()
        tokens = sample(model, here, contexts, drawn)
        z = rewards[contexts, tokens @ powers].reshape(batch, group)
        advantage = (z - z.mean(1, keepdim=True)) * group / (group - 1)
        loss = -(advantage.flatten() * model.log_prob(here, contexts, tokens)).mean()
        loss.backward()
        theta = theta - float(rate) * here.grad.double()
    return theta.numpy()


@torch.no_grad()
def sample(model: Model, theta: Tensor, contexts: Tensor, drawn: Tensor) -> Tensor:
    """Outputs of full length, (n, l)."""
    tokens = torch.zeros(len(contexts), model.length, dtype=torch.int64)
    for step in range(model.length):
        found = model.next_log_probs(theta, contexts, tokens, step).double()
        running = (found - found.amax(1, keepdim=True)).exp().cumsum(1)
        level = drawn[:, step] * 2.0**-32 * running[:, -1]
        tokens[:, step] = (level[:, None] >= running).sum(1)
    return tokens


WAYS: dict[str, Callable[..., Array]] = {
    "at once": at_once,
    "8 at a time": in_eights,
    "1 at a time": in_turn,
    "a script's loop": by_script,
}


def check(case: Case, runs: int) -> None:
    """Refuse ways that make other runs.

    Raises:
        SystemExit: θ differs by more than rounding, or holds NaN.
    """
    training = case.training(runs)
    found = {name: way(training, runs, 0) for name, way in WAYS.items()}
    start = np.array(training.policy.theta)
    for name, theta in found.items():
        off = float(np.abs(theta - found["at once"]).max())
        # Written so that a NaN is refused as well.
        if not off <= AGREEMENT[case.precision] * np.abs(theta - start).max():
            raise SystemExit(f"{case}: {name} differs from at once by {off:.3g}")


def seconds(call: Callable[[], Any]) -> float:
    """One call's time."""
    start = perf_counter()
    call()
    return perf_counter() - start


def compare(case: Case, runs: int, rounds: int) -> list[object]:
    """A row: sizes, medians of the times, and the ratios with their ranges."""
    check(case, min(runs, 4))
    training = case.training(runs)
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(rounds):
        for name, way in WAYS.items():
            times[name].append(seconds(partial(way, training, runs, number)))
    outputs = runs * training.outputs
    row: list[object] = [training.d, case.precision]
    row += [1e3 * median(own) / (case.steps * runs) for own in times.values()]
    for name in list(WAYS)[1:]:
        ratios = [slow / fast for slow, fast in zip(times[name], times["at once"], strict=True)]
        row.append(f"{median(ratios):.1f} [{min(ratios):.1f}, {max(ratios):.1f}]")
    return [*row, f"{outputs / median(times['at once']):,.0f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        cases = QUICK if options.quick else CASES
        runs, rounds = (3, 1) if options.quick else (options.runs, options.rounds)
        print("# Training many networks at once\n")
        print(f"`python -m benchmarks.network_training --threads {options.threads}`\n")
        print(f"{machine('numpy', 'torch')}; {options.threads} thread(s)\n")
        first = cases[0]
        print(
            f"{runs} runs of grpo with B = {first.batch_size}, G = {first.group_size} on outputs of "
            f"{first.length} tokens out of {first.vocabulary}; medians of {rounds} interleaved "
            "rounds, milliseconds for a step of one run. Ratios are of the times of one round, with "
            "their range.\n"
        )
        rows = [compare(case, runs, rounds) for case in cases]
        head = ["parameters", "precision", *(f"{name}, ms" for name in WAYS)]
        head += [f"{name} / at once" for name in list(WAYS)[1:]]
        head += ["outputs a second at once"]
        print(tabulate(rows, head, tablefmt="github", floatfmt=".3g"))
    finally:
        torch.set_num_threads(before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
