"""Each page that runs, as a notebook to take away: written when the site is built, linked from the page.

A notebook carries what its cells take from the repository, and asks for nothing but the library. Pages that
say ``needs: [torch, ...]`` in their front matter and do not find it show their code and are not run.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import time
from base64 import b64encode, b85encode
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from itertools import count
from pathlib import Path
from tarfile import TarInfo
from tarfile import open as open_tar
from typing import Any
from urllib.parse import quote, urlsplit

import nbformat
from docutils import nodes
from docutils.parsers.rst.directives.admonitions import Admonition, Note
from docutils.parsers.rst.directives.images import Figure
from markdown_it.renderer import RendererHTML
from myst_nb.core.read import is_myst_markdown_notebook, read_myst_markdown_notebook
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.directives import parse_directive_text
from myst_parser.parsers.mdit import create_md_parser
from sphinx.application import Sphinx

FOLDER = "notebooks"

ROOT = Path(__file__).resolve().parents[2]

SETUP = """\
# This page needs the library{needs}.
import os
import sys
from base64 import b85decode
from importlib.util import find_spec
from io import BytesIO
from tarfile import open as open_tar
from tempfile import mkdtemp

os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
if not find_spec("ustat_pg"):
    {install}
elif not all(map(find_spec, {packages})):
    %pip install --quiet "ustat_pg[{extras}]"
if CARRIED := {carried}:
    sys.path.insert(0, mkdtemp())
    for packed in CARRIED:
        open_tar(fileobj=BytesIO(b85decode(packed))).extractall(sys.path[0], filter="data")
    sys.path.insert(0, sys.path[0] + "/theory/_ext")
%matplotlib inline\
"""
"""The first cell of a notebook: it finds the library, and unpacks what else the page takes."""

MISSING = (
    'raise SystemExit("install ustat_pg first: pip install PATH, of a clone or a wheel of it")'
)

PACKAGES = {"figures": ["matplotlib", "seaborn"], "proof": ["sympy"], "llm": ["torch", "trl"]}
"""What the library's extras install, of what pages import."""

CARRIED = {".py", ".js", ".toml", ".csv", ".md"}
"""The files that cells read; others are made from them."""

CLONES_OWN = r'(?:^from |^import |/ ")(simulations|figures|slider|exercise|examples)\b'
"""What cells import, or read, that is not installed with the library."""

FORGES = {
    "github.com": {
        "Colab": "https://colab.research.google.com/github/{path}/blob/notebooks/{file}",
        "Binder": "https://mybinder.org/v2/gh/{path}/notebooks?labpath={file}",
    },
    "gitlab.com": {
        "Binder": "https://mybinder.org/v2/gl/{quoted}/notebooks?labpath={file}",
    },
}
"""Where notebooks open at once: from the branch ``notebooks``, to which the workflow that publishes writes
those of the site.
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


FRONT = r"---\n.*?^needs: \[(.*?)\]$.*?^---$"
"""The front matter of a page that needs more than the library."""


@cache
def repository() -> str:
    """The repository's address: what USTAT_REPOSITORY says, or git of its origin; "" where none is public."""
    git = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    said = os.environ.get("USTAT_REPOSITORY")
    if said is None:
        said = subprocess.run(git, capture_output=True, text=True, check=False).stdout
    parts = urlsplit(re.sub(r"^(?:ssh://)?git@([\w.-]+)[:/]", r"https://\1/", said.strip()))
    # Without the name and the password that an address may have.
    path = parts.path.strip("/").removesuffix(".git")
    return f"https://{parts.hostname}/{path}" if parts.scheme in {"http", "https"} and path else ""


def buttons(file: str) -> dict[str, str]:
    """Where a notebook opens without being downloaded, by name."""
    parts = urlsplit(repository())
    path = parts.path.strip("/")
    names = {"path": path, "quoted": quote(path, safe=""), "file": file}
    return {name: form.format(**names) for name, form in FORGES.get(parts.netloc, {}).items()}


def missing(text: str) -> list[str]:
    """The packages that a page needs and are not installed."""
    needs = re.match(FRONT, text, re.S | re.M)
    names = needs[1].split(", ") if needs else []
    return [name for name in names if find_spec(name) is None]


# ---------------------------------------------------------------- text

PARSER = create_md_parser(
    MdParserConfig(enable_extensions={"colon_fence", "deflist", "dollarmath"}), RendererHTML
)

PLAIN = (
    (r"\{eq\}`eq-([\w-]+)`", r"(\1)"),
    (r"\{py:\w+\}`~?([\w.]+)`", r"`\1`"),
    (r"\]\(((?:\.\./)?[\w/]+)\.md(#[\w-]*)?\)", r"](../\1.html\2)"),
)
"""Roles and links into the sources, and what Jupyter shows in their places."""


def plain(text: str) -> str:
    """Markdown that Jupyter shows, from MyST's."""
    lines, shown, at = text.splitlines(), [], 0
    for token in PARSER.parse(text):
        name = re.match(r"\{([\w-]+)\} *(.*)", token.info)
        label = token.type == "math_block_label"
        if not (name or label or token.type in {"fence", "myst_target"}):
            continue
        first, last = token.map
        shown.append(_roles(lines[at:first]))
        if label:
            shown += [*lines[first : last - 1], rf"\tag{{{token.info.removeprefix('eq-')}}}", "$$"]
        elif name:
            shown += _directive(name[1], name[2], token.content)
        elif token.type == "fence":
            shown += lines[first:last]
        at = last
    return "\n".join([*shown, _roles(lines[at:])])


def _roles(lines: list[str]) -> str:
    text = "\n".join(lines)
    for written, shown in PLAIN:
        text = re.sub(written, shown, text)
    return text


def _directive(name: str, title: str, content: str) -> Iterator[str]:
    """A directive's lines."""
    if name == "toctree":
        return
    known = Figure if name == "figure" else Admonition if title else Note
    parsed = parse_directive_text(known, title, content)
    body = plain("\n".join(parsed.body))
    if name == "dropdown":
        yield from (f"<details><summary>{title}</summary>", "", body, "", "</details>")
    elif name == "figure":
        yield from (f"![{parsed.options['alt']}]({title})", "", body)
    else:
        yield f"**{title or 'Note'}.** {body}"


def attach(cell: nbformat.NotebookNode, folder: Path) -> None:
    """Put the pictures that a cell of Markdown shows into the cell; as PNG, which more viewers show."""
    for place in re.findall(r"\]\(([^()\s]*\.svg)\)", cell.source):
        drawn = (folder / place).with_suffix(".png")
        file = drawn if drawn.is_file() else folder / place
        kind = "image/png" if file == drawn else "image/svg+xml"
        cell.source = cell.source.replace(f"]({place})", f"](attachment:{file.name})")
        picture = b64encode(file.read_bytes()).decode()
        cell.setdefault("attachments", {})[file.name] = {kind: picture}


# ---------------------------------------------------------------- code


def carried(page: str, names: set[str]) -> list[str]:
    """What the cells of a page take from the repository, packed: modules, and the page for its exercises."""
    places = ["theory/_ext", f"theory/{page}.md"] if names else []
    return [
        packed(tuple(part)) for part in (places, sorted(names - {"slider", "exercise"})) if part
    ]


@cache
def packed(places: tuple[str, ...]) -> str:
    """Files, and those in folders that code reads, as a text that Python unpacks."""
    found = [file for place in places for file in (ROOT / place, *(ROOT / place).rglob("*"))]
    stream = BytesIO()
    with open_tar(fileobj=stream, mode="w:xz") as archive:
        for file in sorted(found):
            if file.suffix in CARRIED:
                entry = TarInfo(file.relative_to(ROOT).as_posix())
                entry.size = file.stat().st_size
                archive.addfile(entry, BytesIO(file.read_bytes()))
    return b85encode(stream.getvalue()).decode()


def setup_cell(page: str, text: str, cells: list[str]) -> str:
    """The first cell of a page's notebook."""
    names = {name for cell in cells for name in re.findall(CLONES_OWN, cell, re.M)}
    extras = ["figures"]
    extras += ["llm"] * bool(re.match(FRONT, text, re.S | re.M))
    extras += ["proof"] * any("import sympy\n" in cell for cell in cells)
    wanted = ",".join(extras)
    address = f'%pip install --quiet "ustat_pg[{wanted}] @ git+{repository()}"'
    return SETUP.format(
        needs=f", and carries {', '.join(sorted(names))}" if names else "",
        install=address if repository() else MISSING,
        packages=[package for extra in extras for package in PACKAGES[extra]],
        extras=wanted,
        carried=carried(page, names),
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
            attach(cell, (ROOT / "theory" / page).parent)
        elif "\ngraded(" in cell.source:
            cell.source = f'from exercise import exercise\n\nexercise("{page}", {next(number)})'
        elif "\nchecked(" in cell.source:
            cell.source = unwritten(cell.source)
        # A notebook that is run as a whole goes on after a cell that is meant to fail.
        tags = {"raises-exception"} & set(cell.metadata.get("tags", ()))
        cell.metadata = nbformat.from_dict({"tags": [*tags]} if tags else {})
    code = [cell.source for cell in made.cells if cell.cell_type == "code"]
    hidden = {"jupyter": {"source_hidden": True}, "cellView": "form"}
    first = nbformat.v4.new_code_cell(setup_cell(page, text, code), metadata=hidden)
    made.cells.insert(0, first)
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
        own = f'<a href="{up}{name_of(page)}" download>Take this page as a notebook</a>'
        others = [
            f'<a href="{address}">Open it in {name}</a>'
            for name, address in buttons(Path(name_of(page)).name).items()
        ]
        line = f'<p class="notebook-link">{" · ".join([own, *others])}</p>'
        link = nodes.raw("", line, format="html")
        document.children[-1].append(link)  # type: ignore[attr-defined]


def require(app: Sphinx, failed: Exception | None) -> None:
    """Say beside the notebooks what they need, for Binder."""
    if repository() and not failed:
        needs = f"ustat_pg[figures,proof] @ git+{repository()}\n"
        (Path(app.outdir) / FOLDER / "requirements.txt").write_text(needs, "utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", require)
    app.connect("source-read", read)
    app.connect("doctree-read", link)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
