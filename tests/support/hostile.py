"""Files that would run code, and words and numbers that no command can take."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from ustat_pg.commands.parser import Parser

NUL = "a\0b"
"""No word of a command, and no name of a file."""
NO_NUMBERS = ("", "x", "nan", "inf", "1e400", "-1e400", "9" * 5000, "\udc80", "1\n2")
"""Neither whole numbers nor finite ones of double precision."""
NO_COUNTS = (*NO_NUMBERS, "-1", "1.5", "1" + "0" * 25)
"""No number of anything."""


class Runs:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def valued(parser: Parser, words: list[str]) -> Iterator[argparse.Action]:
    """The options with a value, and the places, of the command that the words name and of its subject."""
    while parts := [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]:
        parser, words = parts[0].choices[words[0]], words[1:]
    subjects = [*parser.subjects]
    subject = next((name for name in subjects if f"--{name}" in words), None)
    taken = parser.flags(subject or (subjects[-1] if subjects else None))
    for action in parser._actions:
        places = not action.option_strings and subject is None
        if action.nargs != 0 and (places or {*action.option_strings} & {*taken}):
            yield action


def with_value(words: list[str], action: argparse.Action, value: str) -> list[str]:
    """The words with a value of one option more, or in the place of the one that is there."""
    if not action.option_strings:
        return [*words, "--", value]
    name = max(action.option_strings, key=len)
    kept = list(words)
    if name in kept:
        del kept[kept.index(name) : kept.index(name) + 2]
    return [*kept, f"{name}={value}"]


def is_number(action: argparse.Action) -> bool:
    """Whether an option is a number by its type, whole or not."""
    return action.type not in (None, Path, str) and not action.choices
