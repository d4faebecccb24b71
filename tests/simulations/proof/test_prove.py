"""Proofs by algebra, and the errors that they refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulations.__main__ import main
from simulations.mutants.errors import ROOT, errors, planted
from simulations.paper import RESULTS
from simulations.proof import counts
from simulations.proof.results import BY_STEM, NOT_PROVED
from simulations.proof.statement import Statement, equal_at
from ustat_pg.predictions import closed_forms

FORMULAS = "ustat_pg/predictions/closed_forms.py"


BEYOND = [stem for stem in BY_STEM if RESULTS[stem].label.startswith("Beyond")]


@pytest.mark.parametrize("stem", [stem for stem in BY_STEM if stem not in BEYOND])
def test_every_statement_is_proved_and_every_wrong_formula_refuted(
    capsys: pytest.CaptureFixture[str], stem: str
) -> None:
    all_proved(capsys, stem)


@pytest.mark.parametrize("stem", BEYOND)
def test_so_it_is_beyond_the_paper(capsys: pytest.CaptureFixture[str], stem: str) -> None:
    all_proved(capsys, stem)


def all_proved(capsys: pytest.CaptureFixture[str], stem: str) -> None:
    assert main(["prove", stem, "--json"]) == 0
    (statements,) = json.loads(capsys.readouterr().out).values()
    for each in statements:
        assert each["proved"], each
        assert each["difference"] == "0", each
        assert all(error != "0" for error in each["rivals"].values()), each


def test_a_result_is_proved_or_says_why_not() -> None:
    assert {*BY_STEM, *NOT_PROVED} == {*RESULTS}


def test_an_error_in_the_formula_that_users_call_is_not_proved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(closed_forms, "left_share", lambda batch, whole: (whole - batch) / whole)
    assert main(["prove", "minibatch"]) == 1
    assert "NOT PROVED" in capsys.readouterr().out


def test_where_a_wrong_formula_is_right_is_said() -> None:
    import sympy

    size, p = sympy.symbols("G p", positive=True)
    statement = Statement("a thing", p, p, {"wrong": p * (size - 2) * (size - 5) + p})
    assert statement.holds
    assert equal_at(statement.errors["wrong"]) == [2, 5]
    same = Statement("a thing", p, p, {"the same": (p**2 + p) / (p + 1)})
    assert same.proved
    assert not same.holds


@pytest.mark.parametrize("stem", ["limit_law", "group_size_lm"])
def test_what_has_no_proof_says_why(stem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", stem]) == 2
    error = capsys.readouterr().err
    assert stem in error
    assert NOT_PROVED[stem] in error
    assert len(error.splitlines()) == 1


def test_statements_and_wrong_formulas_of_one_result_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["prove", "Theorem 2", "--show"]) == 0
    shown = capsys.readouterr().out
    assert "covariance of grpo" in shown
    assert "off by" in shown


PLANTED = [
    ([stem for stem in error.stems if stem in BY_STEM] or [*BY_STEM], error.old, error.new)
    for error in errors().values()
    if error.file == FORMULAS
]
OF_POOLS_AND_STEPS = [
    (["group_size"], "square - spread, variance_trace", "square, variance_trace"),
    (["group_size"], "beta / (1 + 1 / others**2)", "beta"),
    (["group_size"], "alpha / (1 + phi_over_tau / others)", "alpha"),
    (["count_advantages"], "mean(1, 0, lost[:-1])", "mean(1, 1, lost[:-1])"),
    (["count_advantages"], "pairs(0, (a.failures", "pairs(1, (a.failures"),
    (["count_advantages"], "turned = mixed if a is b else", "turned = mixed if size else"),
]


@pytest.mark.parametrize(("stems", "old", "new"), PLANTED + OF_POOLS_AND_STEPS)
def test_a_planted_error_in_a_closed_form_is_refused_by_proof_alone(
    monkeypatch: pytest.MonkeyPatch, stems: list[str], old: str, new: str
) -> None:
    known = vars(closed_forms)
    source = (ROOT / FORMULAS).read_text("utf-8")
    wrong = dict(known)
    exec(compile(planted(source, old, new), FORMULAS, "exec"), wrong)
    for attribute, value in wrong.items():
        if callable(value) and attribute in known:
            monkeypatch.setattr(closed_forms, attribute, value)
    # Sizes that are enough to see an error, in a tenth of the time.
    monkeypatch.setattr(counts, "SIZES", range(1, 5))
    assert any(not each.proved for stem in stems for each in BY_STEM[stem]())


BROKEN = """
import sys
from simulations.__main__ import main
from simulations.proof import proof_of
assert proof_of("mse") is None
sys.exit(main(["prove", "mse"]))
"""


def test_a_broken_sympy_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "sympy.py").write_text("raise ImportError('sympy needs mpmath')", "utf-8")
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    ran = subprocess.run(
        [sys.executable, "-c", BROKEN],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2, ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert "sympy needs mpmath" in ran.stderr
