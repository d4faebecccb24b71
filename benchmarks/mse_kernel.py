"""The cpu engine against its peers: ``python -m benchmarks.mse_kernel [--rounds N] [--quick]``.

The quantity is grpo's squared error ‖ĝ - g‖² on one prompt with K arms, tabular softmax and a
reward per arm: G draws, then a statistic of how often each arm was drawn. Everybody may use two
threads. Nobody forms a d-dimensional score: with counts n, n̄z the mean reward and g in R^K,

    ĝ = n ⊙ (z - n̄z) / (G - 1),   ‖ĝ - g‖² = ‖ĝ‖² - 2 ⟨ĝ, g⟩ + ‖g‖².

Each peer is written in several ways, at several batch sizes, in float32, with one thread and with
two; the best of these is timed. A peer whose mean is not the predicted MSE within its Monte Carlo
error makes the script fail. Rounds are interleaved, and ratios are medians of paired rounds.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from tabulate import tabulate
from threadpoolctl import threadpool_limits

from ustat_pg import rng
from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.engines.gradients import cpu, lanes
from ustat_pg.engines.gradients.scalar import pick
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import SoftmaxBandit

SIZES = ((10, 16), (100, 64), (1000, 64))
THREADS = 2
QUANTITY = SquaredError(Estimator("grpo"))
CHECKED = 1024
"""Replications in a call, where a mean is checked: one of the batch sizes, so compiled once."""

ERRORS = 5.0
"""How many standard errors a peer's mean may be off: a normal deviate exceeds it in 6e-7 of cases."""

Array = Any
Peer = Callable[[Any, int], Array]
"""(a thread's random state, replications) to that many squared errors."""


@dataclass(frozen=True)
class Case:
    """One size, and what every peer needs: laws and tables, made before the clock starts."""

    arms: int
    group: int

    @cached_property
    def cell(self) -> GradientCell:
        """The cell that the engine measures."""
        numbers = np.random.default_rng(self.arms)
        logits, rewards = numbers.normal(size=self.arms), numbers.uniform(size=self.arms)
        ones = np.ones((1, self.arms, 1))
        problem = SoftmaxBandit.tabular([1.0], logits[None], rewards[None, :, None], ones)
        return GradientCell(problem, self.group)

    @cached_property
    def mse(self) -> float:
        """The prediction."""
        return gradient_mse(self.cell.problem.moments(), "grpo", self.group).mse

    @cached_property
    def probs(self) -> Array:
        """π, (K,)."""
        return self.cell.problem.policy.probs[0]

    @cached_property
    def ends(self) -> Array:
        """Thresholds of all arms but the last, (K-1,), uint32."""
        ends = rng.thresholds(self.probs)[:-1]
        return np.minimum(ends, 2**32 - 1).astype(np.uint32)

    @cached_property
    def rewards(self) -> Array:
        """Rewards about their mean, (K,), float32: the offset changes no estimate."""
        rewards = self.cell.problem.reward_values[0, :, 0]
        return (rewards - self.probs @ rewards).astype(np.float32)

    @cached_property
    def gradient(self) -> Array:
        """g, (K,), float32."""
        return self.cell.problem.gradient().astype(np.float32)

    @cached_property
    def linear(self) -> Array:
        """What n is multiplied by, (K, 3): z, z g and g."""
        z, g = self.rewards, self.gradient
        return np.stack([z, z * g, g], axis=1)

    @cached_property
    def quadratic(self) -> Array:
        """What n² is multiplied by, (K, 3): z², z and 1."""
        z = self.rewards
        return np.stack([z * z, z, np.ones_like(z)], axis=1)

    @cached_property
    def start(self) -> Array:
        """The arm of each high half of a word, K where the low half decides, (2^16,)."""
        high = np.arange(2**16, dtype=np.uint32) << np.uint32(16)
        least = np.searchsorted(self.ends, high, side="right")
        most = np.searchsorted(self.ends, high | np.uint32(0xFFFF), side="right")
        return np.where(least == most, least, self.arms)

    @cached_property
    def small_start(self) -> Array:
        """The same table in the smallest integers that hold it."""
        return self.start.astype(np.uint8 if self.arms < 256 else np.uint16)

    @cached_property
    def guide(self) -> tuple[Array, int, int]:
        """Where a search for a word starts, by its leading bits; their shift; steps at most."""
        shift = 32 - min(int(np.ceil(np.log2(self.arms))) + 3, 16)
        high = np.arange(2 ** (32 - shift), dtype=np.uint32) << np.uint32(shift)
        least = np.searchsorted(self.ends, high, side="right")
        most = np.searchsorted(self.ends, high | np.uint32(2**shift - 1), side="right")
        return least, shift, int((most - least).max())

    @cached_property
    def alias(self) -> tuple[Array, Array]:
        """Walker's tables: the chance of staying, as a word, and the other arm, (K,) each."""
        stay, other = self.probs * self.arms, np.arange(self.arms)
        low = [k for k in range(self.arms) if stay[k] < 1]
        high = [k for k in range(self.arms) if stay[k] >= 1]
        while low and high:
            k, rich = low.pop(), high[-1]
            other[k] = rich
            stay[rich] -= 1 - stay[k]
            if stay[rich] < 1:
                low.append(high.pop())
        return np.minimum(stay * 2**32, 2**32 - 1).astype(np.uint32), other

    def combine(self, n: Any, sq: Any) -> Any:
        """The squared error from n @ linear and n² @ quadratic, both (R, 3)."""
        mean, unit = n[:, 0] / self.group, 1 / (self.group - 1)
        square = sq[:, 0] - 2 * mean * sq[:, 1] + mean * mean * sq[:, 2]
        along = n[:, 1] - mean * n[:, 2]
        return unit * (unit * square - 2 * along) + float(self.gradient @ self.gradient)


# NumPy: samplers, (case, generator, count) to arms.


def raw(generator: Any, count: int, dtype: Any) -> Array:
    """Random words of 16 or 32 bits, as many as asked, cut from the generator's own 64."""
    size = np.dtype(dtype).itemsize
    return generator.random_raw(-(-count * size // 8)).view(dtype)[:count]


def by_search(case: Case, generator: Any, count: int) -> Array:
    """Bisection over the thresholds."""
    return np.searchsorted(case.ends, raw(generator, count, np.uint32), side="right")


def by_guide(case: Case, generator: Any, count: int) -> Array:
    """Indexed search: a table of starts, then steps."""
    words = raw(generator, count, np.uint32)
    least, shift, steps = case.guide
    ends = np.append(case.ends, np.uint32(2**32 - 1))
    arms = least.take(words >> np.uint32(shift))
    for _ in range(steps):
        arms += words >= ends.take(arms)
    return np.minimum(arms, case.arms - 1)


def by_alias(case: Case, generator: Any, count: int) -> Array:
    """Walker's alias method."""
    stay, other = case.alias
    place = (raw(generator, count, np.uint32) * np.uint64(case.arms)) >> np.uint64(32)
    place = place.view(np.int64)
    return np.where(raw(generator, count, np.uint32) < stay.take(place), place, other.take(place))


def by_halves(case: Case, generator: Any, count: int, small: bool = False) -> Array:
    """A table over the high half of a word; the low half is drawn only where it decides."""
    high = raw(generator, count, np.uint16)
    arms = (case.small_start if small else case.start).take(high)
    open_ = np.flatnonzero(arms == case.arms)
    if len(open_):
        low = raw(generator, len(open_), np.uint16)
        words = (high[open_].astype(np.uint32) << np.uint32(16)) | low
        arms[open_] = np.searchsorted(case.ends, words, side="right")
    return arms


# NumPy: statistics of arms.


def tabulated(case: Case, sampler: Any, generator: Any, replications: int) -> Array:
    """Counts (R, K) by bincount, then two matrix products."""
    arms = sampler(case, generator, replications * case.group).reshape(replications, case.group)
    arms = arms + (np.arange(replications) * case.arms)[:, None]
    counts = np.bincount(arms.ravel(), minlength=replications * case.arms)
    n = counts.reshape(replications, case.arms).astype(np.float32)
    return case.combine(n @ case.linear, np.square(n) @ case.quadratic)


def multinomial(case: Case, generator: Any, replications: int) -> Array:
    """Counts (R, K) drawn as such, by conditional binomials."""
    n = np.random.Generator(generator).multinomial(case.group, case.probs, size=replications)
    n = n.astype(np.float32)
    return case.combine(n @ case.linear, np.square(n) @ case.quadratic)


def below_thresholds(case: Case, generator: Any, replications: int) -> Array:
    """No search: how many of a group's words lie below each threshold, in bytes."""
    words = raw(generator, replications * case.group, np.uint32).reshape(case.group, -1)
    n = np.full((case.arms, replications), case.group, np.float32)
    for k, end in enumerate(case.ends):
        n[k] = np.add.reduce((words < end).view(np.uint8), axis=0, dtype=np.uint8)
    n[1:] -= n[:-1].copy()
    return case.combine((case.linear.T @ n).T, (case.quadratic.T @ np.square(n)).T)


def equal_to_arms(case: Case, generator: Any, replications: int) -> Array:
    """A table's arms in bytes, compared with every arm."""
    arms = by_halves(case, generator, replications * case.group, small=True)
    arms = arms.reshape(case.group, replications)
    n = np.empty((case.arms, replications), np.float32)
    for k in range(case.arms):
        n[k] = np.add.reduce((arms == k).view(np.uint8), axis=0, dtype=np.uint8)
    return case.combine((case.linear.T @ n).T, (case.quadratic.T @ np.square(n)).T)


def read_back(case: Case, generator: Any, replications: int) -> Array:
    """Not K statistics but G: each output reads its arm's count."""
    arms = by_halves(case, generator, replications * case.group).reshape(replications, -1)
    key = (arms + (np.arange(replications) * case.arms)[:, None]).ravel()
    n = np.bincount(key, minlength=replications * case.arms).take(key).reshape(arms.shape)
    z = case.rewards.take(arms)
    z -= z.mean(axis=1, keepdims=True)
    unit = 1 / (case.group - 1)
    square = np.einsum("rg,rg,rg->r", n.astype(np.float32), z, z)
    along = np.einsum("rg,rg->r", z, case.gradient.take(arms))
    return unit * (unit * square - 2 * along) + float(case.gradient @ case.gradient)


def sorted_runs(case: Case, generator: Any, replications: int) -> Array:
    """Sort each group; a run of equal arms is a count."""
    arms = by_halves(case, generator, replications * case.group, small=True)
    arms = arms.reshape(replications, case.group)
    arms.sort(axis=1)
    opens = np.ones(arms.shape, bool)
    np.not_equal(arms[:, 1:], arms[:, :-1], out=opens[:, 1:])
    at = np.flatnonzero(opens.ravel())
    n = np.diff(at, append=arms.size).astype(np.float32)
    of = arms.ravel()[at]
    z, g = case.rewards.take(of), case.gradient.take(of)
    m = n * z
    terms = np.stack([m, m * g, n * g, m * m, m * n, n * n])
    groups = np.searchsorted(at, np.arange(replications) * case.group)
    sums = np.add.reduceat(terms, groups, axis=1).T
    return case.combine(sums[:, :3], sums[:, 3:])


def numpy_peers(case: Case) -> dict[str, Peer]:
    """The NumPy programs that fit this size."""
    peers: dict[str, Any] = {
        "thresholds, bisection": partial(tabulated, case, by_search),
        "thresholds, guide table": partial(tabulated, case, by_guide),
        "alias": partial(tabulated, case, by_alias),
        "multinomial": partial(multinomial, case),
        "16-bit table": partial(tabulated, case, by_halves),
        "16-bit table, counts read back": partial(read_back, case),
        "16-bit table, sorted groups": partial(sorted_runs, case),
    }
    if case.arms < 255 and case.group < 256:
        peers["words below each threshold"] = partial(below_thresholds, case)
        peers["16-bit table, arms in bytes"] = partial(equal_to_arms, case)
    return peers


# torch and JAX: they bring their own threads.


def torch_peers(case: Case, quick: bool) -> dict[str, Peer]:
    """Eager programs, and the same compiled."""
    import torch

    ends = torch.from_numpy(case.ends.astype(np.int64) - 2**31).to(torch.int32)
    start = torch.from_numpy(case.start.astype(np.int64))
    linear, quadratic = torch.from_numpy(case.linear), torch.from_numpy(case.quadratic)
    probs = torch.tensor(case.probs)

    def dense(arms: Any) -> Any:
        n = torch.zeros(len(arms), case.arms)
        n.scatter_add_(1, arms, torch.ones(arms.shape))
        return case.combine(n @ linear, (n * n) @ quadratic)

    def bisection(_: Any, replications: int) -> Any:
        words = torch.empty(replications, case.group, dtype=torch.int32)
        words.random_(-(2**31), 2**31)
        return dense(torch.searchsorted(ends, words, right=True))

    def multinomial(_: Any, replications: int) -> Any:
        drawn = torch.multinomial(probs, replications * case.group, replacement=True)
        return dense(drawn.reshape(replications, case.group))

    def halves(_: Any, replications: int) -> Any:
        words = torch.empty(replications, case.group, dtype=torch.int32)
        words.random_(-(2**31), 2**31)
        arms = start[(words >> 16) + 2**15]
        open_ = arms == case.arms
        arms[open_] = torch.searchsorted(ends, words[open_], right=True)
        return dense(arms)

    peers = {"thresholds, bisection": bisection, "16-bit table": halves, "multinomial": multinomial}
    if not quick:
        peers["thresholds, bisection, compiled"] = torch.compile(bisection)
    # A factory, so that each call hands back NumPy: the work is done when it returns.
    return {name: partial(_as_numpy, peer) for name, peer in peers.items()}


def _as_numpy(peer: Peer, state: Any, replications: int) -> Array:
    return np.asarray(peer(state, replications))


def jax_peers(case: Case) -> dict[str, Peer]:
    """Programs under jit, on JAX's default generator; on a CPU its others were not faster."""
    import jax
    import jax.numpy as jnp

    ends, linear, quadratic = (jnp.asarray(a) for a in (case.ends, case.linear, case.quadratic))
    least, shift, steps = case.guide
    least, padded = jnp.asarray(least, jnp.int32), jnp.append(ends, jnp.uint32(2**32 - 1))

    def dense(arms: Any) -> Any:
        n = jax.vmap(
            lambda row: jax.ops.segment_sum(jnp.ones(case.group), row, num_segments=case.arms)
        )(arms)
        return case.combine(n @ linear, (n * n) @ quadratic)

    def bisection(words: Any) -> Any:
        return dense(jnp.searchsorted(ends, words, side="right"))

    def guided(words: Any) -> Any:
        arms = least[words >> shift]
        for _ in range(steps):
            arms += words >= padded[arms]
        return dense(jnp.minimum(arms, case.arms - 1))

    def below(words: Any) -> Any:
        under = (words[:, :, None] < ends).astype(jnp.float32).sum(axis=1)
        n = jnp.diff(under, axis=1, prepend=0.0, append=float(case.group))
        return case.combine(n @ linear, (n * n) @ quadratic)

    programs = {
        "thresholds, bisection": bisection,
        "thresholds, guide table": guided,
        "words below each threshold": below,
    }
    peers: dict[str, Peer] = {}
    for name, program in programs.items():

        def whole(key: Any, replications: int, program: Any = program) -> Any:
            return program(jax.random.bits(key, (replications, case.group), jnp.uint32))

        keys = _keys(jax.random.key(0), jax.random.split)
        peers[name] = partial(_with_key, jax.jit(whole, static_argnums=1), keys)
    return peers


def _keys(key: Any, split: Any) -> Iterator[Any]:
    while True:
        key, now = split(key)
        yield now


def _with_key(compiled: Any, keys: Iterator[Any], _: Any, replications: int) -> Array:
    return np.asarray(compiled(next(keys), replications))


# The engine, and drawing alone.


@njit(nogil=True)
def _draw_by_search(first: Any, replications: Any, key: Any, group: Any, search: Any) -> Any:
    """The sum of the outcome numbers, each word looked up as the engine does."""
    words = np.empty(((group + 3) // 4, 4 * lanes.LANES), np.uint32)
    rows = words.reshape((4 * len(words), lanes.LANES))
    ends, guide, shift = search.ends[0], search.guide[0], search.shift
    total = 0
    for start in range(0, replications, lanes.LANES):
        lanes.word_rows(first + start, 0, key, words)
        used = min(lanes.LANES, replications - start)
        for i in range(group):
            for lane in range(used):
                total += np.int64(pick(np.int64(rows[i, lane]), ends, guide, shift))
    return total


@njit(nogil=True)
def _draw_by_comparison(first: Any, replications: Any, key: Any, group: Any, search: Any) -> Any:
    """The sum of draws, each word compared with every threshold; for few outcomes."""
    words = np.empty(((group + 3) // 4, 4 * lanes.LANES), np.uint32)
    rows = words.reshape((4 * len(words), lanes.LANES))
    ends = search.ends[0]
    numbers = np.empty(lanes.LANES, np.uint32)
    total = 0
    for start in range(0, replications, lanes.LANES):
        lanes.word_rows(first + start, 0, key, words)
        numbers[:] = 0
        for j in range(len(ends)):
            if ends[j] <= 0xFFFFFFFF:
                end = np.uint32(ends[j])
                for i in range(group):
                    for lane in range(lanes.LANES):
                        numbers[lane] += np.uint32(rows[i, lane] >= end)
        for lane in range(min(lanes.LANES, replications - start)):
            total += np.int64(numbers[lane])
    return total


class Blocks:
    """Blocks of replications for a compiled body: each call takes the next ones."""

    def __init__(self, case: Case, body: Any = None) -> None:
        self.case, self.body, self.first = case, body, 0
        self.key = rng.cell_key(0, case.cell.name)
        self.search = cpu.problem_tables(case.cell.problem).outcomes

    def __call__(self, _: Any, replications: int) -> Any:
        first = self.first
        self.first += replications
        if self.body is None:
            return self.case.cell.measure("cpu", [QUANTITY], first=first, replications=replications)
        return self.body(first, replications, self.key, self.case.group, self.search)


def check_draws(case: Case, body: Any, replications: int = 1000) -> None:
    """Fail unless a body that only draws made the engine's own draws."""
    _, chosen = cpu.draw(case.cell, seed=0, first=0, replications=replications)
    if Blocks(case, body)(None, replications) != chosen.sum():
        raise SystemExit(f"{body.__name__} does not make the engine's draws at {case}")


# Measuring.


@dataclass
class Contender:
    """A program at its best batch size and number of threads."""

    name: str
    run: Peer
    batch: int = 0
    threads: int = 1
    limit: Callable[[int], None] | None = None
    """How a library that brings its own threads is told their number."""

    def states(self) -> list[Any]:
        """A random state for each thread."""
        seeds = np.random.SeedSequence(1).spawn(THREADS)
        return [np.random.SFC64(seed) for seed in seeds]

    def time(self, pool: ThreadPoolExecutor, seconds: float) -> float:
        """Seconds for one replication, over whole batches for about that long."""
        states = self.states()
        alone = self.threads == 1 or self.limit is not None
        if self.limit is not None:
            self.limit(self.threads)
        done, start = 0, time.perf_counter()
        while True:
            if alone:
                self.run(states[0], self.batch)
            else:
                list(pool.map(lambda state: self.run(state, self.batch), states))
            done += self.batch if alone else self.threads * self.batch
            spent = time.perf_counter() - start
            if spent >= seconds:
                return spent / done

    def tune(self, pool: ThreadPoolExecutor, batches: Any, threads: Any, seconds: float) -> float:
        """Take the batch size and number of threads that are fastest; the seconds of these."""
        found = []
        for batch in batches:
            for self.threads in threads:
                self.batch = batch
                self.run(self.states()[0], batch)
                found.append((self.time(pool, seconds), batch, self.threads))
        spent, self.batch, self.threads = min(found)
        return spent


def check_mean(case: Case, name: str, run: Peer, least: int = 20_000) -> None:
    """Fail unless a peer's mean is the predicted MSE within its Monte Carlo error.

    Raises:
        SystemExit: with the peer's name and how far it is off.
    """
    state, batch = np.random.SFC64(2), CHECKED
    errors = np.concatenate(
        [np.asarray(run(state, batch), np.float64) for _ in range(-(-least // batch))]
    )
    error = errors.std(ddof=1) / np.sqrt(len(errors))
    off = (errors.mean() - case.mse) / error
    if not abs(off) < ERRORS:
        raise SystemExit(
            f"{name} at K={case.arms}, G={case.group} computes something else: its mean "
            f"{errors.mean():.6g} is {off:.1f} standard errors from the MSE {case.mse:.6g}"
        )


def check_engine(case: Case, replications: int = 100_000) -> None:
    """Fail unless the engine's mean is the predicted MSE within its Monte Carlo error."""
    found = case.cell.measure("cpu", [QUANTITY], seed=1, replications=replications)
    off = (found.mean[0] - case.mse) / np.sqrt(found.covariance[0, 0] / replications)
    if not abs(off) < ERRORS:
        raise SystemExit(f"the engine at {case} is {off:.1f} standard errors from the MSE")


def peers_of(library: str, case: Case, quick: bool) -> dict[str, Peer]:
    """A library's programs at one size."""
    if library == "NumPy":
        return numpy_peers(case)
    return torch_peers(case, quick) if library == "torch" else jax_peers(case)


def limit_of(library: str) -> Callable[[int], None] | None:
    """How a library is told the number of its own threads; JAX takes as many as there are cores."""
    if library == "NumPy":
        return None
    if library == "JAX":
        return lambda _: None
    import torch

    return torch.set_num_threads


def installed(library: str) -> bool:
    """Whether a library can be imported."""
    return find_spec(library.lower()) is not None


@dataclass(frozen=True)
class Effort:
    """How long to measure: rounds, seconds of a slice, seconds of a trial of a batch size."""

    rounds: int = 7
    slice: float = 0.08
    trial: float = 0.03
    quick: bool = False


def measure(case: Case, libraries: tuple[str, ...], effort: Effort) -> list[list[Any]]:
    """The rows of one size: name, variant, ns per output, ratio and its quartiles, how it ran."""
    check_engine(case)
    threads = (1, THREADS)
    with ThreadPoolExecutor(THREADS) as pool, threadpool_limits(1, "blas"):
        blocks = (4096,) if effort.quick else (16_384, 65_536)
        engine = Contender("cpu engine", Blocks(case))
        engine.tune(pool, blocks, (THREADS,), effort.trial)
        drawing = []
        for body in (_draw_by_search, _draw_by_comparison)[: 2 if case.arms <= 64 else 1]:
            check_draws(case, body)
            contender = Contender(
                f"drawing alone\t{body.__name__[6:].replace('_', ' ')}", Blocks(case, body)
            )
            drawing.append((contender.tune(pool, blocks, (THREADS,), effort.trial), contender))
        drawing.sort(key=lambda pair: pair[0])
        contenders = [engine, drawing[0][1]]
        # A table of counts beyond a few megabytes is slow for everybody.
        batches = [r for r in (128, 1024, 4096, 16_384) if r * case.arms <= 2**21]
        if effort.quick:
            batches = [CHECKED]
        for library in libraries:
            limit = limit_of(library)
            for name, run in peers_of(library, case, effort.quick).items():
                check_mean(case, f"{library}, {name}", run)
                contender = Contender(f"{library}\t{name}", run, limit=limit)
                tried = (THREADS,) if library == "JAX" else threads
                contender.tune(pool, batches, tried, effort.trial)
                contenders.append(contender)
        spent = np.array(
            [[c.time(pool, effort.slice) for c in contenders] for _ in range(effort.rounds)]
        )
    ratios = spent / spent[:, :1]
    rows = []
    for contender, times, ratio in zip(contenders, spent.T, ratios.T, strict=True):
        low, middle, high = np.quantile(ratio, [0.25, 0.5, 0.75])
        library, _, variant = contender.name.partition("\t")
        rows.append(
            [
                f"({case.arms}, {case.group})",
                library,
                variant,
                float(np.median(times)) / case.group * 1e9,
                float(middle),
                f"[{low:.2f}, {high:.2f}]",
                contender.batch,
                contender.threads,
            ]
        )
    return rows


def best_rows(rows: list[list[Any]]) -> list[list[Any]]:
    """For each size and library the fastest row."""
    best: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        at = (row[0], row[1])
        if at not in best or row[4] < best[at][4]:
            best[at] = row
    return list(best.values())


TEXTBOOK = ("thresholds, bisection", "thresholds, guide table", "alias", "multinomial")
"""NumPy's samplers and K-dimensional counts as libraries offer them; the others are tricks."""


def summary(rows: list[list[Any]]) -> str:
    """The engine against the fastest of each, as markdown; drawing alone the other way round."""
    lines = []
    for size in dict.fromkeys(row[0] for row in rows):
        of = [row for row in rows if row[0] == size]
        line = [size, f"{of[0][3]:.2f}"]
        for picked in (
            [row for row in of if row[1:3] == ["NumPy", TEXTBOOK[0]]],
            [row for row in of if row[1] == "NumPy" and row[2] in TEXTBOOK],
            *([row for row in of if row[1] == name] for name in ("NumPy", "torch", "JAX")),
        ):
            line.append(f"{min(row[4] for row in picked):.1f}x" if picked else "not installed")
        line.append(f"{1 / of[1][4]:.1f}x")
        lines.append(line)
    names = ["NumPy, bisection", "best textbook NumPy", "best NumPy", "best torch", "best JAX"]
    header = ["(K, G)", "engine, ns per output", *names, "engine over drawing alone"]
    return str(tabulate(lines, header, tablefmt="github", disable_numparse=True))


HEADER = ["(K, G)", "program", "variant", "ns per output", "ratio", "quartiles", "batch", "threads"]


def table(rows: list[list[Any]]) -> str:
    """Rows as markdown."""
    shown = [[*row[:3], f"{row[3]:.2f}", f"{row[4]:.2f}", *row[5:]] for row in rows]
    return str(tabulate(shown, HEADER, tablefmt="github", disable_numparse=True))


def machine() -> str:
    """Where this ran, in words."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    parts = [f"{THREADS} threads on {names[0] if names else platform.processor()}"]
    parts.append(f"Python {platform.python_version()}")
    for package in ("ustat_pg", "numpy", "numba", "torch", "jax"):
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            parts.append(f"{package} not installed")
    return ", ".join(parts)


def main(arguments: list[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=Effort.rounds)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    asked = parser.parse_args(arguments)
    effort = Effort(2, 0.005, 0.002, quick=True) if asked.quick else Effort(asked.rounds)
    libraries = tuple(name for name in ("NumPy", "torch", "JAX") if installed(name))
    rows = []
    for arms, group in ((5, 4),) if asked.quick else SIZES:
        rows += measure(Case(arms, group), libraries, effort)
    print("# The MSE kernel against its peers\n")
    print(f"`python -m benchmarks.mse_kernel`; {machine()}.\n")
    print(
        "Ratios are times over the engine's, medians of paired rounds; below 1 is faster than the "
        "engine.\nEvery peer's mean agreed with the predicted MSE before it was timed.\n"
    )
    for name in ("torch", "JAX"):
        if name not in libraries:
            print(f"{name}: not installed\n")
    print("## How many times the engine's time\n")
    print(summary(rows))
    print("\n## The fastest of each\n")
    print(table(best_rows(rows)))
    print("\n## All\n")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
