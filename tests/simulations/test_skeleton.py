"""``new``: the claim that it writes is clean, runs, and can be refuted."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from simulations import skeleton
from simulations.paper import RESULTS
from tests.support.commands import ROOT
from tests.support.refusals import refuses


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A copy of what the command changes, with a new claim."""
    root = tmp_path_factory.mktemp("clone")
    for name in ("ustat_pg", "simulations"):
        ignored = shutil.ignore_patterns("__pycache__", "weights")
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    (root / "theory").mkdir()
    for name in ("pyproject.toml", "README.md", "theory/index.md"):
        shutil.copy(ROOT / name, root / name)
    done = run(root, "new", "my_result", "--title", "what my result says")
    assert done.returncode == 0, done.stderr
    assert "python -m simulations verify my_result" in done.stdout
    return root


def run(root: Path, *words: str, module: str = "simulations"):
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=600,
        env={"PATH": "", "PYTHONPATH": str(root), "HOME": str(root)},
    )


def test_it_is_clean(clone):
    pytest.importorskip("ruff")
    for words in (("format", "--check"), ("check",)):
        made = ("simulations/my_result.py", "simulations/figures/my_result.py")
        files = (*made, "simulations/paper.py")
        done = run(clone, *words, *files, module="ruff")
        assert done.returncode == 0, done.stdout


def test_it_is_confirmed_by_enumeration_and_by_simulation(clone):
    number = 1 + sum(result.label.startswith("Beyond") for result in RESULTS.values())
    (line,) = [x for x in run(clone, "list").stdout.splitlines() if x.startswith("my_result ")]
    assert line.split()[1:3] == ["Beyond", str(number)]
    exact = run(clone, "verify", "my_result", "--size", "smoke", "--engine", "exact", "--json")
    assert exact.returncode == 0, exact.stderr
    (result,) = json.loads(exact.stdout)["claims"]
    assert result["verdict"] == "CONFIRMED"
    assert {check["origin"] for check in result["checks"]} == {"made-up", "generated", "real"}
    # The interpreted engine: nothing is compiled in a copy that lives for a test.
    words = ["--size", "smoke", "--engine", "reference"]
    one = run(clone, "check", "my_result", "skewed G=2: grpo", *words)
    assert one.returncode == 0, one.stderr
    assert "no second-order term" in one.stdout


def test_the_code_of_its_page_runs(clone, monkeypatch):
    pytest.importorskip("IPython")
    page = (clone / "theory/my_result.md").read_text("utf-8")
    monkeypatch.syspath_prepend(str(ROOT / "theory" / "_ext"))
    made = {}
    for code in re.findall(r"\{code-cell\} ipython3\n(?::\w+:.*\n+)*((?:.*\n)*?)```", page):
        exec(compile(code, "my_result", "exec"), made)
    assert made["numbers"](2)["error of grpo"] > 0


def test_its_page_and_its_rows_stand_where_tests_ask_for_them(clone):
    page = (clone / "theory/my_result.md").read_text("utf-8")
    assert page.splitlines()[6] == "# What my result says"
    assert re.search(r"## What `verify` checks\n.*^- `no second-order term`: ", page, re.M | re.S)
    number = 1 + sum(result.label.startswith("Beyond") for result in RESULTS.values())
    index = (clone / "theory/index.md").read_text("utf-8")
    row = f"](my_result.md) | Beyond {number} | what my result says |\n"
    assert index.count(row) == index.count(f"{row}\n") == 1
    assert "\nmy_result\nnetworks\n" in index
    readme = (clone / "README.md").read_text("utf-8")
    (last,) = re.findall(r"(.*)\n<!-- end -->", readme)
    assert last.startswith(f"| Beyond {number} | what my result says | TODO")


def test_what_is_refused():
    refuses("it must be a module's name", skeleton.write, "My-Result")
    refuses("is taken", skeleton.write, "mse")
    refuses("it must be a new one", skeleton.write, "mine", "Theorem 2")
    refuses("without quotes", skeleton.write, "mine", title="a | b")
    assert not (ROOT / "simulations/mine.py").exists()
