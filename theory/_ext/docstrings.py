"""Docstrings of this project are plain text with Unicode formulas: napoleon reads their sections, and an
indented equation keeps its lines.
"""

from __future__ import annotations

import re
from pkgutil import resolve_name
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

SECTION = re.compile(r"(Arguments|Attributes|Example|Examples|Note|Raises|Returns|Yields):$", re.M)
FORMULA = ".. code-block:: text\n   :class: formula\n\n"
ONE_LINERS = {"attribute", "data", "property"}


def keep_formulas(
    app: Sphinx, what: str, name: str, obj: Any, options: object, lines: list[str]
) -> None:
    """Make indented paragraphs literal, and bars of formulas no markup."""
    paragraphs: list[str] = []
    section = literal = formula = False
    for paragraph in re.split(r"\n{2,}", "\n".join(lines)):
        indented = paragraph.startswith("    ")
        if not indented:
            section, literal = bool(SECTION.match(paragraph)), paragraph.endswith("::")
        before, formula = formula, indented and not section and not literal
        if formula and not before:
            paragraph = FORMULA + paragraph
        elif not (formula or (indented and literal) or paragraph.startswith(">>>")):
            paragraph = re.sub(r"(``.*?``)|\|", lambda match: match[1] or r"\|", paragraph)
        paragraphs.append(paragraph)
    lines[:] = [*"\n\n".join(paragraphs).split("\n"), ""]
    app.env.temp_data["docstring"] = list(lines)


def undo_types(
    app: Sphinx, what: str, name: str, obj: Any, options: object, lines: list[str]
) -> None:
    """Put back what napoleon takes for a type: the words before a colon in an attribute's docstring."""
    if what in ONE_LINERS:
        lines[:] = app.env.temp_data["docstring"]


def resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, contnode: nodes.Element
) -> nodes.Element | None:
    """Link a name as Python would find it: imported, or passed on by a package.

    Where several modules define the name, the link goes to the one that the docstring's module imports.
    """
    if node.get("refdomain") != "py":
        return None
    before, _, last = node["reftarget"].rpartition(".")
    objects = env.get_domain("py").objects
    homes = [n for n, entry in objects.items() if n.endswith(f".{last}") and not entry.aliased]
    if len(homes) > 1:
        meant = imported(before or node.get("py:module") or "", last)
        homes = [n for n in homes if meant and imported(n.rpartition(".")[0], last) is meant]
    if len(homes) != 1:
        return None
    entry = objects[homes[0]]
    return make_refnode(
        app.builder, node["refdoc"], entry.docname, entry.node_id, contnode, homes[0]
    )


def imported(module: str, name: str) -> Any:
    """The object that a module, or a class of it, has under a name; None where there is none."""
    try:
        return resolve_name(f"{module}.{name}")
    except (ImportError, AttributeError, ValueError):
        return None


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", keep_formulas, priority=100)
    app.connect("autodoc-process-docstring", undo_types, priority=900)
    app.connect("missing-reference", resolve)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
