"""The drawing of mutants, which of the tests are asked, and how a survivor is told from a refusal."""

from __future__ import annotations

import ast

import pytest

from benchmarks import mutation
from benchmarks.mutation import ROOT, mutants_of, told

SOURCE = '''"""A text: 1 < 2 and not 3."""
from typing import TYPE_CHECKING
Number = int | float
if TYPE_CHECKING:
    LEAST = 4
def first(a: "int < 3", b=2, *, flag=False):
    """Not 5 + 6."""
    if a < b and not flag:
        raise ValueError(f"{a:7.8f} is below {9 + 1}")
    return [x ** 2 if x else -0.5 for x in range(3) if min(x, a) in (b,)]
'''


def test_a_mutant_changes_one_place_and_no_text(tmp_path, monkeypatch):
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    (tmp_path / "file.py").write_text(SOURCE)
    found = mutants_of(tmp_path / "file.py")
    changed = {(one.line, one.old, one.new) for one in found}
    assert changed == {
        (6, "2", "3"),
        (6, "False", "True"),
        (8, "a < b and not flag", "(not (a < b and (not flag)))"),
        (8, "a < b and not flag", "(a < b or not flag)"),
        (8, "a < b", "(a <= b)"),
        (8, "not flag", "flag"),
        (10, "x ** 2 if x else -0.5", "(-0.5 if x else x ** 2)"),
        (10, "x ** 2", "(x * 2)"),
        (10, "2", "3"),
        (10, "-0.5", "0.5"),
        (10, "0.5", "0.55"),
        (10, "3", "4"),
        (10, "min(x, a) in (b,)", "(not min(x, a) in (b,))"),
        (10, "min(x, a) in (b,)", "(min(x, a) not in (b,))"),
        (10, "min", "max"),
    }
    true = ast.dump(ast.parse(SOURCE))
    sources = [one.source() for one in found]
    assert all(ast.dump(ast.parse(source)) != true for source in sources)
    assert len({one.name for one in found}) == len({*sources}) == len(found)


@pytest.mark.parametrize(
    ("file", "first", "some"),
    [
        ("ustat_pg/sampling.py", "tests/test_sampling.py", "tests/test_independent_plans.py"),
        ("ustat_pg/llm/plans.py", "tests/llm/test_plans.py", "tests/llm/test_tables.py"),
        ("ustat_pg/catalogue/choice.py", "tests/test_catalogue_choice.py", "tests/test_explain.py"),
        (
            "simulations/evidence/results.py",
            "tests/simulations/evidence/test_results.py",
            "tests/simulations/evidence/test_report_words.py",
        ),
    ],
)
def test_a_file_is_asked_of_the_tests_of_its_name_first(file, first, some):
    own, others, doctests = mutation.tests_of(file, ROOT)
    assert first in own
    assert some in [*own, *others]
    assert doctests == [file]
    assert all((ROOT / test).is_file() for test in (*own, *others))


def test_a_share_counts_what_is_late_as_let_through_and_no_equivalent():
    lines = [{"outcome": "killed"}] * 18 + [{"outcome": "survived"}, {"outcome": "timeout"}]
    lines += [{"outcome": "survived", "equivalent": "the same number"}]
    assert told(lines) == (
        "refused 18 of 20 (90.0%, at least 71.7% at 95%), 1 late; 1 equivalent left out"
    )
