"""Each page that runs, as a notebook to take away: written when the site is built, linked from the page.

Pages that say ``needs: [torch, ...]`` in their front matter and do not find it show their code and are
not run.
"""

from __future__ import annotations

import re
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from myst_nb.core.read import is_myst_markdown_notebook, read_myst_markdown_notebook
from sphinx.application import Sphinx

FOLDER = "notebooks"

SETUP = """\
# Works in a clone of ustat_pg, in any of its folders: `pip install -e ".[figures]"` first.
import sys
from pathlib import Path

here = Path.cwd()
clones = [folder for folder in (here, *here.parents) if (folder / "theory/_ext").is_dir()]
if not clones:
    raise SystemExit(f"{here} is in no clone of ustat_pg: put this notebook into one")
sys.path[:0] = [str(clones[0]), str(clones[0] / "theory/_ext")]
%matplotlib inline\
"""

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


def missing(text: str) -> list[str]:
    """What a page needs and is not installed."""
    found = re.match(r"---\n.*?^needs: \[(.*?)\]$.*?^---$", text, re.S | re.M)
    names = found[1].split(", ") if found else []
    return [name for name in names if find_spec(name) is None]


def _details(match: re.Match[str]) -> str:
    return f"<details><summary>{match[1]}</summary>\n\n{match[2]}\n</details>"


def expand(text: str, macros: dict[str, str]) -> str:
    """TeX without the site's macros, of none or one argument."""
    for name, meaning in macros.items():
        places = [m.start() for m in re.finditer(re.escape(name) + r"(?![a-zA-Z])", text)]
        for start in reversed(places):  # inner ones first
            end = start + len(name)
            written = f"{{{meaning}}}"
            if "#1" in meaning:
                stop, depth = end + 1, 1
                while depth:
                    depth += {"{": 1, "}": -1}.get(text[stop], 0)
                    stop += 1
                written, end = meaning.replace("#1", text[end + 1 : stop - 1]), stop
            text = text[:start] + written + text[end:]
    return text


def plain(text: str, page: str, macros: dict[str, str]) -> str:
    """Markdown that Jupyter shows, from MyST's: no directives, no roles, no links into the sources."""
    text = re.sub(r"^:::\{dropdown\} (.*?)\n(.*?)^:::$", _details, text, flags=re.S | re.M)
    text = re.sub(
        r"^:::\{admonition\} (.*?)\n(?::\w+:.*\n)*(.*?)^:::$",
        r"**\1.** \2",
        text,
        flags=re.S | re.M,
    )
    text = re.sub(
        r"^:::\{(warning|note)\}\n(.*?)^:::$",
        lambda found: f"**{found[1].title()}.** {found[2]}",
        text,
        flags=re.S | re.M,
    )
    text = re.sub(
        r"^:::\{figure\} \S+\n(?::alt: (.*?)\n)?(?::\w+:.*\n)*(.*?)^:::$",
        r"*Figure, on the page: \1*\n\2",
        text,
        flags=re.S | re.M,
    )
    text = re.sub(r"^```\{toctree\}\n.*?^```$", "", text, flags=re.S | re.M)
    labels = re.findall(r"^\$\$ \((eq-[\w-]+)\)$", text, re.M)
    for label in labels:
        text = text.replace(f"$$ ({label})", f"\\tag{{{label[3:]}}}\n$$")
    text = re.sub(r"\{eq\}`eq-([\w-]+)`", r"(\1)", text)
    text = re.sub(r"\{py:\w+\}`~?([\w.]+)`", r"`\1`", text)
    text = expand(text, macros)
    return re.sub(r"\]\(((?:\.\./)?[\w/]+)\.md(#[\w-]*)?\)", r"](../\1.html\2)", text)


def notebook(text: str, page: str, macros: dict[str, str]) -> nbformat.NotebookNode:
    """The notebook of a page, not yet run."""
    made = read_myst_markdown_notebook(text)
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = plain(cell.source, page, macros)
        elif "\ngraded(" in cell.source:
            cell.source = f'from exercise import exercise\n\nexercise("{page}")'
        cell.metadata = nbformat.from_dict({})
    setup = nbformat.v4.new_code_cell(SETUP)
    made.cells.insert(0, setup)
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
    nbformat.write(notebook(text, page, app.config.prerendered_math_macros), target)
    if names := missing(text):
        text = text.replace("file_format: mystnb\n", OFF, 1)
        note = NOT_RUN.format(missing=" and ".join(names))
        source[0] = re.sub(
            r"^(# .*\n)", lambda found: f"{found[1]}\n{note}", text, count=1, flags=re.M
        )
        print(f"{page}: not run, for want of {' and '.join(names)}", flush=True)


def told(app: Sphinx, document: nodes.document) -> None:
    """Link a page to its notebook, and print a line of it."""
    page = app.env.docname
    if not page.startswith("api/"):
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
    """Before a page is parsed, and after."""
    app.connect("source-read", read)
    app.connect("doctree-read", told)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
