"""Readers of a run's files and commands; they return names and texts, and run nothing."""

from __future__ import annotations

import ast
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..files.reading import read_json, read_pickle, read_text
from ..validation import InputError
from .code import of_notebook, of_python
from .parts import of_yaml
from .sources import (
    ABOVE,
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
    return word.endswith(tuple(_READERS)) or (bool(re.search("[./]", word)) and is_there(word))


def of_file(path: Path) -> Source:
    """The options of a file, or of a Hydra run's folder.

    Raises:
        InputError: it cannot be read, or its kind is not known.
    """
    if path.is_dir():
        places = [path / ".hydra" / "config.yaml", path / "config.yaml"]
        found = [place for place in places if place.is_file()]
        if not found:
            raise InputError(f"{path}: Is a directory, without the .hydra/config.yaml of a run")
        path = found[0]
    source = _READERS.get(path.suffix, _of_script)(path)
    if path.suffix in (*YAML, ".toml"):
        source.text = read_text(path)
    # Weights & Biases writes it next to a run's config.yaml.
    beside = path.with_name("requirements.txt")
    if beside.is_file():
        source.text += f"\n{read_text(beside, MOST_CODE)}"
    return source


def of_commands(text: str, title: str = "the command", script: Path | None = None) -> Source:
    """The options in commands, in the variables before them, and in the files that they name."""
    variables = {} if script is None else {"0": str(script.absolute())}
    folder = Path() if script is None else script.parent
    named, runs = Named(), list[str]()
    ran: dict[str, None] = {}
    for line in _lines(text, script, variables, (), ran):
        words = [_filled(word, variables) for word in _words(line)]
        if words[:1] == [":"]:
            continue
        while words and (words[0] == "export" or _ASSIGNMENT.match(words[0])):
            name, equals, value = words.pop(0).partition("=")
            if equals:
                variables[name] = value
        named += options_of(words)
        runs.append(" ".join(word for word in words if not _OPTION.match(word)))
    if len(ran) > 1:
        raise InputError(f"{title} runs {' and '.join(ran)}: read one of them")
    options = [
        (name, value)
        for name, value in named
        if (value or name.startswith("--")) and not CLAUSE.search(f"{name}={value}")
    ]
    own = Source(title, options, "\n".join(runs), text=text)
    held = Source(title)
    for name, value in named:
        # Only data files: a script might name itself.
        asked = plain(name) in FILES and value.endswith(_CONFIGS)
        if asked or (not value and name.endswith(_CONFIGS)):
            word = value if asked else name
            # The run itself would put a folder before it.
            place = _place(re.sub(r"^.*[$)][^/]*/", "", word), folder)
            if place or asked:
                held = held.then(of_file(place) if place else Source(title, missing=[word]))
    return held.then(own)


def _lines(
    text: str,
    file: Path | None,
    variables: dict[str, str],
    above: tuple[Path, ...],
    ran: dict[str, None],
) -> Iterator[str]:
    """The lines of commands, with sums and names of files computed, and the lines of the scripts that they
    source or run, which are added to ``ran``.
    """
    for line in _COMMENT.sub(" ", text.replace("\\\n", " ")).splitlines():
        if file is not None:
            line = _SOURCE.sub(lambda _: str(file.absolute()), line)
        line = _SUM.sub(lambda match: _summed(match[1], variables) or match[0], line)
        worked_out = ""
        while line != worked_out:
            worked_out = line
            line = _RUN.sub(lambda match: _name_of(match[1], variables) or match[0], line)
        words = _words(line) if file and _RUNS.search(line) else []
        before = list(takewhile(lambda word: _ASSIGNMENT.match(word) or word == "exec", words))
        match words[len(before) :]:
            case [("source" | "." | "bash" | "sh") as how, name, *given]:
                place = _place(_filled(name, variables), file.parent) if file else None
            case _:
                place = None
        if not place or place.suffix not in _SCRIPTS or place in above:
            yield line
            continue
        yield shlex.join(word for word in before if word != "exec")
        caller = variables["0"]
        if how in ("bash", "sh"):
            variables["0"] = str(place.absolute())
            ran |= {} if above else {str(place): None}
        inner = read_text(place, MOST_CODE)
        yield from _lines(inner, place, variables, (*above, place), ran)
        variables["0"] = caller
        yield shlex.join(given)


def _name_of(command: str, variables: dict[str, str]) -> str | None:
    """The output of a command on the name of a file; None for any other command."""
    words = [_filled(word, variables) for word in _words(command)]
    match [word for word in words if word not in ("--", "&>", ">", "/dev/null")]:
        case ["dirname", name]:
            return str(Path(name).parent)
        case ["basename", name, *suffix]:
            return Path(name).name.removesuffix("".join(suffix))
        case ["realpath", name] | ["cd", name, "&&", "pwd"]:
            return os.path.normpath(name)
        case ["echo", name, "|", "sed", *extended, edit] if parts := _EDIT.fullmatch(edit):
            pattern = parts["old"] if extended else re.escape(parts["old"])
            try:
                return re.sub(pattern, lambda _: parts["new"], name, count=1)
            except re.error:
                return None
    return None


def _words(line: str) -> list[str]:
    """The words of a shell line up to a comment; a comment begins a word."""
    try:
        words = shlex.split(line)
    except ValueError:
        # A quote over several lines contains no options.
        words = line.split()
    return list(takewhile(lambda word: not word.startswith("#"), words))


def _filled(word: str, variables: dict[str, str]) -> str:
    """A word in which variables are replaced by their values, as in the shell."""

    def value(match: re.Match[str]) -> str:
        name = match["plain"] or match["name"]
        known = variables.get(name) or match["default"]
        if known and match["how"] and match["how"].endswith("="):
            variables[name] = known
        return match[0] if known is None else known

    return _VARIABLE.sub(value, word)


def _summed(text: str, variables: Mapping[str, str]) -> str | None:
    """The value of ``$((...))``; None if it has more than whole numbers and signs."""
    text = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda match: variables.get(match[1], match[0]), text)
    try:
        return str(_computed(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, KeyError):
        return None


_SIGNS: dict[type, Callable[[int, int], int]] = {
    ast.Add: int.__add__,
    ast.Sub: int.__sub__,
    ast.Mult: int.__mul__,
    ast.Div: int.__floordiv__,
    ast.Mod: int.__mod__,
}


def _computed(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp):
        return _SIGNS[type(node.op)](_computed(node.left), _computed(node.right))
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 2**31:
        return node.value
    raise ValueError


def _of_data(read: Callable[[Path], Any]) -> Callable[[Path], Source]:
    return lambda path: Source(str(path), of_sections(path, read(path)))


def _of_one(read: Callable[[Path], list[Source]]) -> Callable[[Path], Source]:
    def one(path: Path) -> Source:
        sources = read(path)
        if len(sources) > 1:
            lines = ", ".join(source.title.rpartition(" ")[2] for source in sources)
            raise InputError(
                f"{path}: it has {len(sources)} configs, in lines {lines}: write the options"
            )
        return sources[0]

    return one


def _of_script(path: Path) -> Source:
    return of_commands(read_text(path, MOST_CODE), str(path), path)


def _of_toml(path: Path) -> Source:
    text = read_text(path, MOST_CODE)
    try:
        return Source(str(path), of_sections(path, tomllib.loads(text)))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not TOML: {error}") from None


def _place(name: str, folder: Path) -> Path | None:
    """A file that another file names: in its folder, in a folder above it, or in the working directory."""
    above = [folder, *folder.absolute().parents[:ABOVE], Path()]
    return next((place / name for place in above if (place / name).is_file()), None)


_CONFIGS = (*YAML, ".toml", ".json")

_READERS: dict[str, Callable[[Path], Source]] = {
    **dict.fromkeys(YAML, of_yaml),
    ".json": _of_data(read_json),
    ".toml": _of_toml,
    ".sh": _of_script,
    ".py": _of_one(of_python),
    ".ipynb": _of_one(of_notebook),
    **dict.fromkeys((".bin", ".pt", ".pkl"), _of_data(read_pickle)),
}

_COMMENT = re.compile("`#[^`]*`")
"""A comment inside a command."""

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_OPTION = re.compile(r"-|[\w.+~]*=")
_SOURCE = re.compile(r"\$\{?BASH_SOURCE(\[0\])?\}?")
_RUNS = re.compile(r"(^|\s)(source|\.|bash|sh)\s")
_SCRIPTS = (".sh", ".env", ".bash")
"""Endings of scripts that other scripts run."""
_EDIT = re.compile(r"s(?P<by>[#/|,])(?P<old>[\w/.()|$^-]*)(?P=by)(?P<new>[\w/.-]*)(?P=by)")
"""A replacement by sed without repetition, so it ends at once."""
_RUN = re.compile(r"\$\(((?:[^()']|'[^']*')*)\)")
_SUM = re.compile(r"\$\(\(([^()]*)\)\)")
_VARIABLE = re.compile(
    r"\$(?:(?P<plain>\w+)|\{(?P<name>\w+)(?:(?P<how>:?[-=])(?P<default>[^}]*))?\})"
)
