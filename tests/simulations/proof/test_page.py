"""Formulas as the page of proofs shows them, and which results it and their own pages name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sympy

from simulations.paper import RESULTS
from simulations.proof.counts import X
from simulations.proof.linear import GRPO, G, error
from simulations.proof.page import by_moment, latex, one_of, tables
from simulations.proof.results import BY_STEM
from simulations.proof.statement import Statement

PAGES = Path(__file__).resolve().parents[3] / "theory"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("E[z]", "V"),
        ("E[‖s‖² z²]", r"\mathbb{E}[\lVert s \rVert^2 z^2]"),
        ("‖E[s R]‖²", r"\lVert \mathbb{E}[s R] \rVert^2"),
        ("⟨E[s h], E[s h z]⟩", r"\langle \mathbb{E}[s h], \mathbb{E}[s h z]\rangle "),
        ("Σ z·‖s‖² z²", r"\sum_{i \ne j} \lVert s_i \rVert^2 z_i^2 z_j"),
        ("a112", "a_1(12)"),
        ("b_3_0", "b(3, 0)"),
        ("c1", "c_{1}"),
        ("z_lo", r"z_{\text{lo}}"),
    ],
)
def test_names_of_symbols(name: str, shown: str) -> None:
    assert latex(sympy.Symbol(name)) == shown


def test_what_is_derived_has_the_moments_of_the_page() -> None:
    """Theorem 2, with tr Σ for τ and tr F for φ."""
    variance, fisher, single = sympy.symbols("σ² φ τ", positive=True)
    square = sympy.Symbol("‖E[s z]‖²", nonnegative=True)
    claimed = single / G + (variance * fisher + square) / (G * (G - 1))
    assert sympy.simplify(by_moment(error(GRPO)) - claimed) == 0


def test_values_at_sizes_are_shown_from_two_outputs_on() -> None:
    p = sympy.Symbol("p")
    assert one_of(p) == (p, None)
    assert one_of(X + X**2 * (p - p) + X**3 * p) == (p, 3)


def test_a_table_says_what_is_not_proved_and_where_a_wrong_formula_is_right() -> None:
    p = sympy.Symbol("p", positive=True)
    rivals = {"a*": p + (G - 2) * p}
    shown = tables([Statement("a thing", p, 2 * p, {}), Statement("b", p, p, rivals)])
    assert r"| a thing | NOT PROVED | $p$<br><br>$\ne$ $2 p$ |" in shown
    assert "| b | every G and every law | $p$ |" in shown
    assert r"| a\* | b | $p \left(G - 2\right)$; equal at $G = 2$ |" in shown


def test_the_page_and_the_pages_of_results_name_what_is_proved() -> None:
    lecture = (PAGES / "proofs.md").read_text("utf-8")
    assert {*re.findall(r'^show\("(\w+)"\)$', lecture, re.M)} == {*BY_STEM}
    for stem in RESULTS:
        page = PAGES / f"{stem}.md"
        linked = (
            re.findall(r"^Proved .*\(proofs\.md#([\w-]+)\)\.$", page.read_text("utf-8"), re.M)
            if page.exists()
            else []
        )
        assert linked == [RESULTS[stem].label.lower().replace(" ", "-")] * (stem in BY_STEM), stem
