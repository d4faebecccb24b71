"""A parser of the command line that reports an error in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from ..validation import InputError, nearest, one_of


@dataclass(frozen=True)
class Subject:
    """A subject of a command: how it is written, and why it does not accept options of other subjects."""

    written: str
    why: str


class Parser(argparse.ArgumentParser):
    """The parser of a command line; an error is one line.

    Arguments:
        rest: name for unknown words; without it, unknown words are an error.
        subjects: the command's subjects, by the option that gives each. The first one that is given is the
            subject; options of the others are an error, and ``--help`` after it shows its options.
    """

    def __init__(
        self,
        *arguments: Any,
        rest: str | None = None,
        subjects: Mapping[str, Subject] | None = None,
        **settings: Any,
    ):
        self.rest, self.subjects = rest, subjects or {}
        self._of: dict[argparse.Action, tuple[str, ...]] = {}
        self._needed: list[argparse.Action] = []
        if subjects:
            # The namespace has only the options that are given.
            settings |= {"argument_default": argparse.SUPPRESS}
            settings |= {"add_help": False, "allow_abbrev": False}
        super().__init__(*arguments, **settings)
        if subjects:
            text = "show this help message and exit"
            self.options(*subjects)("-h", "--help", action="store_true", help=text)

    def options(self, *subjects: str, group: Any = None) -> Any:
        """A function that adds an option of these subjects, to the parser or to a group of options."""
        return partial(self._option, subjects, self if group is None else group)

    def _option(
        self, subjects: tuple[str, ...], group: Any, *names: str, needed: bool = False, **how: Any
    ) -> None:
        action = group.add_argument(*names, **how)
        self._of[action] = subjects
        if needed:
            # Only some subjects need it, and argparse cannot express that.
            self._needed.append(action)

    def flags(self, subject: str | None = None) -> list[str]:
        """All options, or the options of one subject."""
        return [
            flag
            for flag, action in self._option_string_actions.items()
            if subject is None or subject in self._of.get(action, (subject,))
        ]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options in the words; a shell passes no NUL, but a caller may."""
        words = list(sys.argv[1:] if args is None else args)
        for word in words:
            if "\0" in word:
                raise InputError(f"{word!r} holds '\\0', which no command line allows")
        options, unknown = super().parse_known_args(words, namespace)
        if self.rest is not None:
            setattr(options, self.rest, [*getattr(options, self.rest, ()), *unknown])
        elif unknown:
            self._refuse(unknown)
        if self.subjects:
            self._settle(options)
        return options, []

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        word = unknown[0].partition("=")[0]
        near = nearest(word.lstrip("-"), [flag.lstrip("-") for flag in self.flags()])
        meant = f" (did you mean --{near[0]}?)" if near and word.startswith("--") else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")

    def _settle(self, options: argparse.Namespace) -> None:
        """Show the help of the subject, or raise an error for options that it does not accept or lacks."""
        given = vars(options)
        subject = next((name for name in self.subjects if name in given), None)
        if given.pop("help", False):
            self._show(subject or [*self.subjects][-1])
        if subject is None:
            ways = ", ".join(each.written for each in reversed([*self.subjects.values()]))
            self.error(f"one of these is required: {ways}")
        taken = {action.dest for action, subjects in self._of.items() if subject in subjects}
        ignored = [self._typed(*each) for each in given.items() if each[0] not in taken]
        if ignored:
            why = self.subjects[subject].why
            raise InputError(f"{why}: leave out {', '.join(ignored)}, which would be ignored")
        lacking = [each for each in self._needs(subject) if each.dest not in given]
        if lacking:
            flags = ", ".join(each.option_strings[0] for each in lacking)
            self.error(f"the following arguments are required: {flags}")

    def _needs(self, subject: str) -> list[argparse.Action]:
        return [action for action in self._needed if subject in self._of[action]]

    def _typed(self, name: str, value: Any) -> str:
        """An option as the user typed it, or the word of a positional argument."""
        flag = f"--{name.replace('_', '-')}"
        return flag if flag in self._option_string_actions else str(value)

    def _show(self, subject: str) -> NoReturn:
        for action, subjects in self._of.items():
            if subject not in subjects:
                action.help = argparse.SUPPRESS
        written = self.subjects[subject].written
        needs = (f"{each.option_strings[0]} {each.metavar}" for each in self._needs(subject))
        needed = [text for text in needs if text not in written]
        self.usage = " ".join([self.prog, written, *needed, "[options]"])
        self.print_help()
        self.exit()

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise an error for a word that is not an allowed value, with the nearest value."""
        if action.choices is not None:
            try:
                one_of(" ".join(action.option_strings) or "command", value, [*action.choices])
            except InputError as error:
                self.error(str(error))

    def error(self, message: str) -> NoReturn:
        """Raise an error for the words."""
        raise InputError(f"{message}; see {self.prog} --help")
