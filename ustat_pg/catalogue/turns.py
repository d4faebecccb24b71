"""How trainers compare the turns of episodes, written with this library's schemes (turns)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from attrs import field, frozen

from ..predictions.turns import CLIMBS
from .meaning import Meaning
from .options import texts_by_name

_RANDOM = ("1/s", "n/(n-1)")
"""Factors of a term that change from group to group."""


@frozen
class Term:
    """One scheme of :func:`ustat_pg.estimators.turns` with the arguments that a trainer uses.

    Arguments:
        scheme, ddof: arguments of that function.
        states: whether turns in equal states are compared, rather than turns with equal numbers.
        discount: option that gives γ.
        times: factor of the term: an option, or words.
    """

    scheme: str
    ddof: int | None = None
    states: bool = False
    discount: str = ""
    times: str = ""

    def written(self, values: Mapping[str, str]) -> str:
        """The call that computes the term, with the discount from the options' values."""
        words = [f'"{self.scheme}"']
        words += ["states=states"] if self.states else []
        words += [f"discount={values[self.discount]}"] if self.discount else []
        words += [] if self.ddof is None else [f"ddof={self.ddof}"]
        times = f"{values.get(self.times, self.times)} · " if self.times else ""
        return f"{times}turns(rewards, reached, {', '.join(words)})"

    @property
    def climbs(self) -> str:
        """The objective of its mean, in words."""
        if self.ddof is not None or self.times in _RANDOM:
            if self.scheme.startswith("episode"):
                return "An episode counts as one output: with returns 0 and 1 it climbs the objective above"
            return "Its objective has no closed form; enumerate_turns gives its mean on a problem"
        if not self.states:
            return f"{self.scheme} climbs {CLIMBS[self.scheme]}"
        return (
            f"{self.scheme} by states climbs each state's part of J with the state's own weight. "
            f"This weight is smaller if few episodes visit the state. Other visits of an episode "
            f"to the state bias the estimate"
        )


def _terms(tables: Sequence[Mapping[str, Any]]) -> tuple[Term, ...]:
    return tuple(Term(**table) for table in tables)


@frozen
class TurnRow:
    """The scheme over turns that some values of a framework's options choose.

    Arguments:
        when: the values, by option; several if any of them fits.
        terms: terms that are added up.
        source: the file in the framework's repository, and the lines.
        turn: what counts as a turn, if that is not one call of the model.
        says: further sentences.
        read: whether the code was only read, and not run.
    """

    when: Mapping[str, tuple[str, ...]] = field(converter=texts_by_name)
    terms: tuple[Term, ...] = field(converter=_terms)
    source: str
    turn: str = ""
    says: str = ""
    read: bool = False

    def fits(self, values: Mapping[str, str]) -> bool:
        """Whether these values of all options are among the row's."""
        return all(values[option] in allowed for option, allowed in self.when.items())


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("turns.toml").read_text("utf-8"))


def compared() -> dict[str, str]:
    """What each scheme compares, in words."""
    return dict(_tables()["compares"])


@cache
def turn_rows() -> dict[str, tuple[TurnRow, ...]]:
    """The rows over turns, by the name of the framework.

    >>> [term.scheme for term in turn_rows()["verl-agent"][0].terms]
    ['pooled-mean', 'to-go-mean']
    """
    tables = {name: rows for name, rows in _tables().items() if name != "compares"}
    return {name: tuple(TurnRow(**row) for row in rows) for name, rows in tables.items()}


def over_turns(meaning: Meaning) -> list[str]:
    """Sentences on what a trainer's options compare over turns; empty if no row fits.

    >>> from ustat_pg.catalogue import resolve
    >>> print(over_turns(resolve("prime-rl group_size=8"))[0])
    Over the turns of episodes: turns(rewards, reached, "episode-mean").
    """
    for row in turn_rows().get(meaning.framework.name, ()):
        if row.fits(meaning.values):
            return [*_sentences(row, meaning)]
    return []


def _sentences(row: TurnRow, meaning: Meaning) -> Iterator[str]:
    calls = " + ".join(term.written(meaning.values) for term in row.terms)
    yield f"Over the turns of episodes: {calls}."
    for term in row.terms:
        words = compared()[term.scheme]
        if term.states:
            words = words.replace("that reach it", "visits to an equal state")
        yield f"{term.scheme} compares {words}. {term.climbs}."
    yield from (words for words in (row.turn, row.says) if words)
    framework, checked = meaning.framework, "read only" if row.read else "run"
    yield f"Source: {framework.repository}@{framework.commit} {row.source}, {checked}."
