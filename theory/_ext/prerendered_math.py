"""Formulas become MathML while the site is built, so that a page needs no script to show them.

KaTeX reads the TeX (and refuses what it does not know: the build fails on the formula, nothing is
printed in red), in a JavaScript engine that pip installs. Its MathML is then brought to what
browsers draw: MathML Core has dropped ``mathvariant`` and the column attributes of tables that
KaTeX still writes. The font is a subset of STIX Two Math, written beside the pages.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms import SphinxTransform
from sphinx.util.math import get_node_equation_number

MATHML = "{http://www.w3.org/1998/Math/MathML}"
APPLY_FUNCTION = "\u2061"
RELATIONS = set("=<>≤≥≈≠∼→∈,(⟨[")
ROWS = {"mrow", "mstyle", "mtd", "mpadded", "msqrt"}  # any number of children
SCRIPTS = {"msub", "msup", "msubsup", "munder", "mover", "munderover"}
# Unicode's name of the alphabet that stands for a variant, as in MATHEMATICAL BOLD SMALL G.
ALPHABETS = {
    "bold": "BOLD",
    "bold-italic": "BOLD ITALIC",
    "double-struck": "DOUBLE-STRUCK",
    "fraktur": "FRAKTUR",
    "monospace": "MONOSPACE",
    "sans-serif": "SANS-SERIF",
    "script": "SCRIPT",
}
# Letters that Unicode had before it had the alphabets, under names of their own.
OLD_NAMES = {"DOUBLE-STRUCK": "DOUBLE-STRUCK", "FRAKTUR": "BLACK-LETTER", "SCRIPT": "SCRIPT"}
FONT_RANGES = (
    (0x20, 0x17F), (0x2B0, 0x36F), (0x370, 0x3FF), (0x2000, 0x206F), (0x20D0, 0x214F),
    (0x2190, 0x23FF), (0x25A0, 0x25FF), (0x27C0, 0x27FF), (0x2900, 0x2AFF), (0x1D400, 0x1D7FF),
)  # fmt: skip


@cache
def _katex() -> Any:
    """A JavaScript engine that has read KaTeX."""
    from py_mini_racer import MiniRacer

    spec = find_spec("sphinxcontrib.katex")
    if spec is None or spec.origin is None:
        raise ExtensionError("sphinxcontrib-katex, which brings katex.min.js, is not installed")
    engine = MiniRacer()
    engine.eval(Path(spec.origin).with_name("katex.min.js").read_text(encoding="utf-8") + ";0")
    return engine


def mathml(tex: str, *, display: bool, macros: dict[str, str]) -> str:
    """The MathML of a formula; what KaTeX cannot read raises an ExtensionError."""
    from py_mini_racer import JSEvalException

    options = {
        "displayMode": display,
        "output": "mathml",
        "throwOnError": True,
        "strict": "error",
        "macros": macros,
    }
    try:
        html = _katex().call("katex.renderToString", tex, options)
    except JSEvalException as error:
        reason = re.search(r"KaTeX parse error: [^\n]*", str(error))
        raise ExtensionError(f"{reason[0] if reason else error}\nin the formula {tex!r}") from error
    ElementTree.register_namespace("", MATHML[1:-1])
    math = ElementTree.fromstring(re.sub(r"^<span[^>]*>|</span>$", "", html))
    _to_core(math)
    return ElementTree.tostring(math, encoding="unicode")


def _styled(char: str, alphabet: str) -> str:
    """A letter of a mathematical alphabet, or the letter itself where Unicode has none."""
    name = unicodedata.name(char, "")
    words = name.replace("LATIN ", "").replace("GREEK ", "").replace(" LETTER", "")
    names = [f"MATHEMATICAL {alphabet} {words}"]
    if alphabet in OLD_NAMES:
        names.append(f"{OLD_NAMES[alphabet]} {words}")
    for candidate in names:
        try:
            return unicodedata.lookup(candidate)
        except KeyError:
            continue
    return char


def _to_core(node: ElementTree.Element) -> None:
    """Rewrite, in place, what KaTeX writes and MathML Core does not draw."""
    tag = node.tag.removeprefix(MATHML)
    alphabet = ALPHABETS.get(node.get("mathvariant", ""))
    if alphabet and node.text:
        node.text = "".join(_styled(char, alphabet) for char in node.text)
        # A lone letter in an <mi> is slanted unless it is told not to be.
        node.set("mathvariant", "normal")
    bar = node.get("stretchy") == "false" and node.text in {"∥", "∣", "|"}
    if tag == "mo" and (bar or node.get("fence") == "true"):
        node.set("lspace", "0")
        node.set("rspace", "0")
    if tag in SCRIPTS | {"mfrac", "mroot"}:
        # KaTeX adds this mark beside a name, also where only one node may stand.
        for mark in [child for child in node if child.text == APPLY_FUNCTION]:
            node.remove(mark)
    if tag == "mtable":
        _align(node)
    for child in node:
        _to_core(child)
    if tag in SCRIPTS:
        for script in node[1:]:
            for operator in script.iter(f"{MATHML}mo"):
                operator.set("lspace", "0")
                operator.set("rspace", "0")
    if tag in ROWS:
        _space_operator_names(node)
    for before, sign in pairwise(node):
        # A sign after a relation is no difference; browsers only see that it is not the first.
        operators = before.tag == sign.tag == f"{MATHML}mo"
        if operators and sign.text in {"−", "+", "±"} and before.text in RELATIONS:
            sign.set("form", "prefix")


def _align(table: ElementTree.Element) -> None:
    """Give each cell the alignment and the gap that KaTeX puts on the table."""
    sides = table.get("columnalign", "center").split()
    gaps = table.get("columnspacing", "1em").split()
    for row in table:
        for column, cell in enumerate(row):
            side = sides[min(column, len(sides) - 1)]
            gap = gaps[min(column, len(gaps) - 1)] if column + 1 < len(row) else "0em"
            cell.set("style", f"text-align: {side}; padding: 0.25em {gap} 0.25em 0")


def _ends_in_name(node: ElementTree.Element) -> bool:
    """Whether the node is, or has for its base, an operator's name such as tr or Cov."""
    if node.tag.removeprefix(MATHML) in SCRIPTS:
        return any((mo.text or "") == APPLY_FUNCTION for mo in node[0].iter(f"{MATHML}mo"))
    return (node.text or "") == APPLY_FUNCTION


def _space_operator_names(row: ElementTree.Element) -> None:
    """TeX's thin space between an operator's name and what it is applied to or follows."""
    children = list(row)
    for index, child in enumerate(children):
        if not _ends_in_name(child):
            continue
        following = children[index + 1] if index + 1 < len(children) else None
        # Brackets take no space there, relations and sums bring their own.
        if following is not None and following.tag not in {f"{MATHML}mo", f"{MATHML}mspace"}:
            at = list(row).index(child) + 1
            row.insert(at, ElementTree.Element(f"{MATHML}mspace", {"width": "0.167em"}))
        # The name itself: the child, or the <mi> just before its apply-function mark.
        start = index if child.tag.removeprefix(MATHML) in SCRIPTS else index - 1
        before = children[start - 1] if start > 0 else None
        ordinary = before is not None and (
            before.tag.removeprefix(MATHML) in {"mi", "mn", "mfrac", "msqrt"} | SCRIPTS
            or (before.text or "") in {")", "]"}
        )
        if ordinary and before is not None and not _ends_in_name(before):
            at = list(row).index(children[start])
            row.insert(at, ElementTree.Element(f"{MATHML}mspace", {"width": "0.167em"}))


class RenderMath(SphinxTransform):
    """Render while pages are read: writing may fork, which a JavaScript engine does not survive."""

    default_priority = 800

    def apply(self, **kwargs: Any) -> None:
        """Put the MathML on every formula; a formula that cannot be read ends the build."""
        macros = self.config.prerendered_math_macros
        for node in [*self.document.findall(nodes.math), *self.document.findall(nodes.math_block)]:
            display = isinstance(node, nodes.math_block)
            try:
                node["mathml"] = mathml(node.astext(), display=display, macros=macros)
            except ExtensionError as error:
                raise ExtensionError(f"{self.env.docname}, line {node.line}: {error}") from error


def visit_inline(self: Any, node: nodes.math) -> None:
    """Write an inline formula."""
    self.body.append(node["mathml"])
    raise nodes.SkipNode


def visit_display(self: Any, node: nodes.math_block) -> None:
    """Write a displayed formula, with its number and its anchor where it has a label."""
    self.body.append(self.starttag(node, "div", CLASS="math-display", tabindex="0"))
    self.body.append(node["mathml"])
    if node.get("number"):
        number = get_node_equation_number(self, node)
        self.body.append(f'<span class="eqno">({number})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def write_font(app: Sphinx, error: Exception | None) -> None:
    """Write the subset of the mathematics font that formulas can use."""
    if error is not None or app.builder.format != "html":
        return
    from fontTools import subset

    spec = find_spec("ziamath")
    if spec is None or spec.origin is None:
        raise ExtensionError("ziamath, which brings the font STIX Two Math, is not installed")
    source = Path(spec.origin).parent / "fonts" / "STIXTwoMath-Regular.ttf"
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it tells every glyph
    options = subset.Options(flavor="woff", layout_features=["ssty"])
    font = subset.load_font(str(source), options)
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=[c for low, high in FONT_RANGES for c in range(low, high + 1)])
    subsetter.subset(font)
    target = Path(app.outdir) / "_static" / "STIXTwoMath-subset.woff"
    subset.save_font(font, str(target), options)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer under the name ``prerendered``."""
    app.add_config_value("prerendered_math_macros", {}, "env", types=[dict])
    app.add_transform(RenderMath)
    app.add_html_math_renderer("prerendered", (visit_inline, None), (visit_display, None))
    app.connect("build-finished", write_font)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
