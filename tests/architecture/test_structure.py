"""What the repository promises about itself."""

import ast
import re
import tomllib

import pytest

import ustat_pg
from simulations import STEMS
from simulations.paper import RESULTS
from tests.conftest import POWER
from tests.support.commands import ROOT, python


def printed(code):
    """What a program prints, in a process of its own."""
    done = python(code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_stems_are_those_of_the_paper_in_its_order():
    assert list(STEMS) == [stem for stem in RESULTS if stem in STEMS]


LEFT = {
    "ustat_pg": "numpy numba scipy pandas sklearn torch matplotlib",
    "ustat_pg.distributions": "numba",
    "ustat_pg.policies, ustat_pg.problems": "torch",
    "ustat_pg.testing, ustat_pg.cli": (
        "torch matplotlib seaborn hypothesis simulations distributed jinja2 sympy"
    ),
    "simulations.evidence.report": "torch matplotlib seaborn hypothesis distributed jinja2",
    "simulations.engines.one_step, ustat_pg.engines.gradients.cuda": "torch",
}
"""What is not loaded, after modules that are imported one after the other."""


def test_importing_the_library_loads_nothing_that_it_can_leave():
    code = "import sys\n" + "".join(
        f"import {modules}\nprint([m for m in {left.split()} if m in sys.modules])\n"
        for modules, left in LEFT.items()
    )
    assert printed(code).splitlines() == ["[]"] * len(LEFT)


def test_public_names_exist():
    assert dir(ustat_pg) == sorted(ustat_pg.__all__)
    assert all(getattr(ustat_pg, name) is not None for name in ustat_pg.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = ustat_pg.nothing


def names_in(requirements):
    """The packages that requirements name, as an index writes them."""
    result = (re.split(r"[\[<>=!~ ]", line)[0] for line in requirements)
    return {name.lower().replace("_", "-") for name in result}


def test_pins_cover_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    pinned = names_in((ROOT / "constraints.txt").read_text().splitlines())
    assert set().union(*map(names_in, groups)) - {"ustat-pg"} <= pinned


OF_OTHERS = (
    "pip install --no-deps",
    "--local-dir",
    "--module",
    "--repo-type dataset",
    "`--json`",
    "``--json``",
)
"""Options of other programs, and of the command line where it is meant."""

TYPED = ("sweep.py", "training.py", "sources.py", "shell.py")
"""Files that run a program, add options to a parser, or read those of others."""


def test_texts_name_arguments_and_not_options_of_the_command_line():
    """The command line writes ``group_size=G`` as its option."""
    files = (ROOT / "ustat_pg").rglob("*.py")
    of_python = [file for file in files if file.name != "cli.py" and file.parent.name != "commands"]
    texts = [
        (file.name, node.lineno, node.value)
        for file in of_python
        if file.name not in TYPED
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    texts += [
        (file.name, 0, line)
        for file in (ROOT / "ustat_pg" / "catalogue").rglob("*.toml")
        for line in file.read_text().splitlines()
    ]
    assert len(texts) > 7000
    found = [(*place, re.sub("|".join(OF_OTHERS), "", text)) for *place, text in texts]
    assert [each for each in found if re.search(r"(?<!\S)--[a-z]", each[2])] == []


def test_the_version_stands_in_one_place():
    assert f"version: {ustat_pg.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"## {ustat_pg.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version = {{{ustat_pg.__version__}}}" in (ROOT / "theory/findings.md").read_text()


def test_slow_tests_are_still_there():
    """A line whose test was renamed or removed goes: measuring keeps what it did not see."""
    listed = (ROOT / "tests/slow.txt").read_text().split()
    assert [start for start in POWER if not any(name.startswith(start) for name in listed)] == []
    for line in listed:
        file, name = line.split("::")[0], line.rpartition("::")[2]
        assert re.search(rf"def {name}\b", (ROOT / file).read_text()) or "." in name, line
