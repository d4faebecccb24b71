"""Docstrings of this project are plain text with Unicode formulas: the library reference keeps them.

An equation that stands indented keeps its lines; stars and bars of formulas are no markup. The page
of a package says what can be imported from the package itself.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

SECTION = re.compile(r"(Arguments|Args|Attributes|Example|Examples|Note|Raises|Returns|Yields):$")
ONE_LINERS = {"attribute", "data", "property"}
MARKUP = re.compile(
    r"(``.*?``|:[\w:]+:`.*?`|`[^`]*`_?|\*\*\w(?:[^*]*\w)?\*\*|(?<![\w*])\*\w(?:[^*]*\w)?\*(?![\w*]))"
)


def read_plainly(
    app: Sphinx, what: str, name: str, obj: Any, options: object, lines: list[str]
) -> None:
    """Turn indented blocks into literal ones and escape what reStructuredText would misread."""
    out: list[str] = []
    block: list[str] = []
    section = quoted = doctest = False

    def flush() -> None:
        while block and not block[-1].strip():
            block.pop()
        if block:
            out.extend(["", ".. code-block:: text", "   :class: formula", "", *block, ""])
            block.clear()

    for line in lines:
        bare = line.strip()
        indented = line.startswith("    ")
        if bare and not indented:
            flush()
            section = bool(SECTION.match(bare))
            quoted = bare.endswith("::")
        doctest = bare.startswith(">>>") or (doctest and bool(bare))
        after_blank = not out or not out[-1].strip()
        if quoted and indented:
            out.append(line)
        elif (block and (indented or not bare)) or (
            indented and after_blank and not section and not doctest
        ):
            block.append(line)
        else:
            out.append(line if doctest else plain(line))
    flush()
    if what == "module":
        out.extend(imports(name, obj))
    lines[:] = out
    if what in ONE_LINERS:
        app.env.temp_data[f"plain {name}"] = list(out)


def undo_types(
    app: Sphinx, what: str, name: str, obj: Any, options: object, lines: list[str]
) -> None:
    """Put back what napoleon took for a type: the words before the colon of a one-line docstring."""
    if what in ONE_LINERS:
        lines[:] = app.env.temp_data.pop(f"plain {name}", lines)


def resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, contnode: nodes.Element
) -> nodes.Element | None:
    """Link a name that a docstring uses as Python would find it: imported, or passed on by a package.

    Of what two modules define it is the one that the docstring's module has; else it is not guessed,
    and stays the warning that it is.
    """
    if node.get("refdomain") != "py":
        return None
    before, _, last = node["reftarget"].rpartition(".")
    objects = env.get_domain("py").objects
    homes = [n for n, entry in objects.items() if n.endswith(f".{last}") and not entry.aliased]
    if len(homes) > 1:
        thing = held(before or node.get("py:module") or "", last)
        homes = [
            n for n in homes if thing is not None and held(n.rpartition(".")[0], last) is thing
        ]
    if len(homes) != 1:
        return None
    entry = objects[homes[0]]
    return make_refnode(
        app.builder, node["refdoc"], entry.docname, entry.node_id, contnode, homes[0]
    )


def held(module: str, name: str) -> Any:
    """What a module calls by a name; None where it has none, or is no module."""
    try:
        return getattr(import_module(module), name, None)
    except (ImportError, ValueError):
        return None


def plain(line: str) -> str:
    """Escape the stars, bars and trailing underscores that are not markup."""
    parts = MARKUP.split(line)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(r"(?<!\\)([*|])", r"\\\1", parts[index])
        parts[index] = re.sub(r"(?<=\w)_(?!\w)", r"\\_", parts[index])
    # "G." alone would number a list.
    return re.sub(r"((?:^|: ) *)([A-Za-z]\.)(?=\s|$)", r"\1\\\2", "".join(parts))


def imports(name: str, module: Any) -> list[str]:
    """Say which names a package passes on from its modules, with a link to each."""
    links = []
    for public in getattr(module, "__all__", ()):
        home = getattr(getattr(module, public), "__module__", name)
        if isinstance(home, str) and home.startswith(f"{name}."):
            kind = "class" if inspect.isclass(getattr(module, public)) else "func"
            links.append(f":py:{kind}:`{public} <{home}.{public}>`")
    return ["", "To be imported from here: " + ", ".join(links) + ".", ""] if links else []


def drop_stale(app: Sphinx) -> None:
    """Remove the stubs of modules that are gone: Sphinx would look for them."""
    for stub in (Path(app.srcdir) / "api" / "generated").glob("*.rst"):
        try:
            found = find_spec(stub.stem)
        except ModuleNotFoundError:
            found = None
        if found is None:
            stub.unlink()


def setup(app: Sphinx) -> dict[str, Any]:
    """Run before napoleon, which reads the sections."""
    app.connect("builder-inited", drop_stale, priority=100)
    app.connect("autodoc-process-docstring", read_plainly, priority=100)
    app.connect("autodoc-process-docstring", undo_types, priority=900)
    app.connect("missing-reference", resolve)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
