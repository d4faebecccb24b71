"""Each page that runs, as a notebook to take away: written when the site is built, linked from the page.

Pages that say ``needs: [torch, ...]`` in their front matter and do not find it show their code and are
not run.
"""

from __future__ import annotations

import ast
import re
import time
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from myst_nb.core.read import is_myst_markdown_notebook, read_myst_markdown_notebook
from sphinx.application import Sphinx

FOLDER = "notebooks"

SETUP = """\
# This page needs the library{needs}.
CLONE = ""  # the address or the path of a clone of ustat_pg, where this notebook lies in none

import sys
from importlib.util import find_spec
from pathlib import Path

if CLONE and not Path(CLONE).is_dir():
    !git clone --quiet --depth 1 {{CLONE}} clone_of_ustat_pg
    CLONE = "clone_of_ustat_pg"
installed = find_spec("ustat_pg")
places = [Path.cwd(), *Path.cwd().parents, *(Path(installed.origin).parents if installed else ())]
clones = [place for place in (Path(CLONE), *places) if (place / "theory/_ext").is_dir()]
if {without}not clones:
    raise SystemExit("write the address or the path of a clone of ustat_pg after CLONE, above")
if not installed:
    %pip install --quiet "{{clones[0].resolve()}}[{extras}]"
sys.path[:0] = [str(place.resolve() / more) for place in clones[:1] for more in ("", "theory/_ext")]
%matplotlib inline\
"""
"""The first cell of a notebook: it finds the library and, where the page needs more, the clone."""

CLONES_OWN = r"^(?:from|import) (simulations|figures|slider|exercise)\b"
"""What cells import that is not installed with the library."""

NOT_RUN = """\
:::{{admonition}} Not run here
:class: note
This site was built without {missing}. The code of this page is shown, and not its output: `make site` \
installs what is missing and runs it.
:::
"""


OFF = """\
file_format: mystnb
mystnb:
  execution_mode: "off"
language_info:
  name: python
  pygments_lexer: ipython3
"""
"""The front matter of a page that is not run: a kernel would have told the language."""


FRONT = r"---\n.*?^needs: \[(.*?)\]$.*?^---$"
"""The front matter of a page that needs more than the library."""


def missing(text: str) -> list[str]:
    """The packages that a page needs and are not installed."""
    needs = re.match(FRONT, text, re.S | re.M)
    names = needs[1].split(", ") if needs else []
    return [name for name in names if find_spec(name) is None]


PLAIN = (
    (r"^:::\{dropdown\} (.*?)\n(.*?)^:::$", r"<details><summary>\1</summary>\n\n\2\n</details>"),
    (r"^:::\{admonition\} (.*?)\n(?::\w+:.*\n)*(.*?)^:::$", r"**\1.** \2"),
    (r"^:::\{(?:warning|note)\}\n(.*?)^:::$", r"**Note.** \1"),
    (r"^:::\{figure\} \S+\n(?::\w+:.*\n)*(.*?)^:::$", r"*Figure, on the page:*\n\1"),
    (r"^```\{toctree\}\n.*?^```$", ""),
    (r"^\$\$ \(eq-([\w-]+)\)$", r"\\tag{\1}\n$$"),
    (r"\{eq\}`eq-([\w-]+)`", r"(\1)"),
    (r"\{py:\w+\}`~?([\w.]+)`", r"`\1`"),
    (r"\]\(((?:\.\./)?[\w/]+)\.md(#[\w-]*)?\)", r"](../\1.html\2)"),
)
"""Directives, roles and links into the sources, and what Jupyter shows in their places."""


def plain(text: str) -> str:
    """Markdown that Jupyter shows, from MyST's."""
    for written, shown in PLAIN:
        text = re.sub(written, shown, text, flags=re.S | re.M)
    return text


def setup_cell(text: str, cells: list[str]) -> str:
    """The first cell of a page's notebook."""
    names = sorted({name for cell in cells for name in re.findall(CLONES_OWN, cell, re.M)})
    extras = ["figures"]
    extras += ["llm"] * bool(re.match(FRONT, text, re.S | re.M))
    extras += ["proof"] * any("import sympy\n" in cell for cell in cells)
    return SETUP.format(
        needs=f", and of its clone {', '.join(names)}" if names else "",
        without="" if names else "not installed and ",
        extras=",".join(extras),
    )


def unwritten(source: str) -> str:
    """A cell whose first function is left to the reader: its docstring stays, its lines go."""
    lines = source.splitlines()
    function = next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef))
    first, last = function.body[0].end_lineno, function.end_lineno
    return "\n".join([*lines[:first], "    return ...  # your lines", *lines[last:]])


def notebook(text: str, page: str) -> nbformat.NotebookNode:
    made, number = read_myst_markdown_notebook(text), count()
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = plain(cell.source)
        elif "\ngraded(" in cell.source:
            cell.source = f'from exercise import exercise\n\nexercise("{page}", {next(number)})'
        elif "\nchecked(" in cell.source:
            cell.source = unwritten(cell.source)
        cell.metadata = nbformat.from_dict({})
    code = [cell.source for cell in made.cells if cell.cell_type == "code"]
    made.cells.insert(0, nbformat.v4.new_code_cell(setup_cell(text, code)))
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number}"
    made.metadata = nbformat.from_dict(
        {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    nbformat.validate(made)
    return made


def name_of(page: str) -> str:
    """The file of a page's notebook, from the site's root."""
    return f"{FOLDER}/{page.replace('/', '-')}.ipynb"


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """Write the notebook of a page; see to it that a page which cannot run is not run."""
    app.env.ustat_started = time.monotonic()  # type: ignore[attr-defined]
    text = source[0]
    if not is_myst_markdown_notebook(text) or "{code-cell}" not in text:
        return
    target = Path(app.outdir) / name_of(page)
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook(text, page), target)
    if names := missing(text):
        text = text.replace("file_format: mystnb\n", OFF, 1)
        note = NOT_RUN.format(missing=" and ".join(names))
        source[0] = re.sub(
            r"^(# .*\n)", lambda match: f"{match[1]}\n{note}", text, count=1, flags=re.M
        )
        print(f"{page}: not run, for want of {' and '.join(names)}", flush=True)


def link(app: Sphinx, document: nodes.document) -> None:
    """Link a page to its notebook, and print a line of it."""
    page = app.env.docname
    if not page.startswith(("api/", "catalogue/")):
        seconds = time.monotonic() - app.env.ustat_started  # type: ignore[attr-defined]
        print(f"{seconds:6.1f} s  {page}", flush=True)
    if (Path(app.outdir) / name_of(page)).is_file() and document.children:
        up = "../" * page.count("/")
        link = nodes.raw(
            "",
            f'<p class="notebook-link"><a href="{up}{name_of(page)}" download>Take this page as a '
            "notebook</a></p>",
            format="html",
        )
        document.children[-1].append(link)  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", read)
    app.connect("doctree-read", link)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
