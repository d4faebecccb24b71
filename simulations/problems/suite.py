"""The suite: the problems of all claims, bandits or another kind instead of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ustat_pg.predictions import frac_reward_zero_std
from ustat_pg.validation import InputError, one_of

from ..paper import KINDS, NETWORKS, ON_NETWORKS, ON_RUNS, STEMS
from . import tokens
from .bandits import BanditEntry, Bandits
from .landscapes import Landscapes

SHOWN = ("sums", "addition-trained")
"""The token problems that figures show."""


@dataclass(frozen=True)
class Suite(Bandits):
    """The problems on which claims run.

    Arguments:
        size, seed: as for :class:`Bandits`.
        on: the kind of problem, one of ``KINDS``.
        dense: whether networks keep the scores of all their parameters.
        folder: folder for the pools of language models; by default none is stored.
        model: the user's own language model, as :func:`~ustat_pg.llm.models.loading.load_model` takes it;
            by default those that ship with the library.
        device: the device that scores its pools.
    """

    on: str = "bandit"
    dense: bool = False
    folder: Path | None = None
    model: str | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        one_of("kind of problem", self.on, KINDS)

    @cached_property
    def token_problems(self) -> tuple[BanditEntry, ...]:
        """The problems of networks over tokens; empty unless they are requested."""
        if self.on not in NETWORKS:
            return ()
        return tuple(tokens.bandits(self.on, self.generated, self.seed, dense=self.dense))

    def winnable(self, group_size: int) -> Iterator[BanditEntry]:
        """The token problems with rewards 0 and 1 that differ in some groups."""
        for entry in self.token_problems:
            if (
                entry.problem.binary
                and frac_reward_zero_std(entry.problem.moments(), group_size) < 1
            ):
                yield entry

    @cached_property
    def single_prompts(self) -> list[BanditEntry]:
        """Problems of one prompt, for the results that condition on the prompt.

        For token problems these are the prompts with the lowest and the highest mean reward among those
        neither certain nor hopeless: events of less than 1 in 10, and answers that almost never vary,
        need more groups than any size allows.
        """
        if self.on not in NETWORKS:
            return self.every_single_prompt
        entries: list[BanditEntry] = []
        for entry in self.token_problems:
            value = entry.problem.moments().value.round(9)
            likeliest = entry.problem.policy.probs.max(axis=1)
            places = np.flatnonzero((value > 0.1) & (value < 0.9) & (likeliest < 0.9))
            if len(places):
                ends = (places[value[places].argmin()], places[value[places].argmax()])
                entries += map(entry.alone, dict.fromkeys(map(int, ends)))
        return entries

    @cached_property
    def landscapes(self) -> Landscapes:
        if self.on != "bandit":
            raise InputError(
                f"whole training runs need problems whose optimum is known, not {self.on}"
            )
        # Whole runs cost more than gradients, so there are half as many problems of each kind.
        return Landscapes(max(self.generated // 2, 1), self.seed)

    @property
    def skipped(self) -> tuple[str, ...]:
        """The claims that skip this kind of problem, and the reasons."""
        if self.on == "language-model":
            return (
                "intervals on language models are those of nearly normal means: no bound on a "
                "network's scores is known",
                "nothing is enumerated on language models, and training is not judged: see "
                "ustat-pg llm sweep",
            )
        if self.on not in NETWORKS:
            return ()
        rest = [stem for stem in STEMS if stem not in ON_NETWORKS]
        runs = ", ".join(stem for stem in rest if stem in ON_RUNS)
        others = ", ".join(stem for stem in rest if stem not in ON_RUNS)
        return (
            f"skipped on {self.on}: {runs}: they need an optimum within reach; {others}: asked "
            "without --on, of token problems of its own",
            f"suboptimality on {self.on} is one training step, enumerated, and Lemma 6's recursion "
            "over it: the bound of many steps assumes a PL constant, which no network has",
            f"group_size on {self.on} is the noise at fixed parameters",
        )

    @property
    def curve_sizes(self) -> tuple[int, ...]:
        """The group sizes that figures show; few for token problems, because their size varies."""
        if self.token_problems:
            return (2, 4, 8, 16)
        most = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
        return self.sized(most, most, most, (*most, 96, 128, 192, 256))

    @property
    def shown(self) -> tuple[tuple[BanditEntry, int], ...]:
        """The problems that figures show, with their number of prompts in a minibatch."""
        if self.token_problems:
            return tuple((entry, 1) for entry in self.token_problems if entry.name in SHOWN)
        return ((self.balanced, 1), (self.digits, 8))
