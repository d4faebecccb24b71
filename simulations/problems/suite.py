"""The suite: what claims run on, and the kinds of problem that can take the bandits' place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ustat_pg.problems import SoftmaxBandit
from ustat_pg.validation import InputError, one_of

from .. import KINDS, ON_NETWORKS, ON_RUNS, STEMS
from . import tokens
from .bandits import BanditEntry, Bandits, prompts
from .entry import Entry
from .landscapes import Landscapes

SHOWN = ("problem", "sums", "addition-trained")
"""The stand-ins that figures show."""


@dataclass(frozen=True)
class Suite(Bandits):
    """What the claims run on.

    Arguments:
        size: smoke, quick or full: how many problems and group sizes.
        seed: seed of the generated problems.
        user: a problem of the user's own, which then stands alone.
        on: the kind of problem: bandit, or tokens or transformer, which then stand alone.
        dense: whether networks keep the scores of all their parameters.
        folder: where the pools of language models are kept; nowhere unless given.

    Raises:
        InputError: an unknown kind, or a user's problem and a kind at once.
    """

    user: SoftmaxBandit | None = None
    on: str = "bandit"
    dense: bool = False
    folder: Path | None = None

    def __post_init__(self) -> None:
        one_of("kind of problem", self.on, KINDS)
        if self.user is not None and self.on != "bandit":
            raise InputError(f"a problem of one's own takes the place of the {self.on} problems")

    @property
    def kind(self) -> Kind:
        """The kind of problem, a user's own being one of them."""
        return _KINDS[self.on if self.user is None else "user"]

    @cached_property
    def stand_ins(self) -> tuple[BanditEntry, ...]:
        """Problems in place of the bandits: the user's own, or those of another kind."""
        return self.kind.stand_ins(self)

    @cached_property
    def single_prompts(self) -> list[BanditEntry]:
        """Problems of one prompt, for the results that condition on it."""
        return self.kind.single_prompts(self)

    @cached_property
    def landscapes(self) -> Landscapes:
        """Problems with an interior optimum, for whole training runs.

        Raises:
            InputError: other problems stand in the bandits' place, and have no optimum that is known.
        """
        if self.kind is not _KINDS["bandit"]:
            raise InputError(
                "whole training runs are asked of problems whose optimum is known, not of "
                + ("a problem of one's own" if self.user is not None else self.on)
            )
        # Whole runs cost more than gradients: half as many problems of each kind.
        return Landscapes(max(self.generated // 2, 1), self.seed)

    @property
    def skipped(self) -> tuple[str, ...]:
        """What is not asked of this kind of problem, and why."""
        return self.kind.skipped(self)

    @property
    def curve_sizes(self) -> tuple[int, ...]:
        """The group sizes that figures show; few on stand-ins, whose size is open."""
        return (2, 4, 8, 16) if self.stand_ins else (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

    @property
    def shown(self) -> tuple[tuple[BanditEntry, int], ...]:
        """The problems that figures show, with their number of prompts in a minibatch."""
        if self.stand_ins:
            return tuple((entry, 1) for entry in self.stand_ins if entry.name in SHOWN)
        return ((self.balanced, 1), (self.digits, 8))


@dataclass(frozen=True)
class Kind:
    """A kind of problem.

    Arguments:
        folders: folders of this package, in which its experiments are looked for before the bandits' own.
        stand_ins: its problems in place of the bandits.
        single_prompts: those of one prompt.
        skipped: what is not asked of it, and why.
    """

    folders: tuple[str, ...] = ()
    stand_ins: Callable[[Suite], tuple[BanditEntry, ...]] = lambda suite: ()
    single_prompts: Callable[[Suite], list[BanditEntry]] = lambda suite: suite.every_single_prompt
    skipped: Callable[[Suite], tuple[str, ...]] = lambda suite: ()


def _users_own(suite: Suite) -> tuple[BanditEntry, ...]:
    return () if suite.user is None else (Entry("problem", "user", suite.user),)


def _networks(suite: Suite) -> tuple[BanditEntry, ...]:
    return tuple(tokens.bandits(suite.on, suite.generated, suite.seed, dense=suite.dense))


def _open_prompts(suite: Suite) -> list[BanditEntry]:
    """The prompts with the lowest and the highest mean reward, of those neither sure nor hopeless:
    events of less than 1 in 10, and answers that are hardly ever another, take more groups than any
    size has.
    """
    entries = []
    for entry in suite.stand_ins:
        value = entry.problem.moments().value
        likeliest = entry.problem.policy.probs.max(axis=1)
        places = np.flatnonzero((value > 0.1) & (value < 0.9) & (likeliest < 0.9))
        if len(places):
            ends = (places[value[places].argmin()], places[value[places].argmax()])
            for x in dict.fromkeys(map(int, ends)):
                problem = entry.problem.restrict([x])
                entries.append(Entry(f"{entry.name}[{x}]", entry.origin, problem))
    return entries


def _skipped_on_networks(suite: Suite) -> tuple[str, ...]:
    rest = [stem for stem in STEMS if stem not in ON_NETWORKS]
    runs = ", ".join(stem for stem in rest if stem in ON_RUNS)
    others = ", ".join(stem for stem in rest if stem not in ON_RUNS)
    return (
        f"skipped on {suite.on}: {runs}: they need an optimum within reach; {others}: asked without "
        "--on, of token problems of its own",
        f"suboptimality on {suite.on} is one training step, enumerated, and Lemma 6's recursion over "
        "it: the bound of many steps assumes a PL constant, which no network has",
        f"group_size on {suite.on} is the noise at fixed parameters",
    )


_NETWORKS = Kind(("networks", "stand_ins"), _networks, _open_prompts, _skipped_on_networks)

_KINDS = {
    "bandit": Kind(),
    "user": Kind(("stand_ins",), _users_own, lambda suite: prompts(suite.stand_ins[0], 3)),
    "tokens": _NETWORKS,
    "transformer": _NETWORKS,
    "language-model": Kind(
        ("language_models",),
        skipped=lambda suite: (
            "intervals on language models are those of nearly normal means: no bound on a "
            "network's scores is known",
            "nothing is enumerated on language models, and training is not judged: see "
            "ustat-pg llm sweep",
        ),
    ),
}
