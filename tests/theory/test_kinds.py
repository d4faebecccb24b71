"""The four kinds of pages, what each takes away, and what it does without torch."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from importlib import import_module

import nbformat
import pytest

import ustat_pg.estimators
from tests.support.hidden import hidden
from tests.support.site import ROOT, build

pytest.importorskip("myst_nb", reason="the site needs the extra theory")

SOURCE = ROOT / "theory"
EXTENSIONS = SOURCE / "_ext"
FRONT = "---\nfile_format: mystnb\nkernelspec:\n  name: python3\n{more}---\n\n# A page\n\n"
PAGES = sorted(path for path in SOURCE.rglob("*.md") if "{code-cell}" in path.read_text("utf-8"))


@pytest.fixture
def extensions(monkeypatch):
    """What reads an extension by its name."""
    monkeypatch.syspath_prepend(str(EXTENSIONS))
    return lambda name: runpy.run_path(str(EXTENSIONS / f"{name}.py"))


def test_every_page_stands_in_one_kind():
    index = (SOURCE / "index.md").read_text("utf-8")
    blocks = re.findall(r":caption: (.*)\n\n((?:\S+\n)+)```", index)
    assert [caption for caption, _ in blocks] == ["Learn", "How to", "Explain", "Reference"]
    listed = [page for _, pages in blocks for page in pages.split()]
    written = {
        str(path.relative_to(SOURCE).with_suffix(""))
        for path in SOURCE.rglob("*.md")
        if path.name != "index.md" or path.parent.name == "api"
    }
    assert sorted(listed) == sorted(written)


def test_the_reference_begins_with_what_a_user_imports():
    text = (SOURCE / "api" / "index.md").read_text("utf-8").partition("\n## Every module")[0]
    blocks = re.findall(r"`from (\S+) import \.\.\.`.*?:nosignatures:\n\n(.*?)\n```", text, re.S)
    named = {module: re.findall(rf"^   ~{module}\.(\w+)$", names, re.M) for module, names in blocks}
    assert sum(map(len, named.values())) == text.count("   ~")
    assert {"ustat_pg", "ustat_pg.testing", "ustat_pg.estimators"} <= set(named)
    for module, names in named.items():
        if module == "ustat_pg.llm":
            pytest.importorskip("trl")
        held = import_module(module)
        assert [name for name in names if not hasattr(held, name)] == [], module
    assert set(ustat_pg.__all__) - {"__version__"} == set(named["ustat_pg"])
    called = {name for name in ustat_pg.estimators.__all__ if not name.isupper()}
    assert called == set(named["ustat_pg.estimators"])
    tested = {name for name in ustat_pg.testing.__all__ if name.startswith("assert_")}
    assert tested <= set(named["ustat_pg.testing"])


def test_every_number_that_is_logged_is_explained():
    pytest.importorskip("trl")
    from ustat_pg.llm.monitor import NoiseEstimate

    text = (SOURCE / "metrics.md").read_text("utf-8")
    names = [
        name
        for name in NoiseEstimate.__annotations__
        if not name.endswith(("_se", "_interval", "not_known"))
    ]
    assert len(names) >= 7
    assert all(f"`noise/{name}`" in text for name in names), names
    from ustat_pg.predictions import MsePrediction

    known = [name for name in MsePrediction.__annotations__ if name != "table"]
    assert all(f"`{name}`" in text for name in known), known


# ---------------------------------------------------------------- notebooks


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_notebook_is_plain_markdown(extensions, path):
    macros = {"E": r"\mathbb{E}", "norm": [r"\lVert #1 \rVert", 1]}
    page = str(path.relative_to(SOURCE).with_suffix(""))
    made = extensions("notebooks")["notebook"](path.read_text("utf-8"), page, macros)
    nbformat.validate(made)
    prose = "\n".join(cell.source for cell in made.cells if cell.cell_type == "markdown")
    for raw in (":::{", "{eq}`", "{py:", "```{", "{figure}"):
        assert raw not in prose
    assert made.cells[0].source == (
        r"$\newcommand{\E}{\mathbb{E}}\newcommand{\norm}[1]{\lVert #1 \rVert}$"
    )
    code = [cell.source for cell in made.cells if cell.cell_type == "code"]
    assert len(code) == 1 + path.read_text("utf-8").count("{code-cell}")
    assert not any("graded(" in cell for cell in code), "the answer stands beside the question"


def test_a_notebook_runs_in_a_clone_and_says_where_not(extensions, tmp_path):
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    text = (SOURCE / "mse.md").read_text("utf-8")
    made = extensions("notebooks")["notebook"](text, "mse", {})
    client = NotebookClient(made, resources={"metadata": {"path": str(ROOT / "theory")}})
    client.execute()
    printed = [o.text for cell in made.cells for o in cell.get("outputs", []) if "text" in o]
    assert any("enumerated" in text for text in printed)
    made.cells = made.cells[:2]
    elsewhere = NotebookClient(made, resources={"metadata": {"path": str(tmp_path)}})
    with pytest.raises(CellExecutionError, match="in no clone of ustat_pg"):
        elsewhere.execute()


# ---------------------------------------------------------------- without torch


@pytest.fixture
def without_torch(tmp_path, monkeypatch):
    """A place in which no process finds torch or TRL."""
    monkeypatch.setenv("PYTHONPATH", hidden(tmp_path, "torch", "trl", "transformers"))
    return tmp_path


def test_a_page_that_needs_torch_is_shown_and_not_run(without_torch):
    source = without_torch / "theory"
    source.mkdir()
    for name in ("_ext", "_static", "_templates"):
        shutil.copytree(SOURCE / name, source / name)
    (without_torch / "simulations").symlink_to(ROOT / "simulations")
    shutil.copy(SOURCE / "conf.py", source)
    shutil.copy(SOURCE / "mutants.json", source)
    index = FRONT.format(more="needs: [torch]\n") + "```{code-cell} ipython3\nimport torch\n```\n"
    (source / "index.md").write_text(index + "\n```{toctree}\nother\n```\n", "utf-8")
    other = FRONT.format(more="needs: [numpy]\n") + "```{code-cell} ipython3\n6 * 7\n```\n"
    (source / "other.md").write_text(other, "utf-8")
    done = build(source, without_torch / "site")
    assert done.returncode == 0, done.stderr
    assert "index: not run, for want of torch" in done.stdout
    assert re.search(r"\d s +other$", done.stdout, re.M)
    page = (without_torch / "site" / "index.html").read_text("utf-8")
    assert "Not run here" in page
    assert "import" in page
    assert "Not run here" not in (without_torch / "site" / "other.html").read_text("utf-8")


def test_the_other_pages_import_without_torch(without_torch):
    """Whatever a page imports at the top of a cell, it finds without torch, or says that it needs it."""
    lines = ["import sys", f"sys.path.insert(0, {str(EXTENSIONS)!r})"]
    for path in PAGES:
        text = path.read_text("utf-8")
        if re.match(r"---\n.*?^needs: ", text, re.S | re.M):
            continue
        for cell in re.findall(r"```\{code-cell\} ipython3\n(.*?)```", text, re.S):
            lines += re.findall(
                r"^(?:from \S+ import (?:\([^)]*\)|[^(\n]+)|import .+)$", cell, re.M
            )
    assert len(lines) > 100
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(dict.fromkeys(lines))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
