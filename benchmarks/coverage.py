"""How often 95% intervals of pools and of the meter have the exact value, which problems know.

    python -m benchmarks.coverage                  2,000 repetitions of each case
    python -m benchmarks.coverage --repetitions 200 --cases rare

Prompts, rollouts and steps are drawn anew for each repetition from its own seed, so that a case is the same
alone as among all. An end that is not known covers; how often both ends are finite stands beside, and for
means and shares the median width of these over that of Student's law with the same standard error.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.stats import t as student_law
from tabulate import tabulate

from ustat_pg.engines import enumerate_turns
from ustat_pg.llm.pool.estimates import (
    constants,
    curves,
    direction,
    frac_reward_zero_std,
    noise_to_signal,
    oracle_ratio,
    summary,
)
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.moments.episodes import Episodes
from ustat_pg.moments.record import Moments
from ustat_pg.noise import EpisodePool, turns_of_pool
from ustat_pg.noise.estimate import estimate_noise, step_sums
from ustat_pg.predictions import critical_budget, gradient_mse, mse_constants
from ustat_pg.problems import SoftmaxBandit, named_problem
from ustat_pg.validation import Array, changed

Interval = tuple[float, float]
Intervals = dict[str, tuple[Interval, float]]
"""By what each is of, with the half width of Student's interval; NaN where that is not at hand."""


@cache
def problem(name: str) -> SoftmaxBandit:
    """A problem of the library, or one of made-up prompts with six outputs, one of them right.

    ``rare``: 200 prompts, pass rates of 3% in the mean, most far below; ``usual``: 200, of 5 to 95%;
    ``mild``: 300, lengths of their scores of log-deviation 0.3; ``heavy``: of 0.8; ``dominated``: one prompt
    in ten has scores four times as long; ``unseen``: one in forty has scores six times as long; ``spread-X``:
    X, whose gradients differ so much that c1 is about 20 times the signal; ``solved-Q``: 300 prompts which
    succeed in Q% of their outputs; ``even``: in half; ``long``: one in thirty has scores five times as long;
    ``bimodal``: nine in ten succeed in 1 or 99%.
    """
    rng = np.random.default_rng(7)
    kinds: dict[str, Callable[[], tuple[Array, Array, Array | None]]] = {
        "rare": lambda: (np.clip(rng.beta(0.3, 9, 200), 1e-4, 0.9), np.ones(200), None),
        "usual": lambda: (rng.uniform(0.05, 0.95, 200), np.ones(200), None),
        "mild": lambda: (rng.uniform(0.05, 0.95, 300), np.exp(0.3 * rng.normal(size=300)), None),
        "heavy": lambda: (rng.uniform(0.1, 0.9, 300), np.exp(0.8 * rng.normal(size=300)), None),
        "dominated": lambda: (rng.uniform(0.1, 0.9, 40), np.r_[4.0, np.ones(39)], np.array(0.1)),
        "unseen": lambda: (rng.uniform(0.1, 0.9, 40), np.r_[6.0, np.ones(39)], None),
        "long": lambda: (rng.uniform(0.1, 0.9, 30), np.r_[5.0, np.ones(29)], None),
        "even": lambda: (np.full(300, 0.5), np.ones(300), None),
        "bimodal": lambda: (np.repeat([0.01, 0.99, 0.5], [135, 135, 30]), np.ones(300), None),
    }
    if (number := name.removeprefix("spread-")) != name:
        kinds[name] = lambda: (rng.uniform(0.1, 0.9, int(number)), np.ones(int(number)), None)
    if (percent := name.removeprefix("solved-")) != name:
        kinds[name] = lambda: (np.full(300, int(percent) / 100), np.ones(300), None)
    if name not in kinds:
        return named_problem(name).problem
    rates, lengths, first = kinds[name]()
    count, arms = len(rates), 6
    features = rng.normal(size=(count, arms, 8)) * lengths[:, None, None]
    features[:, 0, 0] += lengths
    if number != name:
        features[:, 0] += 1.5 * rng.normal(size=(count, 8))
    wrong = (1 - rates)[:, None] * rng.dirichlet(np.full(arms - 1, 2.0), size=count)
    probs = np.full(count, 1 / count)
    if first is not None:
        probs = np.r_[first, np.full(count - 1, (1 - first) / (count - 1))]
    rewards = np.zeros((count, arms, 1))
    rewards[:, 0] = 1.0
    logits = np.log(np.column_stack([rates, wrong]))
    return SoftmaxBandit.linear(
        probs, features, np.zeros(8), rewards, np.ones_like(rewards), offset=logits
    )


def drawn(name: str, prompts: int, rollouts: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Rewards (P, N) and scores (P, N, d) of prompts and rollouts drawn from a problem."""
    made = problem(name).sample(rng, rollouts, prompts)
    return made.rewards, made.scores


@cache
def one(name: str, prompt: int) -> SoftmaxBandit:
    """A problem of one of its prompts."""
    return problem(name).restrict([prompt])


GRADED: dict[str, tuple[Callable[[np.random.Generator, tuple[int, ...]], Array], float]] = {
    "Student": (lambda rng, shape: 0.5 * rng.standard_t(3, shape), 0.75),
    "lognormal": (
        lambda rng, shape: 0.3 * (np.exp(rng.normal(size=shape)) - math.exp(0.5)),
        0.09 * math.e * (math.e - 1),
    ),
}
"""Laws of mean 0 that are added to rewards, Student's with 3 degrees of freedom, and their variances."""


@dataclass(frozen=True)
class Pool:
    """A pool of prompts of a problem; ``usual`` cases must have finite intervals as narrow as Student's.

    ``steps``: groups of each prompt; ``graded``: what is added to each reward, of :data:`GRADED`.
    """

    name: str
    prompts: int
    rollouts: int
    usual: bool = False
    steps: int = 1
    graded: str = ""

    def __str__(self) -> str:
        several = f" in {self.steps} steps" if self.steps > 1 else ""
        beside = f" and {self.graded} rewards" if self.graded else ""
        return f"{self.name}{beside}, {self.prompts} of {self.rollouts}{several}"

    def _moments(self) -> Moments:
        moments = problem(self.name).moments()
        if not self.graded:
            return moments
        more = GRADED[self.graded][1]
        return changed(
            moments,
            reward_variance=moments.reward_variance + more,
            norm_squared_advantage=moments.norm_squared_advantage + more * moments.fisher_trace,
        )

    def truths(self) -> dict[str, float]:
        """The exact value of everything whose interval is counted."""
        made, moments = problem(self.name), self._moments()
        known = mse_constants(moments)
        at = {name: gradient_mse(moments, name, 4) for name in self._baselines()}
        values = {"c1": known.c1, "c2": known.c2, "c3": known.c3}
        values["‖g‖²"] = moments.mean_gradient_sq
        values["E‖g(X)‖²"] = float(moments.context_probs @ moments.gradient_sq)
        values["G*"] = 1 + math.sqrt(known.c3 / known.c1)
        values["K_crit"] = critical_budget(known, moments.mean_gradient_sq)
        values["MSE"] = at["grpo"].mse - known.c1
        oracle = gradient_mse(moments, "oracle", 4).mse - known.c1
        values["grpo/oracle"] = values["MSE"] / oracle
        for name, each in at.items():
            values[f"{name} noise"] = float(each.noise_to_signal or math.nan)
        for name in [*at][1:]:
            values[f"{name}/grpo"] = values[f"{name} noise"] / values["grpo noise"]
            values[f"{name} cosine"] = at[name].cosine or math.nan
        for size in (2, 4, 8) if not self.graded else ():
            share = float(made.context_probs @ made.frac_reward_zero_std(size))
            values[f"silent, G = {size}"] = share
        return values

    def _baselines(self) -> list[str]:
        binary = np.isin(problem(self.name).reward_values, (0, 1)).all() and not self.graded
        return ["grpo", "std", "maxrl"] if binary else ["grpo", "oracle"]

    def intervals(self, rng: np.random.Generator) -> Intervals:
        """All intervals of one pool."""
        rewards, scores = drawn(self.name, self.prompts, self.rollouts * self.steps, rng)
        if self.graded:
            rewards = rewards + GRADED[self.graded][0](rng, rewards.shape)
        shape = self.prompts * self.steps, self.rollouts
        pool = ScoredPool.from_scores(rewards.reshape(shape), scores.reshape(*shape, -1))
        pool = replace(pool, clusters=np.repeat(np.arange(self.prompts), self.steps))
        width = float(student_law.isf(0.025, self.prompts - 1))
        names = {"signal": "‖g‖²", "g_star": "G*", "k_crit": "K_crit"}
        frame = constants(pool).to_frame()
        found: Intervals = {
            names.get(row["name"], row["name"]): ((row["low"], row["high"]), width * row["se"])
            for row in frame.to_dict("records")
        }
        # Student's law is of means.
        found |= {name: (found[name][0], math.nan) for name in ("G*", "K_crit")}
        row = summary(pool).set_index("name").loc["gradient_sq"]
        found["E‖g(X)‖²"] = (row.low, row.high), width * row.se
        (row,) = curves(pool, [4], ["grpo"]).itertuples(index=False)
        found["MSE"] = (row.low, row.high), width * row.se
        (row,) = oracle_ratio(pool, [4]).itertuples(index=False)
        found["grpo/oracle"] = (row.low, row.high), math.nan
        for row in noise_to_signal(pool, [4], self._baselines()).itertuples(index=False):
            found[f"{row.estimator} noise"] = (row.low, row.high), math.nan
            found[f"{row.estimator}/grpo"] = (row.relative_low, row.relative_high), math.nan
        for name in self._baselines()[1:]:
            way = direction(pool, name, 4)
            found[f"{name} cosine"] = (way.low, way.high), math.nan
        if self.graded:
            return found
        for row in frac_reward_zero_std(pool, [2, 4, 8]).itertuples(index=False):
            found[f"silent, G = {row.group_size}"] = (row.low, row.high), width * row.se
        return found


@dataclass(frozen=True)
class Meter:
    """A window of steps of B prompts in groups of G by leave-one-out, four completions a micro-batch.

    ``tails``: of completions of Student's law with these degrees of freedom in place of a problem's;
    ``epochs``: prompts are those of shuffled epochs. ``dealt``: completions of a micro-batch, each group
    dealt among four as the monitor does it, and φ/τ measured, which is known else.
    """

    name: str
    steps: int
    prompts: int
    group_size: int
    usual: bool = False
    tails: float | None = None
    epochs: bool = False
    dealt: int = 0

    def __str__(self) -> str:
        how = " in epochs" if self.epochs else f", dealt by {self.dealt}" if self.dealt else ""
        return f"{self.name}, {self.steps} steps of {self.prompts} x {self.group_size}{how}"

    def truths(self) -> dict[str, float]:
        """The exact value of everything whose interval is counted."""
        size = self.group_size
        if self.tails is not None:
            # The variances of single completions and of pairs of a prompt.
            alone, pair = 20 * (0.49 + 2.25), 20 * 0.49
            return {"signal": 1.0, "K_crit": alone + (size - 1) * pair}
        moments = problem(self.name).moments()
        known, signal = mse_constants(moments), moments.mean_gradient_sq
        count = len(moments.context_probs)
        left = (count - self.prompts) / (count - 1) if self.epochs else 1.0
        noise = left * size * known.c1 + known.c2 + known.c3 / (size - 1)
        values = {"signal": signal, "K_crit": noise / signal}
        values |= {"c1": known.c1, "c2": known.c2, "c3": known.c3}
        return values | {"G*": 1 + math.sqrt(known.c3 / known.c1)}

    def intervals(self, rng: np.random.Generator) -> Intervals:
        """All intervals of one window."""
        ratio = None
        if self.tails is None:
            moments = problem(self.name).moments()
            phi = moments.context_probs @ (moments.reward_variance * moments.fisher_trace)
            ratio = float(phi / (moments.context_probs @ moments.norm_squared_advantage))
        order: list[int] = []
        sums = np.array([self._step(rng, order) for _ in range(self.steps)])
        found = estimate_noise(
            sums,
            leave_one_out=ratio is not None,
            phi_over_tau=None if self.dealt else ratio or 1.0,
            population=problem(self.name).contexts if self.epochs else None,
        )
        width = float(student_law.isf(0.025, self.steps - 1))
        names = {"signal": "signal", "k_crit": "K_crit", "g_star": "G*"}
        names |= {name: name for name in ("c1", "c2", "c3")}
        return {
            label: (
                getattr(found, name).interval,
                width * getattr(found, name).se if name[0] in "cs" else math.nan,
            )
            for name, label in names.items()
        }

    def _step(self, rng: np.random.Generator, order: list[int]) -> Array:
        shape = self.prompts, self.group_size
        if self.tails is None:
            if self.epochs:
                if len(order) < self.prompts:
                    order[:] = rng.permutation(problem(self.name).contexts).tolist()
                made = [one(self.name, order.pop()).sample(rng, shape[1]) for _ in range(shape[0])]
                rewards, scores = (
                    np.concatenate([getattr(each, part) for each in made])
                    for part in ("rewards", "scores")
                )
            else:
                rewards, scores = drawn(self.name, *shape, rng)
            apart = rewards - rewards.mean(axis=1, keepdims=True)
            each = (apart * (shape[1] / (shape[1] - 1)))[..., None] * scores
        else:
            size = rng.standard_t(self.tails, (*shape, 1)) * math.sqrt(1 - 2 / self.tails)
            each = 1.5 * size * rng.normal(size=(*shape, 20))
            each += 0.7 * rng.normal(size=(shape[0], 1, 20))
            each[..., 0] += 1.0
        order, each = (
            np.arange(shape[0] * shape[1]).reshape(-1, 4),
            each.reshape(-1, each.shape[-1]),
        )
        if not self.dealt:
            rows = each[order].sum(axis=1)
            return step_sums(rows @ rows.T, list(order // shape[1]))
        order = order.reshape(-1, self.dealt, 4).swapaxes(1, 2).reshape(-1, self.dealt)
        rows, given = each[order].sum(axis=1), (apart * (shape[1] / (shape[1] - 1))).ravel()
        groups = list(order // shape[1])
        return step_sums(rows @ rows.T, groups, list(given[order]), leave_one_out=True)


@cache
def episodes(name: str) -> Episodes:
    """Episodes of 200 prompts, of two turns of two actions each; a wrong one ends it, two right ones pay 1.

    ``usual``: success has a chance of about a third, and one right action pays .1; ``rare``: of 1%.
    """
    rng = np.random.default_rng(11)
    low, high = {"usual": (0.4, 0.8), "rare": (0.02, 0.2)}[name]
    right = rng.uniform(low, high, (200, 2))
    features = rng.normal(size=(200, 2, 2, 8))
    features[:, :, 0, 0] += 2.0
    apart = features[:, :, 0] - features[:, :, 1]
    # The scores of the right and of the wrong action.
    won, lost = (1 - right)[..., None] * apart, -right[..., None] * apart
    first, second = right.T
    scores = np.zeros((200, 3, 2, 8))
    scores[:, 0], scores[:, 1, 0], scores[:, 1, 1], scores[:, 2, 0] = (
        won,
        won[:, 0],
        lost[:, 1],
        lost[:, 0],
    )
    rewards = np.zeros((200, 3, 2))
    rewards[:, 0, 1], rewards[:, :2, 0] = 1.0, 0.1 * (name == "usual")
    reached = np.array([[True, True], [True, True], [True, False]])
    return Episodes(
        np.stack([first * second, first * (1 - second), 1 - first], axis=1).ravel() / 200,
        np.repeat(np.arange(200), 3),
        rewards.reshape(-1, 2),
        np.tile(reached, (200, 1)),
        np.where(np.tile(reached, (200, 1)), [0, 1], -1),
        scores.reshape(-1, 2, 8),
    )


@dataclass(frozen=True)
class Turns:
    """A pool of logged episodes; of one prompt, always the same, where there is but one."""

    name: str
    prompts: int
    rollouts: int
    group_size: int
    usual: bool = False

    def __str__(self) -> str:
        return f"{self.name} episodes, {self.prompts} of {self.rollouts} by {self.group_size}"

    def _listed(self) -> list[Episodes]:
        own = [part for _, part in episodes(self.name).prompts()]
        return own[:1] if self.prompts == 1 else own

    def truths(self) -> dict[str, float]:
        """The exact value of everything whose interval is counted."""
        values: dict[str, float] = {}
        own = self._listed()
        for scheme in _SCHEMES:
            found = [enumerate_turns(part, scheme, self.group_size) for part in own]
            mean = np.mean([each.mean for each in found], axis=0)
            target = np.mean([part.gradient() for part in own], axis=0)
            noise = float(np.mean([each.mse - each.squared_bias for each in found]))
            second = noise + float(np.mean([each.mean @ each.mean for each in found]))
            signal, along, wanted = mean @ mean, float(mean @ target), float(target @ target)
            values |= {
                f"{scheme}: noise": noise,
                f"{scheme}: signal": float(signal),
                f"{scheme}: along": along,
                f"{scheme}: mse": second - 2 * along + wanted,
                f"{scheme}: noise_to_signal": (second - signal) / signal,
                f"{scheme}: multiple": along / wanted,
                f"{scheme}: cosine": along / math.sqrt(signal * wanted),
            }
            first = values[f"{_SCHEMES[0]}: noise_to_signal"]
            values[f"{scheme}: over_first"] = values[f"{scheme}: noise_to_signal"] / first
        return values

    def intervals(self, rng: np.random.Generator) -> Intervals:
        """All intervals of one pool."""
        listed = self._listed()
        rewards, scores, reached = [], [], []
        for prompt in rng.choice(len(listed), self.prompts):
            own = listed[prompt]
            rows = rng.choice(len(own.probs), self.rollouts, p=own.probs / own.probs.sum())
            rewards.append(own.rewards[rows])
            reached.append(own.reached[rows])
            scores.append(own.scores[rows])
        pool = EpisodePool(
            np.concatenate(rewards),
            np.concatenate(reached),
            np.concatenate(scores),
            prompts=np.repeat(np.arange(self.prompts), self.rollouts),
        )
        parts = self.prompts if self.prompts > 1 else self.rollouts
        width = float(student_law.isf(0.025, parts - 1))
        return {
            f"{row.scheme}: {name}": (
                each.interval,
                width * each.se if name in ("noise", "signal", "along", "mse") else math.nan,
            )
            for row in turns_of_pool(pool, self.group_size, _SCHEMES).rows
            for name, each in row.estimates.items()
            if name != "gradient_sq"
        }


_SCHEMES = "episode", "to-go", "summed"

Case = Pool | Meter | Turns
CASES: tuple[Case, ...] = (
    Pool("usual", 50, 8, usual=True),
    Pool("usual", 200, 8, usual=True),
    Pool("mild", 60, 8, usual=True),
    Pool("iris", 150, 8, usual=True),
    Pool("usual", 20, 8),
    Pool("usual", 30, 8, steps=4),
    Pool("iris", 40, 8),
    Pool("uneven", 30, 8),
    Pool("uneven", 150, 8),
    Pool("digits-3", 30, 8),
    Pool("rare", 12, 8),
    Pool("rare", 20, 8),
    Pool("rare", 60, 16),
    Pool("heavy", 50, 8),
    Pool("heavy", 200, 8),
    Pool("dominated", 40, 8),
    Pool("unseen", 40, 8),
    Pool("solved-98", 60, 8),
    Pool("solved-99", 100, 8),
    Pool("solved-95", 20, 8),
    Pool("even", 5, 8),
    Pool("even", 5, 16),
    Pool("even", 12, 8),
    Pool("long", 60, 8),
    Pool("bimodal", 60, 8),
    Pool("usual", 60, 8, graded="Student"),
    Pool("usual", 200, 8, graded="Student"),
    Pool("usual", 60, 8, graded="lognormal"),
    Pool("usual", 200, 8, graded="lognormal"),
    Meter("usual", 50, 4, 8, usual=True),
    Meter("usual", 20, 16, 8, usual=True),
    Meter("iris", 50, 8, 8, usual=True),
    Meter("usual", 12, 4, 8),
    Meter("uneven", 12, 4, 8),
    Meter("uneven", 50, 4, 8),
    Meter("rare", 12, 4, 8),
    Meter("rare", 50, 4, 8),
    Meter("heavy", 50, 4, 8),
    *(Meter(f"spread-{count}", 50, 16, 8, epochs=True) for count in (60, 100, 200, 1000)),
    *(Meter("usual", 50, 16, 8, dealt=each) for each in (2, 8, 16)),
    Meter("usual", 20, 16, 8, dealt=8),
    Meter("rare", 50, 16, 8, dealt=8),
    Meter("heavy", 50, 16, 8, dealt=8),
    Meter("t of 3 degrees", 7, 8, 4, tails=3.0),
    Meter("t of 3 degrees", 50, 8, 4, tails=3.0),
    Meter("t of 2.5 degrees", 20, 8, 4, tails=2.5),
    Meter("t of 2.5 degrees", 50, 8, 4, tails=2.5),
    Turns("usual", 30, 8, 4, usual=True),
    Turns("rare", 40, 8, 4),
    Turns("rare", 150, 8, 2),
    Turns("usual", 1, 40, 4),
    Turns("usual", 1, 16, 2),
)


def counted(case: Case, repetitions: int) -> Iterator[tuple[str, list[str]]]:
    """A row of the table for each quantity of a case."""
    found = [case.intervals(np.random.default_rng([7, seed])) for seed in range(repetitions)]
    for name, true in case.truths().items():
        ends = np.array([each[name][0] for each in found])
        half = np.array([each[name][1] for each in found])
        finite = np.isfinite(ends).all(axis=1)
        # A ratio that is the same in every pool has rounding for a width.
        far = 1e-9 * abs(true)
        below, above = (ends[:, 0] > true + far).mean(), (ends[:, 1] < true - far).mean()
        width = np.median((ends[:, 1] - ends[:, 0])[finite]) if finite.any() else math.nan
        usual = 2 * np.median(half[finite]) if finite.any() else math.nan
        kept = below + above <= 0.07 and max(below, above) <= 0.04
        yield (
            name,
            [
                f"{1 - below - above:.1%}" + ("" if kept else " *"),
                f"{below:.1%}",
                f"{above:.1%}",
                f"{finite.mean():.0%}",
                f"{width / usual:.2f}" if usual > 0 else "",
            ],
        )


def main(given: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--cases", nargs="*", default=[""], help="words that cases begin with")
    arguments = parser.parse_args(given)
    warnings.simplefilter("ignore")
    header = ["", "95% interval covers", "true value below", "above", "finite", "width"]
    for case in CASES:
        if not str(case).startswith(tuple(arguments.cases)):
            continue
        kind = type(case).__name__.lower()
        rows = [[name, *row] for name, row in counted(case, arguments.repetitions)]
        print(f"\n**{kind}: {case}**{' (usual)' if case.usual else ''}\n")
        print(tabulate(rows, header, tablefmt="github", disable_numparse=True), flush=True)


if __name__ == "__main__":
    main()
