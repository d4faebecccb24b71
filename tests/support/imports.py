"""Which files a file needs, by what their text imports."""

from __future__ import annotations

import ast


def imported(file):
    """The library's files that a file imports, functions' own imports too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        place = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
        yield place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        yield from (place / f"{name.name}.py" for name in node.names)


def reached(files, known=()):
    """These files and all that they import, directly or not; known ones are not opened."""
    found, ahead = set(known), list(files)
    while ahead:
        file = ahead.pop()
        if file not in found and file.is_file():
            found.add(file)
            ahead += imported(file)
    return found
