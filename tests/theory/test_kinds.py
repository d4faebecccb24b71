"""The four kinds of pages, what each takes away, and what it does without torch."""

import os
import re
import runpy
import shutil
from importlib import import_module

import pytest

import ustat_pg.testing
from simulations import STEMS
from tests.support.hidden import hidden
from tests.support.site import ROOT, build

pytest.importorskip("myst_nb", reason="the site needs the extra theory")
nbformat = pytest.importorskip("nbformat")

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
    blocks = re.findall(r":caption: (.*)\n\n((?:.+\n)+)```", index)
    assert [caption for caption, _ in blocks] == ["Learn", "How to", "Explain", "Reference"]
    first, *listed = [page for _, pages in blocks for page in pages.splitlines()]
    assert first == "Start here: 30 minutes <self>"
    written = {
        str(path.relative_to(SOURCE).with_suffix(""))
        for path in SOURCE.rglob("*.md")
        if (path.name != "index.md" or path.parent.name == "api")
        and path.parent.name != "catalogue"
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
    tested = {name for name in ustat_pg.testing.__all__ if name.startswith("assert_")}
    assert tested <= set(named["ustat_pg.testing"])


def test_every_number_that_is_logged_is_explained():
    pytest.importorskip("trl")
    from ustat_pg.llm.trl.monitor import NoiseEstimate

    text = (SOURCE / "metrics.md").read_text("utf-8")
    names = [*NoiseEstimate.__annotations__, "budget_over_critical"]
    assert all(f"`noise/{name}`" in text for name in names), names
    from ustat_pg.predictions import MsePrediction

    known = [name for name in MsePrediction.__annotations__ if name != "table"]
    assert all(f"`{name}`" in text for name in known), known


# ---------------------------------------------------------------- notebooks


@pytest.fixture(scope="module")
def notebook():
    """What makes the notebook of a page, by its text and its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXTENSIONS))
        return runpy.run_path(str(EXTENSIONS / "notebooks.py"))["notebook"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_notebook_is_plain_markdown(notebook, path):
    page = str(path.relative_to(SOURCE).with_suffix(""))
    text = path.read_text("utf-8")
    made = notebook(text, page)
    nbformat.validate(made)
    prose = "\n".join(cell.source for cell in made.cells if cell.cell_type == "markdown")
    for raw in (":::{", "{eq}`", "{py:", "```{", "{figure}"):
        assert raw not in prose
    setup, *code = [cell.source for cell in made.cells if cell.cell_type == "code"]
    assert len(code) == text.count("{code-cell}")
    assert not any("graded(" in cell for cell in code), "the answer stands beside the question"
    assert sum("return ...  # your lines" in cell for cell in code) == text.count("\nchecked(")
    assert setup.startswith("# This page needs the library")
    for name in ("simulations", "slider", "exercise"):
        assert (name in setup.splitlines()[0]) == bool(
            re.search(rf"^(from|import) {name}\b", text, re.M)
        )


def words(text):
    """The words of Markdown, MyST's or plain, in their order; marks, roles and addresses are none."""
    text = re.sub(r"<[^<>\n]+>|\{[\w:]+\}`~?|\]\([^)\s]*\)|\\tag|eq-", " ", text)
    return re.findall(r"\w+", text)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_notebook_has_all_words_of_its_page(notebook, path):
    """Read line by line, as the notebook's writer does not: each line's words, in their order."""
    text = path.read_text("utf-8").partition("\n---\n")[2]
    text = re.sub(r"^```\{(code-cell|toctree)\}.*?^```$", "", text, flags=re.S | re.M)
    text = re.sub(r"^:::\{(?:figure)\} .*$", "", text, flags=re.M)
    text = re.sub(
        r"^:::\{\w+\}|^:::$|^:(?:name|class|open|width):.*$|^\([\w-]+\)=$", "", text, flags=re.M
    )
    text = re.sub(r"^:alt:", "", text, flags=re.M)
    page = str(path.relative_to(SOURCE).with_suffix(""))
    made = notebook(path.read_text("utf-8"), page)
    shown = iter(words("\n".join(c.source for c in made.cells if c.cell_type == "markdown")))
    for line in text.splitlines():
        assert all(word in shown for word in words(line)), line


def test_captions_that_were_lost_are_in_the_notebook(notebook):
    """Between two directives stands a text of its own, and pictures go along."""
    text = FRONT.format(more="") + (
        ":::{figure} ../figures/mse.svg\n:alt: Lines.\n:name: fig\n\nA caption.\n:::\n\nBetween.\n\n"
        ":::{dropdown} More\n:open:\n\nInside {py:func}`~a.b`.\n:::\n\n```{code-cell} ipython3\n1\n```\n"
    )
    made = notebook(text, "page")
    shown = made.cells[1]
    assert "![Lines.](attachment:mse.png)\n\nA caption." in shown.source
    assert "\nBetween.\n" in shown.source
    assert "<details><summary>More</summary>\n\nInside `a.b`.\n\n</details>" in shown.source
    assert list(shown.attachments) == ["mse.png"]


def run(made, folder):
    """What the cells of a notebook print in a folder."""
    from nbclient import NotebookClient

    NotebookClient(made, resources={"metadata": {"path": str(folder)}}).execute()
    return "".join(
        out["text"] for cell in made.cells for out in cell.get("outputs", []) if "text" in out
    )


def test_a_notebook_runs_alone(extensions, tmp_path, monkeypatch):
    """In an empty folder, where nothing but the library is found; without it, it says what to do."""
    from nbclient.exceptions import CellExecutionError

    monkeypatch.setenv("USTAT_REPOSITORY", "")
    notebook = extensions("notebooks")["notebook"]
    text = (SOURCE / "ustatistic.md").read_text("utf-8")
    alone = hidden(tmp_path, "simulations", "figures").split(os.pathsep)[0]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([alone, str(ROOT)]))
    (tmp_path / "empty").mkdir()
    assert "fast is yours to write." in run(notebook(text, "ustatistic"), tmp_path / "empty")

    made = notebook(text, "ustatistic")
    made.cells[0].source = made.cells[0].source.replace('find_spec("ustat_pg")', "False")
    with pytest.raises(CellExecutionError, match="install ustat_pg first"):
        run(made, tmp_path / "empty")


def test_a_cell_that_is_meant_to_fail_stops_no_notebook(notebook):
    made = notebook((SOURCE / "how_to" / "ci.md").read_text("utf-8"), "how_to/ci")
    assert sum(cell.metadata == {"tags": ["raises-exception"]} for cell in made.cells) == 1


@pytest.mark.parametrize(
    ("said", "address", "names"),
    [
        ("https://github.com/a/b", "https://github.com/a/b", ["Colab", "Binder"]),
        ("git@github.com:a/b.git", "https://github.com/a/b", ["Colab", "Binder"]),
        ("https://me:secret@gitlab.com/a/b/c.git", "https://gitlab.com/a/b/c", ["Binder"]),
        ("https://forge.example/a/b", "https://forge.example/a/b", []),
        ("/srv/clone", "", []),
        ("", "", []),
    ],
)
def test_notebooks_open_where_the_repository_is_public(
    extensions, monkeypatch, said, address, names
):
    monkeypatch.setenv("USTAT_REPOSITORY", said)
    known = extensions("notebooks")
    assert known["repository"]() == address
    assert list(known["buttons"]("mse.ipynb")) == names
    setup = known["notebook"](FRONT.format(more="") + "Text.\n", "index").cells[0].source
    assert ("git+" + address in setup) == bool(address)
    assert "secret" not in setup


# ---------------------------------------------------------------- exercises

LEARN = ("language_models", "networks", *STEMS)


def cells(extensions, call):
    """The cells of the pages of results that end in a call."""
    found = {page: extensions("exercise")["cells_of"](page, call) for page in LEARN}
    return [(page, cell) for page, several in found.items() for cell in several]


def test_every_page_of_a_result_has_exercises_by_hand_and_by_code(extensions):
    by_hand, by_code = (
        {page for page, _ in cells(extensions, call)} for call in ("graded", "checked")
    )
    assert by_hand == by_code == set(LEARN)
    for page in LEARN:
        text = (SOURCE / f"{page}.md").read_text("utf-8").partition("\n## Exercises\n")[2]
        questions = text.count(":::{admonition} Exercise")
        assert questions == text.count(":::{dropdown} Answer") >= 2, page
        assert questions == len(re.findall(r"^(?:graded|checked)\(", text, re.M)), page


def test_exercises_by_code_take_their_solution_and_nothing_else(extensions, capsys):
    """Each solution agrees with the library, and alone: the cell needs no other of its page."""
    unwritten = extensions("notebooks")["unwritten"]
    for page, cell in cells(extensions, "checked"):
        if page == "language_models":
            pytest.importorskip("torch")
        exec(cell, {})
        assert "Right: " in capsys.readouterr().out, page
        left = unwritten(cell)
        exec(left, {})
        assert "is yours to write." in capsys.readouterr().out, page
        with pytest.raises(AssertionError, match=r"(?s)not yet: .* Hint: "):
            exec(left.replace("return ...", "return 0.12345", 1), {})


def test_exercises_by_hand_ask_the_same_in_a_notebook(extensions):
    exercise = extensions("exercise")["exercise"]
    for page in LEARN:
        number = len(extensions("exercise")["cells_of"](page, "graded"))
        asked = [exercise(page, place).data for place in range(number)]
        assert len(set(asked)) == number >= 1
        assert all("data-answer=" in form for form in asked)


# ---------------------------------------------------------------- the course

INDEX = (SOURCE / "index.md").read_text("utf-8")
STARRED = set(re.findall(r"★ \[[^]]*\]\((\w+)\.md\)", INDEX))
STARRED |= set(re.findall(r"\[[^]]*\]\((\w+)\.md\) ★", INDEX))
COURSE = re.search(r"\| page \| in 30 .*\n\|.*\n((?:\|.*\n)+)", INDEX)[1]


def test_the_course_needs_no_page_with_a_star():
    """Statements and exercises link to such a page only with its star, as a way on."""
    course = set(re.findall(r"\((\w+)\.md\)", COURSE)) - {"playground"}
    assert course == set(STEMS) - STARRED
    for page in course:
        parts = (SOURCE / f"{page}.md").read_text("utf-8")
        asked = (
            re.search(r"## Statement\n(.*?)\n## ", parts, re.S)[1]
            + parts.partition("## Exercises")[2]
        )
        for linked, star in re.findall(r"\]\((\w+)\.md[^)]*\)( ★)?", asked):
            assert star or linked not in STARRED, (page, linked)


def test_next_follows_the_course(extensions):
    """Those who read 30 minutes are led through their pages; those who read 90, through all rows."""
    known = extensions("course")["Course"](INDEX)
    assert known.starred == STARRED
    page, way = "index", []
    while page:
        way.append(page)
        before, page = known.beside(page)
        assert before == (way[-2] if len(way) > 1 else None)
    assert way == ["index", "mse", "group_size", "count_advantages", "playground"]
    assert known.beside("minibatch") == ("mse", "oracle")


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
