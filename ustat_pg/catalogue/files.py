"""Readers of a run's files and commands; they return names and texts, and run nothing."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..files.reading import MOST_OPTIONS, json_value, read_pickle, read_text
from ..validation import InputError
from .code import of_notebook, of_python
from .parts import of_yaml
from .shell import LAUNCHERS, MOST_SCRIPT, SCRIPTS, Command, place_of, read
from .sources import (
    CLAUSE,
    FILES,
    MOST_CODE,
    YAML,
    Named,
    Source,
    is_there,
    of_sections,
    options_of,
    plain,
)


def is_file(word: str) -> bool:
    """Whether a word is a file: the file exists, or the word ends like a file and is not an option."""
    if "=" in word:
        return is_there(word)
    if re.search(r":\d+$", word) and is_there(word.rpartition(":")[0]):
        return True
    return word.endswith((*_READERS, *_CODE, ".sh")) or (
        bool(re.search("[./]", word)) and is_there(word)
    )


def runs_of(word: str) -> list[Source]:
    """The options of each command of a script, or of each config in code, or of the one in a line,
    ``run.sh:3``; else of the file.
    """
    asked = None if is_there(word) else re.fullmatch(r"(.+):(\d+)", word)
    name, line = asked.groups() if asked else (word, "")
    path = Path(name)
    if path.is_dir() or path.suffix in _READERS:
        return [of_file(path)]
    if read := _CODE.get(path.suffix):
        found = read(path)
    else:
        text = read_text(path, MOST_SCRIPT)
        try:
            found = of_commands(text, str(path), path)
        except InputError as error:
            if path.suffix in SCRIPTS:
                raise
            kind = (
                f"a file that ends in {path.suffix}" if path.suffix else "a file without an ending"
            )
            raise InputError(f"{error}; {kind} is read as a shell script") from None
    sources = [_with_requirements(path, source) for source in found]
    if not line:
        return sources
    here = [source for source in sources if source.line == int(line)]
    if not here:
        raise InputError(f"{path}: nothing to read begins in line {line}")
    return here


def of_file(path: Path) -> Source:
    """The options of a file that is no script, or of a Hydra run's folder.

    Raises:
        InputError: it cannot be read, or its kind is not known.
    """
    if path.is_dir():
        places = [path / ".hydra" / "config.yaml", path / "config.yaml"]
        found = [place for place in places if place.is_file()]
        if not found:
            raise InputError(f"{path}: Is a directory, without the .hydra/config.yaml of a run")
        path = found[0]
    source = _READERS[path.suffix](path)
    if not (source.named or source.missing):
        raise InputError(f"{path}: it has no options")
    if path.suffix in (*YAML, ".toml"):
        source.text = read_text(path)
    return _with_requirements(path, source)


def _with_requirements(path: Path, source: Source) -> Source:
    # Weights & Biases writes it next to a run's config.yaml.
    beside = path.with_name("requirements.txt")
    if beside.is_file():
        source.text += f"\n{read_text(beside, MOST_CODE)}"
    return source


def of_commands(text: str, title: str = "the command", script: Path | None = None) -> list[Source]:
    """The options of each command, with those in the files that it names.

    Raises:
        InputError: the text cannot be followed, or has no commands.
    """
    commands = read(text, title, script)
    if not commands:
        raise InputError(f"{title}: it runs no program whose options could be read")
    return [_of_command(each, title, text) for command in commands for each in command.rounds()]


def _of_command(command: Command, title: str, text: str) -> Source:
    """The options of one command."""
    start = _program(command.words)
    words, more = command.words[start:], command.more
    ends = [place for place, word in enumerate(words) if word == "--"]
    if start and ends and words[ends[0] + 1 :] and words[ends[0] + 1][:1] == "-":
        # argparse reads no options behind it.
        words, more = words[: ends[0]], [*more, shlex.join(words[ends[0] :])]
    named = options_of(words)
    if len(command.lists) > 1:
        named = _among(named, [options_of(words[_program(words) :]) for words in command.lists])
    options = [
        (name, value)
        for name, value in named
        if (value or name.startswith("--"))
        and (name[:1] == "-" or "$" in value or not CLAUSE.search(f"{name}={value}"))
    ]
    runs = " ".join(word for word in command.words if not _OPTION.match(word))
    first, *others = command.words[start:]
    program = (
        f"{first} {others[0]}" if not start and _IS_NAME.fullmatch("".join(others[:1])) else first
    )
    called = f"{title}, line {command.caller}: {program}"
    if command.path is not None and str(command.path) != title:
        called += f" ({command.path.name}, line {command.line})"
    own = Source(
        title,
        options,
        runs,
        text=text,
        program=program,
        line=command.caller,
        place=called,
        broken=command.broken or bool(_APART.search("\n".join(words))),
        more=more,
    )
    held = Source(title)
    for name, value in named:
        # Only data files: a script might name itself.
        asked = plain(name) in FILES and value.endswith(_CONFIGS)
        if asked or (not value and name.endswith(_CONFIGS)):
            word = value if asked else name
            # The run itself would put a folder before it.
            place = place_of(re.sub(r"^.*[$)][^/]*/", "", word), command.folders)
            if place or asked:
                held = held.then(of_file(place) if place else Source(title, missing=[word]))
    return held.then(own)


def _program(words: Sequence[str]) -> int:
    """The place of the program among words, behind those that only launch it."""
    launcher = words[0].rpartition("/")[2]
    if not (launcher in LAUNCHERS or launcher.startswith(("python", "$"))):
        return 0
    start = words.index("--") + 1 if "--" in words[:-1] and launcher == "ray" else 0
    for place, word in enumerate(words[start:], start):
        if word in ("-m", "--module") and words[place + 1 :]:
            if not _LAUNCHES.fullmatch(words[place + 1]):
                return place + 1
        elif word.endswith(".py") and not re.match("-|.*=", word):
            return place
    return start


def _among(written: Named, ways: Sequence[Named]) -> Named:
    """The options of a command that may go on in several ways: certain are those that all ways share."""
    shown = dict(written)
    values = [dict(way) for way in ways]
    found: Named = []
    for name in dict.fromkeys(name for way in ways for name, _ in way):
        own = dict.fromkeys(each.get(name, "") for each in values)
        certain = len(own) == 1 and all(name in each for each in values)
        text = shown.get(name, "")
        unknown = text if "$" in text else f"$({' or '.join(value or 'nothing' for value in own)})"
        found.append((name, next(iter(own)) if certain else unknown))
    return found


def _of_data(read: Callable[[Path], Any]) -> Callable[[Path], Source]:
    return lambda path: Source(str(path), of_sections(path, read(path)))


def _json(path: Path) -> Any:
    return json_value(read_text(path, MOST_OPTIONS), path)


def _of_toml(path: Path) -> Source:
    text = read_text(path, MOST_OPTIONS)
    try:
        return Source(str(path), of_sections(path, tomllib.loads(text)))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not TOML: {error}") from None


_CONFIGS = (*YAML, ".toml", ".json")

_CODE: dict[str, Callable[[Path], list[Source]]] = {".py": of_python, ".ipynb": of_notebook}

_READERS: dict[str, Callable[[Path], Source]] = {
    **dict.fromkeys(YAML, of_yaml),
    ".json": _of_data(_json),
    ".toml": _of_toml,
    **dict.fromkeys((".bin", ".pt", ".pkl"), _of_data(read_pickle)),
}

_OPTION = re.compile(r"-|[\w.+~]*=")
_APART = re.compile(r"(?m)^=|^[\w.+~]+=\n[\w.]+$")
"""An option whose sign of equality has a space beside it, so that it is two words."""
_IS_NAME = re.compile(r"[A-Za-z]\w*")
_LAUNCHES = re.compile(r"torch\.distributed\.(run|launch)|accelerate\.[\w.]+|deepspeed[\w.]*")
"""Modules that launch a program."""
