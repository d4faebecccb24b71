"""The problems that claims are checked on: made up, generated from the seed, real, or the user's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ustat_pg.engines import Estimator, Quantity, SquaredError
from ustat_pg.problems import (
    SoftmaxBandit,
    digits_problem,
    example_problem,
    problem_from_mapping,
    random_problem,
)
from ustat_pg.validation import InputError

from . import KINDS, ON_NETWORKS, STEMS, networks

if TYPE_CHECKING:
    from .language_models import Study

__all__ = ["Entry", "Suite", "mse_of", "spread", "two_valued"]

SHOWN = ("problem", "sums", "addition-trained")
"""Problems in place of the bandits that figures show."""

ORIGINS = ("made-up", "generated", "real", "user")


@dataclass(frozen=True)
class Entry:
    """A problem with a name and where it comes from: made-up, generated, real or user."""

    name: str
    origin: str
    problem: SoftmaxBandit

    def __post_init__(self) -> None:
        if self.origin not in ORIGINS:
            raise InputError(f"origin {self.origin!r} is unknown: choose of {', '.join(ORIGINS)}")


def two_valued(probs: Any, success: Any) -> SoftmaxBandit:
    """One prompt, tabular policy with these probabilities, reward 1 with the arm's success chance."""
    chance = np.asarray(success, dtype=float)
    law = np.stack([chance, 1 - chance], axis=-1)[None]
    values = np.broadcast_to([1.0, 0.0], law.shape)
    return SoftmaxBandit.tabular([1.0], np.log([probs]), values, law)


def mse_of(baseline: str, constant: float | None = None) -> Quantity:
    """The squared error of a baseline by name."""
    return SquaredError(Estimator(baseline, constant))


def spread(name: str, origin: str, probs: Any) -> Entry:
    """Equally likely prompts with sure rewards on different arms: their gradients differ much."""
    contexts, arms = np.shape(probs)
    values = np.zeros((contexts, arms, 1))
    values[np.arange(contexts), np.arange(contexts) % arms] = 1.0
    uniform = np.full(contexts, 1 / contexts)
    return Entry(
        name, origin, SoftmaxBandit.tabular(uniform, np.log(probs), values, np.ones_like(values))
    )


@dataclass(frozen=True)
class Suite:
    """What the claims run on.

    Arguments:
        size: smoke, quick or full: how many problems and group sizes.
        seed: of the generated problems.
        user: a problem of the user's own, which then stands alone.
        on: the kind of problem: bandit, or tokens or transformer, which then stand alone.
        dense: whether networks keep the scores of all their parameters.
        device: on which networks are trained.
        simulates: whether there is anything but enumeration, which has no training runs of networks.
        folder: where the pools of language models are kept; nowhere unless given.

    Raises:
        InputError: an unknown kind, or a user's problem and a kind at once.
    """

    size: str = "quick"
    seed: int = 0
    user: SoftmaxBandit | None = None
    on: str = "bandit"
    dense: bool = False
    device: str = "cpu"
    simulates: bool = True
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.on not in KINDS:
            raise InputError(
                f"kind of problem {self.on!r} is unknown: choose one of {', '.join(KINDS)}"
            )
        if self.user is not None and self.on != "bandit":
            raise InputError(f"a problem of one's own takes the place of the {self.on} problems")

    @cached_property
    def given(self) -> tuple[Entry, ...]:
        """Problems in place of the bandits: the user's own, or those of another kind."""
        if self.user is not None:
            return (Entry("problem", "user", self.user),)
        if self.on in ("bandit", "language-model"):
            return ()
        count = {"smoke": 1, "quick": 2, "full": 10}[self.size]
        own = networks.bandits(self.on, count, self.seed, dense=self.dense)
        return tuple(Entry(*each) for each in own)

    @property
    def trains(self) -> bool:
        """Whether networks can be trained."""
        return self.on in ("tokens", "transformer") and self.simulates and networks.has_torch()

    @property
    def skipped(self) -> tuple[str, ...]:
        """What is not asked of this kind of problem, and why."""
        if self.on == "bandit":
            return ()
        if self.on == "language-model":
            return (
                "intervals on language models are those of nearly normal means: no bound on a "
                "network's scores is known",
                "nothing is enumerated on language models, and training is not judged: see "
                "ustat-pg llm sweep",
            )
        rest = ", ".join(stem for stem in STEMS if stem not in ON_NETWORKS)
        lines = [f"skipped on {self.on}: {rest}: they need an optimum within reach"]
        if self.trains:
            lines += [
                f"suboptimality on {self.on} is one training step, enumerated: Lemma 6's bound assumes "
                "a PL constant, which no network has",
                f"group_size on {self.on} is the noise at fixed parameters, and one prompt a step "
                "against several in training",
            ]
        elif self.simulates:
            lines.append(
                f"skipped on {self.on}: training runs (suboptimality, and the half of group_size that "
                "trains): they need torch, pip install 'ustat_pg[torch]'"
            )
        else:
            lines.append(f"skipped on {self.on}: training runs, which nothing enumerates")
        return tuple(lines)

    def study(self, member: str) -> Study:
        """What a pool of a language model's rollouts predicts."""
        from .language_models import study

        return study(member, self.size, self.seed, self.folder)

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Small ones are the sharpest: the second-order part is largest there."""
        return {"smoke": (2,), "quick": (2, 3, 8), "full": (2, 3, 4, 8, 16, 32)}[self.size]

    @property
    def curve_sizes(self) -> tuple[int, ...]:
        """The group sizes that figures show; few on a problem of the user's own, whose size is open."""
        return (2, 4, 8, 16) if self.given else (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

    @property
    def generated(self) -> int:
        """How many problems of each kind are generated."""
        return {"smoke": 1, "quick": 2, "full": 10}[self.size]

    # Five problems for Corollary 5 (optimality), and two with several prompts.
    @cached_property
    def skewed(self) -> Entry:
        """Outside Assumption 2: a strong policy, the likely arm rewarded (V = .8, b* = .128)."""
        return Entry("skewed", "made-up", two_valued([0.8, 0.1, 0.05, 0.05], [1, 0, 0, 0]))

    @cached_property
    def balanced(self) -> Entry:
        """Inside Assumption 2 with unequal norms (V = b* = .3)."""
        return Entry("balanced", "made-up", two_valued([0.4, 0.3, 0.2, 0.1], [0, 1, 0, 0]))

    @cached_property
    def coin(self) -> Entry:
        """Two equal arms, noisy rewards: the explicit bound is twice the exact second-order term."""
        return Entry("coin", "made-up", two_valued([0.5, 0.5], [0.8, 0.2]))

    @cached_property
    def several(self) -> Entry:
        """Two prompts of unequal probability, graded and noisy rewards."""
        return Entry("several", "made-up", problem_from_mapping(example_problem()))

    @cached_property
    def features(self) -> Entry:
        """Four equally likely prompts, features of the arms, negative rewards."""
        rng = np.random.default_rng(20260301)
        return Entry(
            "features",
            "made-up",
            SoftmaxBandit.linear(
                np.full(4, 0.25),
                rng.normal(size=(4, 3, 5)),
                rng.normal(size=5) / 2,
                rng.normal(size=(4, 3, 1)).round(2),
                np.ones((4, 3, 1)),
            ),
        )

    @cached_property
    def digits(self) -> Entry:
        """Real data: 1,797 prompts, 10 arms, d = 650."""
        return Entry("digits", "real", digits_problem())

    @property
    def shown(self) -> tuple[tuple[Entry, int], ...]:
        """The problems that figures show, with their number of prompts in a minibatch."""
        if self.given:
            return tuple((entry, 1) for entry in self.given if entry.name in SHOWN)
        return ((self.balanced, 1), (self.digits, 8))

    def digits_rows(self, count: int) -> Entry:
        """A few rows of the digits, equally likely, small enough to enumerate minibatches."""
        rows = np.linspace(0, self.digits.problem.contexts - 1, count).astype(int)
        return Entry(f"digits-{count}", "real", self.digits.problem.restrict(rows.tolist(), True))

    def random(self, kind: str, *, contexts: int = 3) -> Iterator[Entry]:
        """Generated problems of a kind."""
        for number in range(self.generated):
            seed = 1000 * self.seed + number
            yield Entry(
                f"{kind}#{seed}", "generated", random_problem(seed, kind, contexts=contexts)
            )

    def coins(self) -> Iterator[Entry]:
        """Generated coins: the explicit bound less than three times the exact second-order term."""
        for number in range(self.generated):
            chance = float(np.random.default_rng([self.seed, number, 1]).uniform(0.82, 0.95))
            name = f"coin#{self.seed}.{number}"
            yield Entry(name, "generated", two_valued([0.5, 0.5], [chance, 1 - chance]))

    def strong(self) -> Iterator[Entry]:
        """Generated policies that mostly take the rewarded arm: far outside Assumption 2."""
        for number in range(self.generated):
            rng = np.random.default_rng([self.seed, number, 2])
            likely = rng.uniform(0.6, 0.85)
            probs = [likely, *((1 - likely) * rng.dirichlet([2.0, 2.0, 2.0]))]
            success = [rng.uniform(0.9, 1.0), *rng.uniform(0.0, 0.1, 3)]
            yield Entry(f"strong#{self.seed}.{number}", "generated", two_valued(probs, success))

    def alike(self) -> Iterator[Entry]:
        """Generated uniform policies, one arm rewarded: Assumption 2 holds."""
        for number in range(self.generated):
            rng = np.random.default_rng([self.seed, number, 3])
            arms = int(rng.integers(3, 6))
            success = [rng.uniform(0.7, 1.0), *[0.0] * (arms - 1)]
            name = f"alike#{self.seed}.{number}"
            yield Entry(name, "generated", two_valued([1 / arms] * arms, success))

    def spreads(self) -> Iterator[Entry]:
        """Generated prompts, equally likely, whose gradients differ much."""
        for number in range(self.generated):
            rng = np.random.default_rng([self.seed, number, 4])
            probs = rng.dirichlet([12.0, 12.0, 12.0], size=3)
            yield spread(f"spread#{self.seed}.{number}", "generated", probs)

    def prompts(self, entry: Entry, count: int) -> list[Entry]:
        """Single prompts of a problem, spread over its range of pass rates."""
        problem = entry.problem
        order = np.argsort(problem.moments().value, kind="stable")
        places = np.unique(np.linspace(0, len(order) - 1, count + 2).round().astype(int)[1:-1])
        return [
            Entry(
                entry.name if len(order) == 1 else f"{entry.name}[{x}]",
                entry.origin,
                problem if len(order) == 1 else problem.restrict([int(x)]),
            )
            for x in order[places]
        ]

    @staticmethod
    def _extremes(entry: Entry) -> Iterator[Entry]:
        """The prompts with the lowest and the highest mean reward, of those neither sure nor hopeless:
        events of less than 1 in 10, and answers that are hardly ever another, take more groups than any
        size has.
        """
        value = entry.problem.moments().value
        likeliest = entry.problem.policy.probs.max(axis=1)
        open_ones = np.flatnonzero((value > 0.1) & (value < 0.9) & (likeliest < 0.9))
        if len(open_ones):
            ends = (open_ones[value[open_ones].argmin()], open_ones[value[open_ones].argmax()])
            for x in dict.fromkeys(map(int, ends)):
                yield Entry(f"{entry.name}[{x}]", entry.origin, entry.problem.restrict([x]))

    @cached_property
    def single_prompts(self) -> list[Entry]:
        """Problems of one prompt, for the results that condition on it."""
        if self.user is not None:
            return self.prompts(self.given[0], 3)
        if self.given:
            return [prompt for entry in self.given for prompt in self._extremes(entry)]
        few = 1 if self.size == "smoke" else 2
        entries = [self.skewed, self.balanced, self.coin]
        for entry in (self.several, self.features):
            entries += self.prompts(entry, few)
        for kind in ("plain", "negative-rewards", "linear", "shared-linear"):
            for entry in self.random(kind):
                entries += self.prompts(entry, 1)
        return [*entries, *self.coins(), *self.prompts(self.digits, few)]
