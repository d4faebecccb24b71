"""The options that a file, a command or a config writes, by name. Nothing in it runs."""

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
"""Options by the names that are written, those that hold last; "" where no value is."""


@dataclass
class Source:
    """The options that a file, a command or a config writes.

    Arguments:
        title: what messages call it.
        named: its options.
        runs: the commands that it runs and the modules that it imports.
        missing: the parents that it names and that are not there.
        unread: the options whose values only running it would say.
        text: where it may say which releases it installs.
    """

    title: str
    named: Named = field(default_factory=list)
    runs: str = ""
    missing: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    text: str = ""

    def then(self, other: Source) -> Source:
        """Both, the options of the other holding before one's own."""
        return Source(
            self.title or other.title,
            [*self.named, *other.named],
            f"{self.runs}\n{other.runs}",
            [*self.missing, *other.missing],
            [*self.unread, *other.unread],
            f"{self.text}\n{other.text}",
        )

    def asked(self, package: str) -> list[tuple[str, str]]:
        """The clauses on a package's release, ``("==", "0.19.1")``, in commands, requirements and a script's
        own ``# /// script``.
        """
        text = _METADATA.sub(lambda block: re.sub("(?m)^# ?", "", block[0]), self.text)
        name = re.sub("[-_]", "[-_.]", package)
        wanted = rf"(?i)(?<![\w./-]){name}(?:\[[^\]]*\])?((?:\s*,?\s*{CLAUSE.pattern})+)"
        found = re.finditer(wanted, re.sub(r"(?m)(^|\s)#.*$", "", text))
        return [pair for match in found for pair in CLAUSE.findall(match[1])]


def is_there(word: str) -> bool:
    """Whether a word is the name of something that is there."""
    try:
        return Path(word).exists()
    except OSError:  # A name that is too long.
        return False


def of_config(config: Any) -> Source:
    """The options of a mapping, of a config that has them as attributes, or of a trainer that has such."""
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
        return options_of(data)  # Hydra's overrides.
    if not isinstance(data, Mapping):
        raise InputError(f"{title}: it must hold options by name")
    return [(str(name), as_text(value)) for name, value in flat(data)]


def options_of(words: Iterable[str], switches: Callable[[str], bool] | None = None) -> Named:
    """Options as a shell has them: ``a=b``, ``--a=b``, ``--a b``; one alone has no value."""
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
        named.append((name, text))
    return named


def plain(name: str) -> str:
    """A name as the catalogue has it."""
    return name.lstrip("-+").replace("-", "_")


@cache
def _known() -> dict[str, set[str]]:
    """The names of switches and of lists, in any framework."""
    kinds: dict[str, set[str]] = {}
    for framework in catalogue().frameworks.values():
        for name, option in framework.names().items():
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
"""Folders above a file in which those that it names are looked for."""

CLAUSE = re.compile(r"(==|>=|<=|~=|!=|<|>)\s*(v?\d[\w.*+]*)")
_METADATA = re.compile(r"(?m)^# /// script$\s(?:^#(?: .*)?$\s)+^# ///$")
"""A script's own dependencies, in comments (PEP 723)."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
