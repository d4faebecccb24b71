"""The site's own extensions: formulas as MathML, sliders, docstrings read plainly."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

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


prerendered_math = load("prerendered_math")
plain_docstrings = load("plain_docstrings")
slider = load("slider").slider


def mathml(tex):
    return prerendered_math.mathml(tex, display=True, macros={r"\E": r"\mathbb{E}"})


@pytest.mark.parametrize(
    ("tex", "letter"),
    [
        (r"\E", "𝔼"),
        (r"\mathbb{R}", "ℝ"),
        (r"\mathbf{s}", "𝐬"),
        (r"\boldsymbol{\theta}", "𝜽"),
        (r"\mathcal{L}", "ℒ"),
        (r"\mathbf{1}", "𝟏"),
    ],
)
def test_letters_are_of_their_alphabet(tex, letter):
    """MathML Core ignores mathvariant: the letter itself must be of the alphabet."""
    written = re.sub(r"<annotation.*?</annotation>", "", mathml(tex))
    assert letter in written
    assert not re.search(r'mathvariant="(?!normal)', written)


@pytest.mark.parametrize("tex", [r"\nowhere", r"\frac{1}{", "ĝ", r"a \tag"])
def test_a_formula_that_cannot_be_read_is_refused(tex):
    with pytest.raises(prerendered_math.ExtensionError, match="in the formula"):
        mathml(tex)


def test_columns_bars_signs_and_names_are_spaced_as_in_tex():
    aligned = mathml(r"\begin{aligned} a &= b \\ &= c \end{aligned}")
    assert aligned.count("text-align: right") == aligned.count("text-align: left") == 2
    bars = re.findall(r"<mo[^>]*>∥</mo>", mathml(r"\lVert g \rVert"))
    assert len(bars) == 2
    assert all('lspace="0"' in bar and 'rspace="0"' in bar for bar in bars)
    assert 'form="prefix"' in mathml("h = -1")
    assert 'form="prefix"' not in mathml("h - 1")
    thin = '<mspace width="0.167em" />'
    assert mathml(r"\sigma\operatorname{tr} F").count(thin) == 2
    assert thin not in mathml(r"\operatorname{Cov}(g)")
    assert thin not in mathml(r"\operatorname{MSE} = 1")


@pytest.mark.parametrize(
    "tex",
    [
        r"\frac{\operatorname{tr} F}{\operatorname{tr} F}",
        r"\frac{\operatorname{tr}_a}{\operatorname{tr}_b}",
        r"x_{\operatorname{tr}}^{\operatorname{tr}}",
        r"\sqrt[\operatorname{n}]{\operatorname{tr}}",
        r"\sum_{\operatorname{a}}^{\operatorname{b}} \hat{\operatorname{c}}",
    ],
)
def test_every_node_keeps_as_many_children_as_it_must_have(tex):
    """One more under an mfrac, and the browser draws a row."""
    arity = {"mfrac": 2, "mroot": 2, "msub": 2, "msup": 2, "munder": 2, "mover": 2}
    arity |= {"msubsup": 3, "munderover": 3}
    found = 0
    for node in ElementTree.fromstring(mathml(tex)).iter():
        name = node.tag.rpartition("}")[2]
        if name in arity:
            assert len(node) == arity[name], name
            found += 1
    assert found


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


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"values": [2]}, "at least two"),
        ({"values": [2, 2]}, "all different"),
        ({"start": 5}, "must be one of"),
        ({"picture": lambda size: None}, "needs a description"),
        ({"numbers": lambda size: {}}, "at least one"),
        ({"numbers": lambda size: {str(size): 1}}, "same names"),
        ({"numbers": lambda size: {"x": "y" * 400_000}}, "at most"),
    ],
)
def test_a_slider_that_would_not_work_is_refused(changed, reason):
    with pytest.raises(ValueError, match=reason):
        show(**changed)


def read(text, what="function"):
    lines = text.splitlines()
    plain_docstrings.read_plainly(None, what, "name", None, None, lines)
    return "\n".join(lines)


def test_docstrings_keep_equations_and_escape_what_is_no_markup():
    out = read("Sum.\n\n    a = b *\n    c = d\n\nThen *this* and |x| and θ* of ``a*b``.\n")
    assert ".. code-block:: text" in out
    assert "    a = b *\n    c = d" in out
    assert r"*this* and \|x\| and θ\* of ``a*b``" in out


def test_docstrings_leave_sections_examples_and_literals_alone():
    text = (
        "Do.\n\nArguments:\n    size: G.\n\n>>> f(\n...     *a)\n    1\n\nAs here::\n\n    f(*a)\n"
    )
    out = read(text)
    assert "code-block" not in out
    assert "    size: \\G." in out
    assert out.count("*a)") == 2
    assert "\\*" not in out
