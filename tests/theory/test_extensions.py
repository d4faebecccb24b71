"""The site's own reader of docstrings."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

EXTENSIONS = Path(__file__).resolve().parents[2] / "theory" / "_ext"
pytest.importorskip("myst_nb", reason="the site needs the extra theory")
READER = runpy.run_path(str(EXTENSIONS / "docstrings.py"))


def read(text):
    lines = text.splitlines()
    app = SimpleNamespace(env=SimpleNamespace(temp_data={}))
    READER["keep_formulas"](app, "function", "name", None, None, lines)
    return "\n".join(lines)


def test_docstrings_keep_equations_and_escape_bars():
    out = read("Sum.\n\n    a = b *\n    c = d\n\nThen *this* and |x| of ``a|b``.\n")
    assert out.count(".. code-block:: text") == 1
    assert "    a = b *\n    c = d" in out
    assert r"*this* and \|x\| of ``a|b``" in out


def test_docstrings_leave_sections_examples_and_literals_alone():
    text = "Do.\n\nArguments:\n    size: one.\n\n>>> f(\n...     a|b)\n    1\n\nAs here::\n\n    f(|a|)"
    assert read(text) == f"{text}\n"
