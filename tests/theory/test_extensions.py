"""The site's own extensions: sliders, and docstrings that are read plainly."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

EXTENSIONS = Path(__file__).resolve().parents[2] / "theory" / "_ext"
pytest.importorskip("myst_nb", reason="the site needs the extra theory")


def load(name):
    """An extension by its file: the folder is no package."""
    spec = importlib.util.spec_from_file_location(name, EXTENSIONS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


docstrings = load("docstrings")
slider = load("slider").slider


def show(**changed):
    given = {
        "label": "Group size <G>",
        "values": [2, 4, 8],
        "numbers": lambda size: {"half": size / 2, "name": f"<{size}>"},
        "start": 4,
    }
    return slider(**{**given, **changed}).data


def test_a_slider_shows_its_start_and_lists_all_values():
    html = show()
    frames = re.findall(r'<div class="slider-frame" data-value="(\d)"( hidden)?>', html)
    assert frames == [("2", " hidden"), ("4", ""), ("8", " hidden")]
    assert html.count("<tr>") == 1 + 3
    assert '<details class="slider-table" open>' in html
    assert "<G>" not in html
    assert "<4>" not in html
    identity = re.search(r'<input type="range" id="([^"]+)"', html)[1]
    assert f'for="{identity}"' in html
    assert identity not in show()


def test_a_slider_takes_pictures():
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    def picture(size):
        figure, axis = plt.subplots(figsize=(1, 1))
        axis.plot([0, size])
        return figure

    others = plt.get_fignums()
    html = show(picture=picture, alt='A "line"')
    images = re.findall(r'<img alt="([^"]*)" src="data:image/svg\+xml;base64,([^"]+)">', html)
    assert [alt for alt, _ in images] == [
        f"A &quot;line&quot;; Group size &lt;G&gt;: {size}" for size in (2, 4, 8)
    ]
    assert plt.get_fignums() == others


def read(text):
    lines = text.splitlines()
    app = SimpleNamespace(env=SimpleNamespace(temp_data={}))
    docstrings.keep_formulas(app, "function", "name", None, None, lines)
    return "\n".join(lines)


def test_docstrings_keep_equations_and_escape_bars():
    out = read("Sum.\n\n    a = b *\n    c = d\n\nThen *this* and |x| of ``a|b``.\n")
    assert out.count(".. code-block:: text") == 1
    assert "    a = b *\n    c = d" in out
    assert r"*this* and \|x\| of ``a|b``" in out


def test_docstrings_leave_sections_examples_and_literals_alone():
    text = "Do.\n\nArguments:\n    size: one.\n\n>>> f(\n...     a|b)\n    1\n\nAs here::\n\n    f(|a|)"
    assert read(text) == f"{text}\n"
