"""The trajectory engine against its peers: ``python -m benchmarks.trajectories [--quick]``.

R independent runs of T steps of grpo with rates c / (t + t₀), one prompt a step, a location policy
on a grid and binary rewards: draw a prompt, form its softmax, draw G arms and rewards, step. The
engine computes in float64; peers use float32, in rows of their own float64, and their own
generators. Everybody may use two
threads.

Each peer is written in several ways; the fastest on a short run is timed on the whole. A peer whose
mean J(θ_T) is not the engine's within Monte Carlo error makes the script fail before it is timed.
Rounds are interleaved, and ratios are of the least times: what other work disturbs least.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy.special import softmax
from tabulate import tabulate
from threadpoolctl import threadpool_limits

from benchmarks.ustatistics import machine
from ustat_pg.engines.runs.schedules import Decay
from ustat_pg.engines.runs.trajectory import Trajectory
from ustat_pg.problems import SoftmaxBandit

THREADS = 2
START = -1.0
"""Every coordinate of θ₀: far enough from the optimum that a wrong rate shows."""

ERRORS = 5.0
"""Standard errors that two means may differ by: a normal deviate exceeds it in 6e-7 of cases."""

TARGETS = {
    "NumPy plain": 9.0,
    "NumPy": 5.0,
    "NumPy float64": 5.0,
    "torch": None,
    "JAX": 4.0,
    "JAX float64": 4.0,
}
LONGEST = 5.0
"""Seconds: what takes longer is run once, and that run timed."""

LARGEST_SLOPE = 0.1
"""How far a log-log slope of seconds may be from 1 to be called linear."""

Array = Any
Program = Callable[[int, int, int], Array]
"""(seed, replications, steps) to θ_T, (R, d)."""


@dataclass(frozen=True)
class Case:
    """A problem size, and the arrays that every peer reads."""

    label: str
    contexts: int
    arms: int
    d: int
    group: int
    c: float = 12.0
    t0: float = 100.0
    real: str = "float32"
    """What peers compute in."""

    @cached_property
    def problem(self) -> SoftmaxBandit:
        """Arms on a grid, logits -(u - m)²/(2 τ²), success a bump around a place of the context."""
        grid, tau = np.linspace(-2, 2, self.arms), 0.8
        place = np.linspace(-1, 1, self.contexts) if self.contexts > 1 else np.zeros(1)
        powers = place[:, None] ** np.arange(self.d)
        success = 0.05 + 0.9 * np.exp(-((grid - 0.7 * place[:, None] - 0.2) ** 2) / 1.28)
        return SoftmaxBandit.linear(
            np.full(self.contexts, 1 / self.contexts),
            grid[:, None] / tau**2 * powers[:, None, :],
            np.full(self.d, START),
            np.tile([1.0, 0.0], (self.contexts, self.arms, 1)),
            np.stack([success, 1 - success], axis=-1),
            np.tile(-(grid**2) / (2 * tau**2), (self.contexts, 1)),
        )

    @cached_property
    def features(self) -> Array:
        """φ(x, k), (X, K, d), in the peers' precision."""
        return self.problem.policy.features.astype(self.real)

    @cached_property
    def offset(self) -> Array:
        """(X, K)."""
        return self.problem.policy.offset.astype(self.real)

    @cached_property
    def success(self) -> Array:
        """P(z = 1 | x, k), (X, K)."""
        return self.problem.reward_probs[:, :, 0].astype(self.real)

    def trajectory(self, steps: int) -> Trajectory:
        """What the engine runs."""
        return Trajectory(self.problem, self.group, steps, Decay(self.c, self.t0))


CASES = (
    Case("small", contexts=3, arms=9, d=2, group=2),
    Case("large", contexts=3, arms=18, d=3, group=8),
)


def in_threads(function: Callable[[int, int], Array], replications: int) -> Array:
    """``function(first, count)`` on equal shares of the replications, one to a thread."""
    share = -(-replications // THREADS)
    firsts = range(0, replications, share)
    with ThreadPoolExecutor(THREADS) as pool:
        parts = pool.map(lambda first: function(first, min(share, replications - first)), firsts)
        return np.concatenate(list(parts))


def engine(case: Case, seed: int, replications: int, steps: int, name: str = "cpu") -> Array:
    """θ_T of this library's engine."""
    trajectory = case.trajectory(steps)

    def share(first: int, count: int) -> Array:
        return trajectory.run(name, seed=seed, first=first, replications=count)[:, 0]

    return in_threads(share, replications)


# NumPy: arrays (K, m), replications last, in chunks that stay in the cache.


def numpy_chunk(case: Case, gather: bool, steps: int, seed: Sequence[int], m: int) -> Array:
    """m replications: features taken by prompt, or logits of every prompt and one of them kept."""
    generator = np.random.Generator(np.random.SFC64(seed))
    real = np.dtype(case.real)
    by_arm = case.features.transpose(2, 1, 0).copy()
    everywhere = case.features.reshape(-1, case.d)
    column = case.features.transpose(2, 0, 1).reshape(case.d, -1).copy()
    offset, success = case.offset.T.copy(), case.success.ravel()
    theta = np.full((case.d, m), START, real)
    logits = np.empty((case.arms, m), real)
    arms = np.empty((case.group, m), np.intp)
    rows = np.arange(m)
    for t in range(1, steps + 1):
        x = (generator.random(m, dtype=real) * case.contexts).astype(np.intp)
        if gather:
            np.take(offset, x, axis=1, out=logits)
            for j in range(case.d):
                logits += by_arm[j].take(x, axis=1) * theta[j]
        else:
            every = (everywhere @ theta).reshape(case.contexts, case.arms, m)
            logits = every[x, :, rows].T + offset.take(x, axis=1)
        logits -= logits.max(axis=0)
        np.exp(logits, out=logits)
        ends = np.cumsum(logits, axis=0, out=logits)
        level = generator.random((case.group, m), dtype=real)
        level *= ends[-1]
        np.multiply(x, case.arms, out=arms[0])
        arms[1:] = arms[0]
        for end in ends[:-1]:
            arms += level >= end
        z = (generator.random((case.group, m), dtype=real) < success.take(arms)).astype(real)
        z -= z.mean(axis=0)
        z *= case.c / (t + case.t0) / (case.group - 1)
        for j in range(case.d):
            theta[j] += np.einsum("gm,gm->m", z, column[j].take(arms))
    return theta.T


def numpy_program(
    case: Case, gather: bool, chunk: int, seed: int, replications: int, steps: int
) -> Array:
    """Chunks, shared out over threads."""

    def share(first: int, count: int) -> Array:
        return np.concatenate(
            [
                numpy_chunk(case, gather, steps, (seed, first, at), min(chunk, count - at))
                for at in range(0, count, chunk)
            ]
        )

    return in_threads(share, replications)


def numpy_programs(case: Case, quick: bool) -> dict[str, Program]:
    """The NumPy programs."""
    return {
        f"{name}, chunks of {chunk}": partial(numpy_program, case, gather, chunk)
        for name, gather in (("features by prompt", True), ("all prompts' logits", False))
        for chunk in ((2500,) if quick else (500, 2500, 5000))
    }


# torch: the same, and the step compiled.


def torch_program(case: Case, step: Any, seed: int, replications: int, steps: int) -> Array:
    """All replications at once; torch brings its own threads."""
    import torch

    torch.manual_seed(seed)
    theta = torch.full((case.d, replications), START)
    with torch.inference_mode():
        for t in range(1, steps + 1):
            theta = step(theta, torch.tensor(case.c / (t + case.t0) / (case.group - 1)))
    return theta.numpy().T


def torch_step(case: Case) -> Any:
    """One step of all replications."""
    import torch

    by_arm = torch.tensor(case.features.transpose(2, 1, 0).copy())
    column = torch.tensor(case.features.transpose(2, 0, 1).reshape(case.d, -1).copy())
    offset, success = torch.tensor(case.offset.T.copy()), torch.tensor(case.success.ravel())

    def step(theta: Any, rate: Any) -> Any:
        m = theta.shape[1]
        x = torch.randint(case.contexts, (m,))
        logits = offset[:, x]
        for j in range(case.d):
            logits = logits + by_arm[j][:, x] * theta[j]
        ends = torch.exp(logits - logits.amax(0)).cumsum(0)
        level = torch.rand(case.group, m) * ends[-1]
        arms = x * case.arms
        for k in range(case.arms - 1):
            arms = arms + (level >= ends[k])
        z = (torch.rand(case.group, m) < success[arms]).float()
        z = (z - z.mean(0)) * rate
        return theta + (z * column[:, arms]).sum(1)

    return step


def torch_programs(case: Case, quick: bool) -> dict[str, Program]:
    """The torch programs."""
    import torch

    torch.set_num_threads(THREADS)
    step = torch_step(case)
    programs = {"eager": partial(torch_program, case, step)}
    if not quick:
        programs["step compiled"] = partial(torch_program, case, torch.compile(step))
    return programs


# JAX: jit and scan, over replications by vmap or by hand.


def jax_step(case: Case, theta: Any, draws: Any, t: Any) -> Any:
    """One step of one replication, from 1 + 2 G uniform numbers."""
    import jax.numpy as jnp

    features, offset, success = (jnp.asarray(a) for a in (case.features, case.offset, case.success))
    x = (draws[0] * case.contexts).astype(jnp.int32)
    mine = features[x]
    logits = mine @ theta + offset[x]
    ends = jnp.cumsum(jnp.exp(logits - logits.max()))
    level = draws[1 : 1 + case.group] * ends[-1]
    arms = (level[:, None] >= ends[:-1]).sum(1)
    z = (draws[1 + case.group :] < success[x][arms]).astype(case.real)
    rate = case.c / (t + case.t0) / (case.group - 1)
    return theta + rate * ((z - z.mean()) @ mine[arms])


def jax_by_hand(case: Case, theta: Any, draws: Any, t: Any) -> Any:
    """One step of all replications: theta (d, m), draws (1 + 2 G, m); sums over arms unrolled."""
    import jax.numpy as jnp

    by_arm = jnp.asarray(case.features.transpose(2, 1, 0))
    column = jnp.asarray(case.features.transpose(2, 0, 1).reshape(case.d, -1))
    offset, success = jnp.asarray(case.offset.T), jnp.asarray(case.success.ravel())
    x = (draws[0] * case.contexts).astype(jnp.int32)
    logits = [
        offset[k][x] + sum(by_arm[j, k][x] * theta[j] for j in range(case.d))
        for k in range(case.arms)
    ]
    top = logits[0]
    for logit in logits[1:]:
        top = jnp.maximum(top, logit)
    ends, total = [], jnp.zeros_like(top)
    for logit in logits:
        total = total + jnp.exp(logit - top)
        ends.append(total)
    arms, level = x * case.arms, draws[1 : 1 + case.group] * total
    for end in ends[:-1]:
        arms = arms + (level >= end)
    z = (draws[1 + case.group :] < success[arms]).astype(case.real)
    z = (z - z.mean(0)) * (case.c / (t + case.t0) / (case.group - 1))
    return theta + (z * column[:, arms]).sum(1)


def jax_runs(case: Case, mapped: bool, m: int, steps: int) -> Any:
    """A compiled function: a key to θ_T of m replications, (m, d)."""
    import jax
    import jax.numpy as jnp

    width, times = 1 + 2 * case.group, jnp.arange(1, steps + 1)

    def alone(key: Any) -> Any:
        def body(theta: Any, t: Any) -> Any:
            draws = jax.random.uniform(jax.random.fold_in(key, t), (width,), case.real)
            return jax_step(case, theta, draws, t), None

        return jax.lax.scan(body, jnp.full(case.d, START, case.real), times)[0]

    def together(key: Any) -> Any:
        def body(theta: Any, t: Any) -> Any:
            draws = jax.random.uniform(jax.random.fold_in(key, t), (width, m), case.real)
            return jax_by_hand(case, theta, draws, t), None

        return jax.lax.scan(body, jnp.full((case.d, m), START, case.real), times)[0].T

    if mapped:
        return jax.jit(lambda key: jax.vmap(alone)(jax.random.split(key, m)))
    return jax.jit(together)


class JaxProgram:
    """Compiled once for each size; in one call, or in one call to a thread."""

    def __init__(self, case: Case, mapped: bool, calls: int) -> None:
        self.case, self.mapped, self.calls = case, mapped, calls
        self.compiled: dict[tuple[int, int], Any] = {}

    def __call__(self, seed: int, replications: int, steps: int) -> Array:
        import jax

        m = replications // self.calls
        if (m, steps) not in self.compiled:
            self.compiled[m, steps] = jax_runs(self.case, self.mapped, m, steps)
        run = self.compiled[m, steps]

        def share(first: int, _: int) -> Array:
            # What allows float64 is a thread's own.
            with jax.enable_x64(self.case.real == "float64"):
                key = jax.random.key(seed)
                return np.asarray(run(jax.random.fold_in(key, first)))

        return share(0, m) if self.calls == 1 else in_threads(share, replications)


def jax_programs(case: Case, quick: bool) -> dict[str, Program]:
    """The JAX programs."""
    forms = {"vmap": True, "by hand": False}
    return {
        f"jit, scan, {form}" + (", 2 calls" if calls > 1 else ""): JaxProgram(case, mapped, calls)
        for form, mapped in forms.items()
        for calls in ((1,) if quick else (1, THREADS))
    }


def plain_numpy(case: Case, quick: bool) -> dict[str, Program]:
    """Vectorised over all replications at once, in one thread and float64: no tuning."""

    def program(seed: int, replications: int, steps: int) -> Array:
        return numpy_chunk(replace(case, real="float64"), True, steps, (seed,), replications)

    return {"all at once, one thread, float64": program}


def in_float64(
    programs: Callable[[Case, bool], dict[str, Program]], case: Case, quick: bool
) -> dict[str, Program]:
    """The programs in the engine's own precision."""
    return programs(replace(case, real="float64"), quick)


PEERS: dict[str, Callable[[Case, bool], dict[str, Program]]] = {
    "NumPy plain": plain_numpy,
    "NumPy": numpy_programs,
    "NumPy float64": partial(in_float64, numpy_programs),
    "torch": torch_programs,
    "JAX": jax_programs,
    "JAX float64": partial(in_float64, jax_programs),
}


def installed(library: str) -> bool:
    """Whether a peer can run here."""
    return find_spec(library.split()[0].lower()) is not None


# What is measured.


def mean_and_error(case: Case, theta: Array) -> tuple[float, float]:
    """The mean of J(θ_T) and its standard error."""
    policy = case.problem.policy
    logits = np.einsum("xkd,rd->rxk", policy.features, np.asarray(theta, np.float64))
    weights = softmax(logits + policy.offset, axis=-1)
    values = (weights * case.problem.mean_rewards).sum(axis=-1) @ case.problem.context_probs
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def check(case: Case, name: str, theta: Array, ours: Array) -> float:
    """How many standard errors the means of J differ by.

    Raises:
        SystemExit: more than 5, or arrays that do not compare.
    """
    (mean, error), (our_mean, our_error) = mean_and_error(case, theta), mean_and_error(case, ours)
    off = abs(mean - our_mean) / np.hypot(error, our_error)
    if theta.shape != ours.shape or not off <= ERRORS:
        raise SystemExit(
            f"{name}, {case.label}: mean J is {mean:.5f} ± {error:.5f}, the engine's "
            f"{our_mean:.5f} ± {our_error:.5f}: it computes something else"
        )
    return float(off)


def seconds(call: Callable[[], Array]) -> float:
    """The time of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def fastest(programs: dict[str, Program], replications: int, steps: int) -> str:
    """The program that is fastest on a short run, the first call of each not counted."""
    times = {}
    for name, program in programs.items():
        program(0, replications, steps)
        times[name] = min(seconds(partial(program, 1 + i, replications, steps)) for i in range(2))
    return min(times, key=lambda name: times[name])


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    replications: int
    steps: int
    trial: int
    rounds: int
    quick: bool = False


def compare(case: Case, libraries: Sequence[str], effort: Effort) -> list[list[Any]]:
    """A row for the engine and one for each peer: seconds, ratio, and how far the means are off."""
    size = effort.replications, effort.steps
    ours = engine(case, 0, *size)
    chosen = {}
    for library in libraries:
        programs = PEERS[library](case, effort.quick)
        name = fastest(programs, effort.replications, effort.trial)
        begin = time.perf_counter()
        theta = programs[name](0, *size)
        took = time.perf_counter() - begin
        off = check(case, f"{library} ({name})", theta, ours)
        chosen[library] = name, programs[name], off, took
    own: list[float] = []
    theirs: dict[str, list[float]] = {library: [] for library in chosen}
    for number in range(effort.rounds):
        own.append(seconds(partial(engine, case, number, *size)))
        for library, (_, program, _, took) in chosen.items():
            if took <= LONGEST:
                theirs[library].append(seconds(partial(program, number, *size)))
    each = 1e9 / (effort.replications * effort.steps)
    rows: list[list[Any]] = [
        [case.label, "cpu engine", "float64", f"{min(own):.3g}", f"{min(own) * each:.3g}", "1", ""]
    ]
    for library, (name, _, off, took) in chosen.items():
        least = min(theirs[library], default=took)
        ratio = least / min(own)
        rows.append(
            [case.label, library, name, f"{least:.3g}", f"{least * each:.3g}", ratio, f"{off:.1f}"]
        )
    return rows


def slope(sizes: Sequence[int], timed: Callable[[int], float], repeats: int) -> float:
    """The log-log slope of the least seconds against the size."""
    least = dict.fromkeys(sizes, np.inf)
    for _ in range(repeats):
        for size in sizes:
            least[size] = min(least[size], timed(size))
    return float(np.polyfit(np.log(list(least)), np.log(list(least.values())), 1)[0])


def slopes(case: Case, effort: Effort) -> tuple[float, float]:
    """Slopes of one thread's processor time in R and in T."""

    def timed(replications: int, steps: int) -> float:
        trajectory = case.trajectory(steps)
        begin = time.thread_time()
        trajectory.run("cpu", replications=replications)
        return time.thread_time() - begin

    base_r, base_t = (1024, 125) if not effort.quick else (512, 50)
    many = [base_r * 2**i for i in range(5)]
    long = [base_t * 2**i for i in range(5)]
    timed(128, 2)
    return (
        slope(many, lambda r: timed(r, 2 * base_t), 3),
        slope(long, lambda t: timed(2 * base_r, t), 3),
    )


HEADERS = ("size", "program", "form", "seconds", "ns a step", "engine is", "errors off")


def summary(rows: list[list[Any]]) -> str:
    """Whether the targets are met."""
    lines = []
    for library, target in TARGETS.items():
        ratios = {row[0]: row[5] for row in rows if row[1] == library}
        if not ratios:
            lines.append(f"- {library}: not installed")
            continue
        shown = ", ".join(f"{ratio:.1f}x ({size})" for size, ratio in ratios.items())
        reached = "" if target is None else f"; at least {target:g}x asked: "
        if target is not None:
            reached += "met" if min(ratios.values()) >= target else "NOT met"
        lines.append(f"- {library}: {shown}{reached}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None, cases: Sequence[Case] = CASES) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run: shorter, fewer programs")
    parser.add_argument("--replications", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args(arguments)
    effort = Effort(
        replications=options.replications or (2000 if options.quick else 10_000),
        steps=options.steps or (100 if options.quick else 1000),
        trial=10 if options.quick else 20,
        rounds=options.rounds or (2 if options.quick else 3),
        quick=options.quick,
    )
    libraries = [library for library in PEERS if installed(library)]
    print("# Trajectories against their peers\n")
    print(f"{machine('numpy', 'numba', 'torch', 'jax')}; {THREADS} threads.\n")
    print(
        f"R = {effort.replications:,} runs of T = {effort.steps:,} steps, B = 1, grpo. "
        f"{effort.rounds} rounds; seconds are the least."
    )
    print("Errors off: how many standard errors the mean of J at the end is from the engine's.\n")
    for case in cases:
        sizes = f"X = {case.contexts}, K = {case.arms}, d = {case.d}, G = {case.group}"
        print(f"- {case.label}: {sizes}")
    rows, lines = [], []
    with threadpool_limits(1, user_api="blas"):
        for case in cases:
            rows += compare(case, libraries, effort)
            in_r, in_t = slopes(case, effort)
            linear = max(abs(in_r - 1), abs(in_t - 1)) <= LARGEST_SLOPE
            lines.append(
                f"- {case.label}: slope of processor time {in_r:.3f} in R, {in_t:.3f} in T"
                f" ({'linear' if linear else 'NOT linear'})"
            )
    shown = [[f"{c:.1f}x faster" if isinstance(c, float) else c for c in row] for row in rows]
    print("\n" + tabulate(shown, headers=HEADERS, tablefmt="github", disable_numparse=True) + "\n")
    print(summary(rows) + "\n")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
