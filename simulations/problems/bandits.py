"""Softmax bandits: five small ones, two with several prompts, real data, and generated kinds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from ustat_pg.engines import Estimator, Quantity, SquaredError
from ustat_pg.problems import (
    SoftmaxBandit,
    digits_problem,
    labelled_problem,
    named_problem,
    random_problem,
)

from .entry import Entry, streams

BanditEntry = Entry[SoftmaxBandit]

T = TypeVar("T")


def shipped(name: str) -> BanditEntry:
    """A problem that ships with the library."""
    known = named_problem(name)
    return Entry(name, known.origin, known.problem)


def mse_of(estimator: str, constant: float | None = None) -> Quantity:
    return SquaredError(Estimator(estimator, constant))


def word(estimator: Estimator) -> str:
    value = estimator.constant
    return estimator.name if value is None else f"{estimator.name} {value:.4g}"


def spread(name: str, origin: str, probs: Any) -> BanditEntry:
    """Equally likely prompts with deterministic rewards on different arms; their gradients differ a lot."""
    contexts, arms = np.shape(probs)
    rewards = np.eye(arms)[np.arange(contexts) % arms]
    return Entry(name, origin, SoftmaxBandit.from_probs(probs, rewards))


def graded(context_probs: np.ndarray, rates: np.ndarray, rng: np.random.Generator) -> SoftmaxBandit:
    """Prompts of given pass rates, with three arms, the first rewarded; they share the arms' features."""
    contexts = len(rates)
    rest = rng.dirichlet([2.0, 2.0], size=contexts)
    probs = np.column_stack([rates, (1 - rates)[:, None] * rest])
    rewards = np.tile([1.0, 0.0, 0.0], (contexts, 1))[..., None]
    features = rng.normal(size=(contexts, 3, 3))
    return SoftmaxBandit.linear(
        context_probs, features, np.zeros(3), rewards, np.ones_like(rewards), np.log(probs)
    )


def rare(probs: Any, rewards: Any, *others: np.ndarray) -> SoftmaxBandit:
    """One prompt of three arms; the first and second pull in nearly opposite directions."""
    features = np.column_stack([[1.0, -1.0, 0.0], *others])[None]
    values, theta = np.reshape(rewards, (1, 3, 1)), np.zeros(1 + len(others))
    sure = np.ones_like(values, dtype=float)
    return SoftmaxBandit.linear([1.0], features, theta, values, sure, np.log([probs]))


def opposed(
    pull: float = 1.5, lean: float = 0.1, agree: float = 0.5, off: float = 0.3, turns: Any = 0.0
) -> SoftmaxBandit:
    """Two prompts of four arms, two along each parameter. They pull the first parameter hard and in opposite
    directions, up to ``lean``, and the second one alike, up to the share ``off``.

    Arguments:
        turns: added to the features, (2, 4, 2).
    """
    features = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    earns = [(side * pull + lean, agree * (1 + side * off)) for side in (1, -1)]
    rewards = np.array([[hard, -hard, alike, -alike] for hard, alike in earns])[..., None]
    return SoftmaxBandit.linear(
        [0.5, 0.5],
        features + turns * np.ones((2, 1, 1)),
        np.zeros(2),
        rewards,
        np.ones_like(rewards),
    )


def prompts(entry: BanditEntry, count: int) -> list[BanditEntry]:
    """Single prompts of a problem, spread over its range of pass rates."""
    problem = entry.problem
    rates = (problem.policy.probs * problem.mean_rewards).sum(axis=-1)
    # Prompts with equal rates keep their order.
    order = np.argsort(rates.round(9), kind="stable")
    if len(order) == 1:
        return [entry]
    places = np.unique(np.linspace(0, len(order) - 1, count + 2).round().astype(int)[1:-1])
    return [entry.alone(int(x)) for x in order[places]]


@dataclass(frozen=True)
class Bandits:
    """The bandits of a suite.

    Arguments:
        size: smoke, quick, full or card: it sets the number of problems and group sizes.
        seed: seed of the generated problems.
    """

    size: str = "quick"
    seed: int = 0

    def sized(self, smoke: T, quick: T, full: T, card: T | None = None) -> T:
        """The value for the suite's size; the size card uses the value of full, unless its own is given."""
        values = {"smoke": smoke, "quick": quick, "full": full}
        return values.get(self.size, full if card is None else card)

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Small group sizes give the sharpest tests, because the second-order part is largest there."""
        full = (2, 3, 4, 8, 16, 32)
        return self.sized((2,), (2, 3, 8), full, (*full, 64, 128, 256))

    @property
    def generated(self) -> int:
        return self.sized(1, 2, 10)

    def wide(self, contexts: int = 1) -> Iterator[BanditEntry]:
        """Prompts of a thousand arms, at the size card; their groups cannot be enumerated."""
        for number in range(self.sized(0, 0, 0, 2)):
            seed = 1000 * self.seed + number
            problem = random_problem(seed, "plain", contexts=contexts, arms=1000)
            yield Entry(f"wide#{seed}", "generated", problem)

    # The problems of the figures of Corollary 5 (optimality), and some with several prompts.
    skewed = cached_property(lambda self: shipped("skewed"))
    """Outside Assumption 2: a strong policy with the likely arm rewarded (V = .8, b* = .128)."""

    balanced = cached_property(lambda self: shipped("balanced"))
    """Inside Assumption 2 with unequal norms (V = b* = .3)."""

    coin = cached_property(lambda self: shipped("coin"))
    """Two equal arms, noisy rewards: the explicit bound is twice the exact second-order term."""

    several = cached_property(lambda self: shipped("several"))
    """Two prompts of unequal probability, graded and noisy rewards."""

    features = cached_property(lambda self: shipped("features"))
    """Four equally likely prompts, features of the arms, negative rewards."""

    uneven = cached_property(lambda self: shipped("uneven"))
    """A frequent hard prompt, a medium one and an easy one, with rewards 0 and 1."""

    repeated = cached_property(lambda self: shipped("repeated"))
    """Three prompts, unequally likely; arms with equal rewards, and rewards that occur twice."""

    def repeats(self) -> Iterator[BanditEntry]:
        """Four arms, two of them with equal rewards; each reward's law lists one value twice."""
        for name, rng in self._streams("repeated", 8):
            probs = rng.dirichlet([6.0] * 3)
            values = rng.uniform(-0.5, 1.0, size=(3, 4, 3)).round(2)
            values[..., 1], values[:, 2] = values[..., 0], values[:, 1]
            law = rng.dirichlet([2.0, 2.0, 2.0], size=(3, 4))
            features = rng.normal(size=(3, 4, 3))
            problem = SoftmaxBandit.linear(probs, features, rng.normal(size=3) / 2, values, law)
            yield Entry(name, "generated", problem)

    def sure_coins(self) -> Iterator[BanditEntry]:
        """Prompts with two equal arms, one with a sure reward, which attain half the explicit bound."""
        yield replace(shipped("sure-coins"), name="sure coins")
        for name, rng in self._streams("sure coins", 9):
            chance, reward = rng.uniform(0.2, 0.4), float(rng.uniform(0.5, 2.0))
            values = reward * np.eye(2)[..., None]
            problem = SoftmaxBandit.tabular(
                [chance, 1 - chance], np.zeros((2, 2)), values, np.ones_like(values)
            )
            yield Entry(name, "generated", problem)

    def few(self) -> Iterator[BanditEntry]:
        """Prompts of five arms and one or two parameters, on which rewards do not increase with a score."""
        yield shipped("few")
        for name, rng in self._streams("few", 11):
            features, chances = rng.normal(size=(1, 5, 2)), rng.permutation(5)[None] / 4
            law = np.stack([chances, 1 - chances], axis=-1)
            values = np.broadcast_to([1.0, 0.0], law.shape)
            problem = SoftmaxBandit.linear([1.0], features, np.full(2, 0.3), values, law)
            yield Entry(name, "generated", problem)

    def opposed(self) -> Iterator[BanditEntry]:
        """Two prompts that disagree about one of two parameters; Adam's best group is thrice SGD's."""
        yield Entry("opposed", "made-up", opposed())
        for name, rng in self._streams("opposed", 12):
            pull, lean, agree, off = (rng.uniform(0.9, 1.1, size=4) * [1.5, 0.1, 0.5, 0.3]).tolist()
            problem = opposed(pull, lean, agree, off, 0.03 * rng.normal(size=(2, 4, 2)))
            yield Entry(name, "generated", problem)

    def worthless(self) -> Iterator[BanditEntry]:
        """Three arms with a reward of 1 or one below 0, so that the mean is 0 at both prompts."""
        yield shipped("worthless")
        for name, rng in self._streams("worthless", 10):
            probs, policy = rng.dirichlet([6.0, 6.0]), rng.dirichlet([4.0, 4.0, 4.0], size=2)
            values, law = np.ones((2, 3, 2)), rng.dirichlet([4.0, 4.0], size=(2, 3))
            won = (policy * law[..., 0]).sum(axis=1)
            values[..., 1] = (-won / (1 - won))[:, None]
            problem = SoftmaxBandit.tabular(probs, np.log(policy), values, law)
            yield Entry(name, "generated", problem)

    @cached_property
    def digits(self) -> BanditEntry:
        """Real data: 1,797 prompts, 10 arms, d = 650."""
        return Entry("digits", "real", digits_problem())

    def digits_rows(self, count: int) -> BanditEntry:
        """A few rows of the digits, equally likely, small enough to enumerate minibatches."""
        rows = np.linspace(0, self.digits.problem.contexts - 1, count).astype(int)
        return Entry(f"digits-{count}", "real", self.digits.problem.restrict(rows.tolist(), True))

    def random(self, kind: str, *, contexts: int = 3) -> Iterator[BanditEntry]:
        for number in range(self.generated):
            seed = 1000 * self.seed + number
            problem = random_problem(seed, kind, contexts=contexts)
            yield Entry(f"{kind}#{seed}", "generated", problem)

    def _streams(self, name: str, stream: int) -> Iterator[tuple[str, np.random.Generator]]:
        """The name of each generated problem of a kind, and its own generator."""
        for one, _, rng in streams(name, self.seed, self.generated, stream):
            yield one, rng

    def coins(self) -> Iterator[BanditEntry]:
        """Generated coins; their explicit bound is less than three times the exact second-order term."""
        for name, rng in self._streams("coin", 1):
            chance = float(rng.uniform(0.82, 0.95))
            problem = SoftmaxBandit.bernoulli([0.5, 0.5], [chance, 1 - chance])
            yield Entry(name, "generated", problem)

    def strong(self) -> Iterator[BanditEntry]:
        """Generated policies that mostly take the rewarded arm: far outside Assumption 2."""
        for name, rng in self._streams("strong", 2):
            likely = rng.uniform(0.6, 0.85)
            probs = [likely, *((1 - likely) * rng.dirichlet([2.0, 2.0, 2.0]))]
            success = [rng.uniform(0.9, 1.0), *rng.uniform(0.0, 0.1, 3)]
            yield Entry(name, "generated", SoftmaxBandit.bernoulli(probs, success))

    def alike(self) -> Iterator[BanditEntry]:
        """Generated uniform policies with one rewarded arm, so that Assumption 2 holds."""
        for name, rng in self._streams("alike", 3):
            arms = int(rng.integers(3, 6))
            success = [rng.uniform(0.7, 1.0), *[0.0] * (arms - 1)]
            yield Entry(name, "generated", SoftmaxBandit.bernoulli([1 / arms] * arms, success))

    def spreads(self) -> Iterator[BanditEntry]:
        """Generated prompts, equally likely, whose gradients differ a lot."""
        for name, rng in self._streams("spread", 4):
            yield spread(name, "generated", rng.dirichlet([12.0, 12.0, 12.0], size=3))

    def rates(self) -> Iterator[BanditEntry]:
        """Generated prompts, unequally likely, whose pass rates are far apart, with rewards 0 and 1."""
        for name, rng in self._streams("rates", 5):
            hard, easy = rng.uniform(0.05, 0.15), rng.uniform(0.8, 0.92)
            rates = np.array([hard, rng.uniform(0.3, 0.6), easy])
            chances = rng.dirichlet([8.0, 8.0, 8.0])
            yield Entry(name, "generated", graded(chances, rates, rng))

    @cached_property
    def unequal_rates(self) -> list[BanditEntry]:
        """Problems of several prompts with rewards 0 and 1."""
        return [self.uneven, *self.rates(), self.digits_rows(3)]

    @cached_property
    def binary_prompts(self) -> list[BanditEntry]:
        few = 1 if self.size == "smoke" else 2
        entries = [self.skewed, self.balanced]
        for entry in (*self.strong(), *self.rates(), self.digits):
            entries += prompts(entry, few)
        return entries

    @cached_property
    def iris(self) -> BanditEntry:
        """Real data: 150 prompts, 3 arms, d = 15."""
        from sklearn.datasets import load_iris

        data = load_iris()
        return Entry("iris", "real", labelled_problem(data.data / 8.0, data.target, 0.7))

    @cached_property
    def few_outcomes(self) -> list[BanditEntry]:
        """Prompts of at most three arms and rewards 0 and 1, so that ordered groups can be enumerated."""
        iris = self.iris.problem
        order = np.argsort(iris.moments().value.round(9), kind="stable")
        rows = order[[0, len(order) // 2, -1]]
        flowers = Entry("iris-3", "real", iris.restrict(rows.tolist(), True))
        return [self.uneven, *self.rates(), flowers]

    @cached_property
    def drawn_unequally(self) -> list[BanditEntry]:
        """Several prompts with rewards 0 and 1, of which some are nearly always or never solved."""
        entries = [self.uneven]
        for name, rng in self._streams("nearly-certain", 12):
            rates = np.array(
                [rng.uniform(0.01, 0.03), rng.uniform(0.4, 0.6), rng.uniform(0.97, 0.99)]
            )
            probs = np.stack([rates, 1 - rates], axis=1)
            policy = SoftmaxBandit.bernoulli(probs, [[1, 0]] * len(rates)).policy
            chances = rng.dirichlet([8.0, 8.0, 8.0])
            rewards, sure = np.array([[[1.0], [0.0]]] * len(rates)), np.ones((len(rates), 2, 1))
            entries.append(Entry(name, "generated", SoftmaxBandit(policy, chances, rewards, sure)))
        return [*entries, self.few_outcomes[-1]]

    @cached_property
    def lopsided(self) -> list[BanditEntry]:
        """Single prompts with rewards 0 and 1, at most four outcomes, and pass rates not near one half."""
        entries = [self.skewed, self.balanced]
        for name, rng in self._streams("lopsided", 6):
            rate = rng.uniform(0.12, 0.28)
            rates = np.array([rate if rng.random() < 0.5 else 1 - rate])
            entries.append(Entry(name, "generated", graded(np.ones(1), rates, rng)))
        iris = self.iris.problem
        off = np.abs(iris.moments().value - 0.5)
        for x in np.flatnonzero((off > 0.2) & (off < 0.4))[[0, -1]]:
            entries.append(Entry(f"iris[{x}]", "real", iris.restrict([int(x)])))
        return entries

    @cached_property
    def rare_rewards(self) -> list[BanditEntry]:
        """Single prompts of three rewards: two close and likely, one far from them and rare."""
        entries = [shipped("rare")]
        for name, rng in self._streams("rare", 7):
            share, half = rng.uniform(0.02, 0.05), rng.uniform(0.47, 0.53)
            probs = [half * (1 - share), (1 - half) * (1 - share), share]
            middle = 0.5 + np.array([1, -1]) * rng.uniform(0.08, 0.12, size=2)
            other = 0.1 * rng.normal(size=3)
            entries.append(Entry(name, "generated", rare(probs, [*middle, 0.0], other)))
        return entries

    @cached_property
    def every_single_prompt(self) -> list[BanditEntry]:
        """Problems of one prompt, for the results that condition on the prompt."""
        few = 1 if self.size == "smoke" else 2
        entries = [self.skewed, self.balanced, self.coin]
        for entry in (self.several, self.features):
            entries += prompts(entry, few)
        for kind in ("plain", "negative-rewards", "linear", "shared-linear"):
            for entry in self.random(kind):
                entries += prompts(entry, 1)
        return [*entries, *self.coins(), *prompts(self.digits, few)]
