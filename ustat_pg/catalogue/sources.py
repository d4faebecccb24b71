"""The options that a file, a command or a config contains, by name; nothing of it is run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ..validation import InputError
from .options import as_text
from .records import catalogue, flat

Named = list[tuple[str, str]]
"""Options by their written names; those with priority come last, and "" means no value."""


@dataclass
class Source:
    """The options that a file, a command or a config contains.

    Arguments:
        title: its name in messages.
        named: its options.
        runs: commands that it runs and modules that it imports.
        missing: parents that it names and that do not exist.
        unread: options whose values only a run would give.
        text: text that may name the releases that it installs.
        defaults: by the name of an option, the script's own option whose default is its value.
        program: the program of a command.
        line: the line of a command in its script.
        place: the place of a command, with its program.
        broken: whether a command could not be parsed wholly.
        more: words of a command that may give more options.
    """

    title: str
    named: Named = field(default_factory=list)
    runs: str = ""
    missing: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    text: str = ""
    defaults: dict[str, str] = field(default_factory=dict)
    program: str = ""
    line: int = 0
    place: str = ""
    broken: bool = False
    more: list[str] = field(default_factory=list)

    def then(self, other: Source) -> Source:
        """Both sources together; the options of the other have priority."""
        return Source(
            self.title or other.title,
            [*self.named, *other.named],
            f"{self.runs}\n{other.runs}",
            [*self.missing, *other.missing],
            [*self.unread, *other.unread],
            f"{self.text}\n{other.text}",
            {**self.defaults, **dict.fromkeys(dict(other.named), ""), **other.defaults},
            self.program or other.program,
            self.line or other.line,
            self.place or other.place,
            self.broken or other.broken,
            [*self.more, *other.more],
        )

    def asked(self, package: str) -> list[tuple[str, str]]:
        """The version clauses for a package, ``("==", "0.19.1")``, in commands, requirements and a script's
        own ``# /// script``.
        """
        text = _METADATA.sub(lambda block: re.sub("(?m)^# ?", "", block[0]), self.text)
        name = re.sub("[-_]", "[-_.]", package)
        wanted = rf"(?i)(?<![\w./-]){name}(?:\[[^\]]*\])?((?:\s*,?\s*{CLAUSE.pattern})+)"
        found = re.finditer(wanted, re.sub(r"(?m)(^|\s)#.*$", "", text))
        return [pair for match in found for pair in CLAUSE.findall(match[1])]


def is_there(word: str) -> bool:
    """Whether a word is the path of an existing file or folder."""
    try:
        return Path(word).exists()
    except OSError:  # A name that is too long.
        return False


def of_config(config: Any) -> Source:
    """The options of a mapping, of a config with attributes, or of a trainer with such a config."""
    if not isinstance(config, Mapping):
        args = getattr(config, "args", None)
        try:
            config = vars(config if not hasattr(args, "__dict__") else args)
        except TypeError:
            raise InputError(
                f"estimator is {config!r}: it must be a text, a mapping of options, or a config"
            ) from None
    return Source("options", of_sections("options", config))


def of_sections(title: Any, data: Any) -> Named:
    if isinstance(data, list) and data and all(isinstance(entry, str) for entry in data):
        return options_of(data)  # These are overrides of Hydra.
    if not isinstance(data, Mapping):
        raise InputError(f"{title}: it must hold options by name")
    return [(str(name), as_text(value)) for name, value in flat(data)]


def options_of(words: Iterable[str], switches: Callable[[str], bool] | None = None) -> Named:
    """Options in the forms of a shell: ``a=b``, ``--a=b``, ``--a b``; a single option has no value."""
    known = _known()
    is_switch = switches or (lambda name: "switch" in known.get(plain(name), ()))
    named: Named = []
    rest = list(words)
    while rest:
        name, equals, text = rest.pop(0).partition("=")
        follows = rest[0] if rest else "--"
        apart = name.startswith("--") and not equals and not re.match("--|.*=", follows)
        if apart and (not is_switch(name) or follows.lower() in ("true", "false")):
            text = rest.pop(0)
            while "list" in known.get(plain(name), ()) and rest and _NUMBER.fullmatch(rest[0]):
                text += f" {rest.pop(0)}"
        elif name[:1] != "-":
            text = _QUOTED.sub(r"\2", text) if _QUOTED.fullmatch(text) else text
        named.append((name, text))
    return named


def plain(name: str) -> str:
    """A name in the spelling of the catalogue."""
    return name.lstrip("-+").replace("-", "_")


@cache
def _known() -> dict[str, set[str]]:
    """The names of switches and of lists, in all frameworks."""
    kinds: dict[str, set[str]] = {}
    for framework in catalogue().frameworks.values():
        for name, option in ({} if framework.in_code else framework.names()).items():
            kinds.setdefault(name, set()).update(
                word
                for word, holds in (("switch", option.switch), ("list", option.several))
                if holds
            )
    return kinds


MOST_CODE = 2**22
"""Size of the largest script, program or table that is read, in bytes."""

FILES = ("config", "override_config_file")
"""Options of commands that name a file of options."""

YAML = (".yaml", ".yml")

ABOVE = 5
"""The number of folders above a file in which the files that it names are searched."""

_QUOTED = re.compile(r"(['\"])([^'\"]*)\1")
"""A value as Hydra quotes it."""

CLAUSE = re.compile(r"(==|>=|<=|~=|!=|<|>)\s*(v?\d[\w.*+]*)")
_METADATA = re.compile(r"(?m)^# /// script$\s(?:^#(?: .*)?$\s)+^# ///$")
"""A script's own dependencies, in comments (PEP 723)."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
