"""Which commands of a script train: they are told apart from those that prepare, generate or evaluate."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..validation import InputError
from .meaning import Meaning
from .sources import Source


class Unclear(InputError):
    """No framework, or none alone, has the options of a source; ``rivals`` says whether several may."""

    def __init__(self, message: str, *, rivals: bool = False) -> None:
        super().__init__(message)
        self.rivals = rivals


class Untrained(InputError):
    """What a framework runs without a training on rewards; ``said`` has the command and the reason alone."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(message)
        self.said = said


@dataclass
class _Outcome:
    source: Source
    found: Meaning | InputError

    @property
    def trains(self) -> bool:
        return not isinstance(self.found, Unclear | Untrained)

    @property
    def lost(self) -> bool:
        """Whether it begins with an option, as behind a comment that ends a command too early."""
        return self.source.program.startswith("-")

    @property
    def beside(self) -> bool:
        """Whether its program's name says that it does something else, or is an option."""
        if self.lost:
            return True
        words = {*re.split(r"[\W_]+", self.source.program.lower().removesuffix(".py"))}
        return bool(words & _OTHERS) and not any(word.startswith("train") for word in words)


def trainings(sources: Sequence[Source], read: Callable[[Source], Meaning]) -> tuple[Meaning, ...]:
    """The meanings of the sources that train, in order.

    Arguments:
        sources: a file, or the commands of a script.
        read: gives the meaning of one.

    Raises:
        InputError: none trains, or the options of one that trains cannot be read.
    """
    outcomes = [_Outcome(source, _tried(source, read)) for source in sources]
    able = [each for each in outcomes if each.trains]
    able = [each for each in able if not each.beside] or able
    if not able:
        raise _refusal(outcomes)
    for each in able:
        if isinstance(each.found, InputError):
            raise each.found
        if each.source.broken:
            raise InputError(f"{each.source.place}: this command cannot be parsed")
    also = tuple(_also([each for each in outcomes if each not in able]))
    found = list[Meaning]()
    for each in able:
        assert isinstance(each.found, Meaning)
        meaning = replace(each.found, also=also, place=each.source.place)
        # The rounds of a loop may differ in what is not read.
        if not any(one.place == meaning.place and one.same(meaning) for one in found):
            found.append(meaning)
    return tuple(found)


def the_only(meanings: Sequence[Meaning]) -> Meaning:
    """The meaning of the only training, or of several that agree.

    Raises:
        InputError: they differ.
    """
    first, *others = meanings
    if all(first.same(other) for other in others):
        return first
    places = " and ".join(dict.fromkeys(each.place for each in meanings))
    if " and " not in places:
        raise InputError(
            f"{first.place} is run {len(meanings)} times with other options: write the options of one run"
        )
    raise InputError(
        f"it has {len(meanings)} trainings with other options: {places}: write the file with one of the "
        "lines, as run.sh:3"
    )


def _tried(source: Source, read: Callable[[Source], Meaning]) -> Meaning | InputError:
    try:
        return read(source)
    except InputError as error:
        return error


def _refusal(outcomes: Sequence[_Outcome]) -> InputError:
    """The reason why nothing trains: the most telling of its commands' reasons."""
    for each in outcomes:
        if isinstance(each.found, Untrained):
            return each.found
    for each in outcomes:
        if each.source.broken:
            return InputError(f"{each.source.place}: this command cannot be parsed")
    errors = [each.found for each in outcomes if isinstance(each.found, Unclear)]
    return next((error for error in errors if error.rivals), errors[-1])


def _also(others: Sequence[_Outcome]) -> list[str]:
    """Sentences on the commands of a script that are not among its trainings."""
    said, names, unclear = list[str](), list[str](), list[str]()
    for each in others:
        if each.lost:
            said.append(
                f"Line {each.source.line} begins with `{each.source.program}`: the shell gives the options "
                "there to no program."
            )
        elif isinstance(each.found, Untrained):
            said.append(f"The script also runs {each.found.said}.")
        elif (
            each.trains
            or not (isinstance(each.found, Unclear) and each.found.rivals)
            or each.beside
        ):
            names.append(f"`{each.source.program}`")
        else:
            unclear.append(f"`{each.source.program}`")
    for found, words in (
        (unclear, "whose framework is not clear: name it before the file to read it"),
        (names, "whose options are not of a training"),
    ):
        if some := [*dict.fromkeys(found)]:
            more = f" and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
            said.append(f"The script also runs {', '.join(some[:_NAMED])}{more}, {words}.")
    return [*dict.fromkeys(said)]


_NAMED = 4
"""The most commands that one sentence names."""

_OTHERS = {
    *(
        "infer",
        "inference",
        "eval",
        "evaluate",
        "evaluation",
        "evals",
        "test",
        "validate",
        "benchmark",
    ),
    *("generate", "generation", "gen", "sample", "rollout", "serve", "server", "serving", "deploy"),
    *(
        "prepare",
        "preprocess",
        "process",
        "convert",
        "merge",
        "export",
        "download",
        "upload",
        "data",
    ),
    *("dataset", "plot", "analyze", "score", "judge", "verify", "filter", "tokenize", "sft"),
}
"""Words in the names of programs that do something other than a training on rewards."""
