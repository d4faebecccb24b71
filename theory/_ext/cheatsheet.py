"""The cheatsheet, one page, as a page of the site and as a PDF, from one list."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from notebooks import expand
from sphinx.application import Sphinx

MARK = "<!-- the cheatsheet -->"
"""What the page has in the place of its tables."""

FILE = "_static/cheatsheet.pdf"
"""The PDF, from the site's root."""

SECTIONS: dict[str, list[tuple[str, str]]] = {
    "The estimator": [
        (
            r"\ghat = \frac{1}{G} \sum_i s_i (z_i - b_i), \quad s = \nabla_\theta \log \pi_\theta(y \mid x)",
            "G outputs of one prompt, rewards z, scores s.",
        ),
        (
            r"b_i = \frac{1}{G-1} \sum_{j \neq i} z_j",
            "grpo here: the mean of the others (RLOO). The oracle has b = V(x) = E[z | x].",
        ),
        (
            r"\frac{1}{G} \sum_i s_i (z_i - \bar z) = \frac{G-1}{G}\, \ghat",
            "The whole group's mean (Dr. GRPO) is a rescaled learning rate.",
        ),
    ],
    "Its error (a = z - V, σ² = Var z, F = E s sᵀ, Σ = Cov(s a))": [
        (
            r"\MSE = \frac{\tr \Sigma}{G} + \frac{\sigma^2 \tr F + \norm{g}^2}{G(G-1)}",
            "Theorem 2, one prompt, exact. The first term is the oracle's.",
        ),
        (
            r"\MSE = \frac{1}{B} \left( c_1 + \frac{c_2}{G} + \frac{c_3}{G(G-1)} \right)",
            "Proposition 3, B prompts: c₁ = tr Cov g(X), c₂ = E tr Σ, c₃ = E[σ² tr F + ‖g‖²].",
        ),
        (
            r"\frac{\MSE_{grpo}}{\MSE_{oracle}} = 1 + \frac{1}{G-1}\, "
            r"\frac{\sigma^2 \tr F + \norm{g}^2}{\tr \Sigma}",
            "Corollary 4: not knowing V costs about one output in G.",
        ),
    ],
    "Group size at a budget K = BG": [
        (
            r"K \cdot \MSE = c_1 G + c_2 + \frac{c_3}{G-1}, \quad G^* = 1 + \sqrt{c_3 / c_1}",
            "Theorem 7. c₃ ≥ 2 c₁: never 2 where 3 is to be had. Free of K; the optimum is wide.",
        ),
        (
            r"K_{crit} = (c_1 + c_2 + 2\sqrt{c_1 c_3}) / \norm{g}^2",
            "Below it more outputs a step nearly pay for themselves.",
        ),
        (r"p^G + (1-p)^G", "The share of groups with equal rewards: they say nothing."),
    ],
    "Baselines": [
        (
            r"b^* = \E[\norm{s}^2 z] / \E \norm{s}^2",
            "Least variance; equals V only if ‖s‖² and z are uncorrelated (Assumption 2).",
        ),
        (
            r"V (2 b^* - V) > 0",
            "Where the oracle beats no baseline. On mostly solved prompts it fails.",
        ),
        (
            r"p > 1/(G-1)",
            "Where grpo beats no baseline: equally likely arms, one of them rewarded.",
        ),
    ],
    "Estimators in use, rewards 0 and 1 (climb Φ with Φ' = w)": [
        (
            r"\E \ghat = w(p)\, g, \quad w = \E\, [a_1(m+1) - a_0(m)]",
            "m successes among the G - 1 others.",
        ),
        (r"w = 1", "RLOO, every leave-one-out baseline, no baseline: unbiased."),
        (
            r"w \to 1/\sqrt{p(1-p)}",
            "Divided by the deviation, large G: the arcsine. A constant at G = 2 and 3.",
        ),
        (r"w = (1 - (1-p)^{G-1})/p", "MaxRL: log p, cut off at order G - 1."),
        (r"w = k (1-p)^{k-1}", "pass@k by subsets."),
    ],
    "Training": [
        (
            r"\eta_t = c/t: \quad T \cdot \mathrm{gap}_T \to \sum_k w_k \chi^2_1",
            "Theorem 8: the law of what is left to gain. The price of grpo there falls as 1/G².",
        ),
    ],
    "Commands": [
        ("", "ustat-pg advise mine.json --budget 1024        which G"),
        ("", 'ustat-pg explain "trl num_generations=8"       what options mean'),
        ("", "ustat-pg predict mine.json --baseline grpo     an error"),
        ("", "assert_unbiased(my_advantages)                 in your CI"),
    ],
}
"""Formulas in TeX with the site's macros, and what they say; without a formula, a command."""


def tables() -> str:
    """The sections as Markdown."""
    lines: list[str] = []
    for title, entries in SECTIONS.items():
        lines += ["", f"## {title}", ""]
        if not entries[0][0]:
            lines += ["```text", *(words for _, words in entries), "```"]
            continue
        # No table: its cells would end at the bars of formulas and be a word wide on a phone.
        lines += [f"$\\displaystyle {formula}$\n: {words}\n" for formula, words in entries]
    return "\n".join(lines)


def draw(target: Path, macros: dict[str, str]) -> None:
    """The PDF: A4, two columns.

    Raises:
        ValueError: it does not fit on one page.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.figure import Figure

    width, height, column = 8.27, 11.69, 3.6
    settings = {"mathtext.fontset": "stix", "font.family": "DejaVu Sans"}
    with mpl.rc_context(settings):
        page = Figure(figsize=(width, height))
        canvas = FigureCanvasPdf(page)

        def put(x: float, y: float, text: str, **style: Any) -> None:
            page.text(x / width, 1 - y / height, text, va="top", **style)

        put(0.5, 0.4, "GRPO as a U-statistic, on one page", fontsize=15, weight="bold")
        put(
            0.5, 0.72, "arXiv 2603.01162; ustat_pg; every line is derived on the site", fontsize=7.5
        )
        x, y = 0.5, 1.1
        for title, entries in SECTIONS.items():
            if y > 0.85 * height:
                x, y = x + column + 0.15, 1.1
            head = textwrap.wrap(title, 44)
            put(x, y, "\n".join(head), fontsize=10, weight="bold", color="#01568c")
            y += 0.16 * len(head) + 0.14
            for formula, words in entries:
                if not formula:
                    put(x, y, words, fontsize=5.9, family="DejaVu Sans Mono")
                    y += 0.24
                    continue
                # Fractions of full size and room for a sum's limits, bars that Matplotlib knows, and a star
                # that is no operator.
                tex = (
                    expand(formula, macros)
                    .replace(r"\frac", r"\dfrac")
                    .replace(r"\sum", r"\;\sum")
                    .replace(r"\lVert", r"\Vert")
                    .replace(r"\rVert", r"\Vert")
                    .replace("^*", r"^\mathrm{*}")
                )
                put(x + 0.1, y, f"${tex}$", fontsize=10.5)
                lines = textwrap.wrap(words, 62)
                y += 0.52 if "frac" in formula or "sum" in formula else 0.3
                put(x + 0.1, y, "\n".join(lines), fontsize=7.2, color="#333333")
                y += 0.14 * len(lines) + 0.2
            y += 0.18
            if x > width - column or y > height - 0.2:
                raise ValueError(f"{title} ends at {x:.1f} by {y:.1f} inches: more than one page")
        canvas.print_pdf(str(target), metadata={"CreationDate": None, "Title": "GRPO on one page"})


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the tables into their page."""
    if page == "cheatsheet":
        source[0] = source[0].replace(MARK, tables())


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the PDF beside the site's other files."""
    if error is None and app.builder.format == "html" and "cheatsheet" in app.env.found_docs:
        draw(Path(app.outdir) / FILE, app.config.prerendered_math_macros)


def setup(app: Sphinx) -> dict[str, Any]:
    """Before the page is parsed, and when all are written."""
    app.connect("source-read", fill)
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
