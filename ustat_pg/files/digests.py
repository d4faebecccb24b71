"""Digests: short names that identify texts and arrays, or source files, by their content."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike


def digest(*parts: str | ArrayLike | Mapping[str, ArrayLike]) -> str:
    """16 hexadecimal digits that identify texts, arrays and named arrays in their order.

    Draws are addressed by these digits: another rule would move every draw. Equal arrays have one name:
    the sign of a 0, which rounding leaves, is no part of it.

    >>> digest({"theta": [0.0, 1.0]}), digest({"theta": [-0.0, 1.0]})
    ('a1e0bf0158c876e1', 'a1e0bf0158c876e1')
    """
    state = hashlib.sha256()

    def add(array: ArrayLike) -> None:
        state.update((np.asarray(array, dtype="<f8") + 0.0).tobytes())

    for part in parts:
        if isinstance(part, str):
            state.update(part.encode())
        elif isinstance(part, Mapping):
            for name, array in part.items():
                state.update(f"{name}{np.shape(array)}".encode())
                add(array)
        else:
            add(part)
    return state.hexdigest()[:16]


def sources_of(*files: Path) -> tuple[Path, ...]:
    """Source files and all files of the project that they import, directly or indirectly, in alphabetical
    order.

    Nothing is run. Imports within functions count; imports only for type checkers do not. If a module's name
    is computed at run time, all modules of its folder count. If a name is imported from a package, its
    ``__init__`` and its stub count too.
    """
    reached: set[Path] = set()
    ahead = list(files)
    while ahead:
        if (file := ahead.pop()) not in reached:
            reached.add(file)
            ahead += imported(file)
    return tuple(sorted(reached))


def source_digest(*files: Path, salt: str = "") -> str:
    """16 hexadecimal digits that identify the content of source files and of all their imports."""
    state = hashlib.sha256(salt.encode())
    for file in sources_of(*files):
        state.update(file.relative_to(_root(file)).as_posix().encode())
        state.update(file.read_bytes())
    return state.hexdigest()[:16]


def _root(file: Path) -> Path:
    """The folder that contains the packages of a file."""
    return next(folder for folder in file.parents if not (folder / "__init__.py").exists())


@cache
def imported(file: Path) -> tuple[Path, ...]:
    """The project's files that a file imports itself."""
    above = (_root(file), *file.parents)
    places: list[Path] = []
    for node in _executed(ast.parse(file.read_bytes(), file)):
        match node:
            case ast.Import(names):
                places += [above[0].joinpath(*name.name.split(".")) for name in names]
            case ast.ImportFrom(module, names, level):
                place = above[level].joinpath(*(module or "").split("."))
                inside = [place / name.name for name in names] if place.is_dir() else []
                # A name is a module of the package, or is defined in its __init__.
                places += [*inside, place] if any(map(_is_name, inside)) or not inside else inside
            case ast.Call(ast.Name("import_module"), [ast.Constant(str(name)), *_]):
                places.append(_relative(above, name))
            case ast.Call(
                ast.Name("import_module"), [ast.JoinedStr([ast.Constant(str(name)), *_]), *_]
            ):
                folder = _relative(above, name.rpartition(".")[0] or ".")
                places += [path.with_suffix("") for path in folder.glob("*.py")]
    ends = "__init__.py", "__init__.pyi"
    files = (
        p for place in places for p in (*(place / end for end in ends), place.with_suffix(".py"))
    )
    return tuple(dict.fromkeys(path for path in files if path.is_file()))


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a tree without the blocks under ``if TYPE_CHECKING``."""
    ahead = [node]
    while ahead:
        node = ahead.pop()
        match node:
            case ast.If(ast.Name("TYPE_CHECKING"), _, otherwise):
                ahead += reversed(otherwise)
            case _:
                yield node
                ahead += reversed([*ast.iter_child_nodes(node)])


def _relative(above: Sequence[Path], name: str) -> Path:
    """The place of a module's name, of which leading dots say how far above it begins."""
    module = name.lstrip(".")
    return above[len(name) - len(module)].joinpath(*module.split("."))


def _is_name(place: Path) -> bool:
    """Whether there is no such module."""
    return not place.is_dir() and not place.with_suffix(".py").is_file()
