"""The check that advantages over turns are unbiased, by enumeration, and the objective of biased ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..engines import enumerate_turns
from ..estimators import TURN_SCHEMES
from ..predictions import turn_mean
from ..problems import EpisodeProblem, episode_problems, load_episodes
from ..validation import InputError
from .function import (
    SINGLE_PRECISION,
    Array,
    UnderTest,
    Violation,
    relative_tolerance,
    whole_numbers,
)

TurnProblems = bool | EpisodeProblem | Iterable[EpisodeProblem] | Mapping[str, EpisodeProblem]
"""The type of ``turns`` in :func:`~ustat_pg.testing.assert_unbiased`."""


def require_unbiased_over_turns(
    under: UnderTest,
    turns: TurnProblems,
    group_size: int | Iterable[int] | None,
    up_to_scale: bool,
    rtol: float,
) -> None:
    """Raise an error if the gradient estimate of advantages over turns does not have the gradient as its
    mean.

    The arguments are those of :func:`~ustat_pg.testing.assert_unbiased`.
    """
    tolerance = relative_tolerance(rtol)

    def advantages(rewards: Array, reached: Array, states: Array) -> Array:
        mask = reached.astype(np.float64)
        return under.of(rewards=rewards, reached=mask, states=states) * mask

    sizes = whole_numbers("group size", (2, 3) if group_size is None else group_size, 2)
    problems = _named(turns)
    means = {
        (title, size): enumerate_turns(problem, advantages, size, by_state=True).mean
        for size in sizes
        for title, problem in problems.items()
    }
    gradients = {title: problem.gradient() for title, problem in problems.items()}
    scales = {title: _scale(problem) for title, problem in problems.items()}

    def off(title: str, size: int, factor: float = 1.0) -> float:
        error = means[title, size] - factor * gradients[title]
        return float(np.linalg.norm(error)) / scales[title]

    if all(off(*key) <= tolerance for key in means):
        return
    if up_to_scale:
        multiples = {
            size: _multiple([(means[title, size], gradients[title]) for title in problems])
            for size in sizes
        }
        if all(multiples[size] > 0 and off(title, size, multiples[size]) <= tolerance
               for title, size in means):  # fmt: skip
            return
    title, size = max(means, key=lambda key: float(f"{off(*key):.6g}"))
    raise Violation(
        f"{under.name} is biased over turns: at G = {size} on problem {title!r} E ĝ is "
        f"{np.round(means[title, size], 4).tolist()} where ∇J is {np.round(gradients[title], 4).tolist()}; "
        f"{_climbed(means, problems)}{under.hint if off(title, size) < SINGLE_PRECISION else ''}"
    )


def _multiple(pairs: Sequence[tuple[Array, Array]]) -> float:
    """The c for which the means are nearest to c times the gradients."""
    along = sum(float(mean @ gradient) for mean, gradient in pairs)
    return along / sum(float(gradient @ gradient) for _, gradient in pairs)


def _scale(problem: EpisodeProblem) -> float:
    """(E Σ‖sₜ‖² E Σ Rₜ²)^½, an upper bound of ‖∇J‖."""
    listed = problem.episodes
    norms = listed.probs @ (listed.scores**2).sum(axis=(1, 2))
    return float(norms * (listed.probs @ (listed.to_go**2).sum(axis=1))) ** 0.5


def _named(turns: TurnProblems) -> dict[str, EpisodeProblem]:
    if turns is True:
        return {name: load_episodes(f"ustat:{name}") for name in episode_problems()}
    if isinstance(turns, EpisodeProblem):
        turns = [turns]
    if not isinstance(turns, Mapping):
        if not isinstance(turns, Iterable):
            raise InputError(f"turns is {turns!r}: it must be True, or problems with turns")
        turns = {f"number {i}": problem for i, problem in enumerate(turns)}
    for name, problem in turns.items():
        if not isinstance(problem, EpisodeProblem):
            raise InputError(
                f"problem {name!r} is a {type(problem).__name__}: it must be an EpisodeProblem"
            )
    if not turns:
        raise InputError("turns has no problem: give at least one")
    return dict(turns)


def _climbed(means: Mapping[tuple[str, int], Array], problems: Mapping[str, EpisodeProblem]) -> str:
    """A text on the scheme that has these means on all problems."""
    for scheme in TURN_SCHEMES:
        for lone, dropped in (("reward", ""), ("zero", " with lone turns dropped")):
            known = {
                (title, size): turn_mean(problems[title], scheme, size, lone=lone)
                for title, size in means
            }
            if all(np.allclose(known[key].mean, mean, atol=1e-9) for key, mean in means.items()):
                climbs = next(iter(known.values())).climbs
                return f"its mean is that of the scheme {scheme!r}{dropped}: it climbs {climbs}"
    return (
        "its mean differs from every scheme of ustat_pg.estimators.turns: a baseline must not "
        "depend on the output's own episode or on consequences of the turn's decision"
    )
