"""The comparisons of trainers over the turns of episodes, as this library's schemes write it (turns)."""

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
"""Factors of a term that depend on the group."""


@frozen
class Term:
    """One scheme of :func:`ustat_pg.estimators.turns`, as a trainer has it.

    Arguments:
        scheme, ddof: as that function takes them.
        states: whether turns in an equal state are compared, in place of the same turn.
        discount: the option that holds γ.
        times: what multiplies it: an option, or words.
    """

    scheme: str
    ddof: int | None = None
    states: bool = False
    discount: str = ""
    times: str = ""

    def written(self, values: Mapping[str, str]) -> str:
        """The call that makes it, with the discount among the values of options."""
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
                return "An episode counts as one output: with returns 0 and 1 it climbs what is said above"
            return "Its objective has no closed form; enumerate_turns gives its mean on a problem"
        if not self.states:
            return f"{self.scheme} climbs {CLIMBS[self.scheme]}"
        return (
            f"{self.scheme} by states climbs each state's part of J with a weight of its own, smaller where "
            "few episodes meet it; an episode's other visits to the state bias the estimate"
        )


def _terms(tables: Sequence[Mapping[str, Any]]) -> tuple[Term, ...]:
    return tuple(Term(**table) for table in tables)


@frozen
class TurnRow:
    """The scheme over turns of some values of a framework's options.

    Arguments:
        when: the values, by option; several where any will do.
        terms: what is added up.
        source: the file in the framework's repository, and lines.
        turn: what counts as a turn, where that is no call of the model.
        says: what else is to know.
        read: whether it was only read there, and not run.
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
    """The comparison of each scheme, in words."""
    return dict(_tables()["compares"])


@cache
def turn_rows() -> dict[str, tuple[TurnRow, ...]]:
    """The rows of frameworks that have them, by name.

    >>> [term.scheme for term in turn_rows()["verl-agent"][0].terms]
    ['pooled-mean', 'to-go-mean']
    """
    tables = {name: rows for name, rows in _tables().items() if name != "compares"}
    return {name: tuple(TurnRow(**row) for row in rows) for name, rows in tables.items()}


def over_turns(meaning: Meaning) -> list[str]:
    """Sentences on what a trainer's options compare over turns; none where no row says.

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
