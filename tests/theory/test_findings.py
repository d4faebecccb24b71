"""What the findings and the questions say of other work and of numbers."""

import math
import re
import statistics

import pytest

from simulations.paper import RESULTS
from tests.support.site import ROOT


def page(name):
    return (ROOT / "theory" / f"{name}.md").read_text("utf-8")


def test_what_is_reconstructed_is_said_with_what_the_paper_states():
    text = page("findings")
    said = text.split("\n## What is reconstructed\n")[1].split("\n## ")[0]
    for stem, result in RESULTS.items():
        assert (
            f"- **{result.label}** ([page]({stem}.md)). {result.reconstructed}\n" in said
        ) == bool(result.reconstructed)
    assert "](#what-is-reconstructed)" in text.split("\n\n")[1]


def test_bibtex_says_what_the_citation_file_says():
    cited = pytest.importorskip("yaml").safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    own, paper = cited["preferred-citation"], cited["references"][0]
    written = (
        page("findings").split("```bibtex\n")[1].split("```")[0].replace("\\", "").splitlines()
    )
    for line, one in zip(written, (own, paper), strict=True):
        assert f"title = {{{one['title']}}}" in line
        assert f"year = {{{one['year']}}}" in line
    assert f"author = {{{{{own['authors'][0]['name']}}}}}" in written[0]
    assert f"version = {{{own['version']}}}" in written[0]
    assert (
        f"author = {{{' and '.join(each['family-names'] for each in paper['authors'])}}}"
        in written[1]
    )
    assert [own[each] for each in ("title", "authors", "version")] == [
        cited[each] for each in ("title", "authors", "version")
    ]


def run(monkeypatch, name, last):
    """What a page's cells define, up to the one that has the text ``last`` in it."""
    monkeypatch.syspath_prepend(str(ROOT / "theory" / "_ext"))
    cells = re.findall(r"\{code-cell\} ipython3\n(?::tags:.*\n+)?((?:.*\n)*?)```", page(name))
    there = next(at for at, code in enumerate(cells) if last in code)
    made = {}
    for code in cells[: there + 1]:
        exec(compile(code, name, "exec"), made)
    return made


def optimality(p):
    names = ("no baseline", "grpo", "oracle", "the best constant (minimum variance)")
    rows = zip(names, p["errors"], strict=True)
    return "".join(f"| {name} | {error:.3f} |\n" for name, error in rows)


def group_size(p):
    off = max(abs(enumerated / predicted - 1) for *_, enumerated, predicted in p["rows"])
    return f"agree with the predicted curve within {math.ceil(1000 * off) / 10:.1f}%"


def epochs(p):
    drawn, again = (min(p[each], key=lambda split: split.predicted) for each in ("drawn", "again"))
    return f"the best of five group sizes moves from {drawn.group_size} to {again.group_size}, the largest"


def normalised(p):
    graded = p["table"].loc["limit"]
    own, known = graded["group's deviation"], graded["true deviation"]
    return f"it is ${own:.3f}/G$ instead of ${known:.3f}/G$"


def deviation(p):
    moments, limit = p["moments"], p["table"].loc["limit"]
    known = (moments.norm_squared_advantage - moments.gradient_sq)[0] / moments.reward_variance[0]
    return f"the error is ${limit['G × error']:.2f}/G$ in large groups, and ${known:.3f}/G$"


def practical_mse(p):
    bias, *_, variance = p["rows"][1 / 16]
    share = bias / 16**2 / variance
    assert round(4 * 64 * share) == 1
    group = f"is {share:.3f} of the variance of one group of eight"
    return f"{group}. With 64 prompts in a minibatch it is a quarter"


def arcsine(p):
    low, here, high = (p["ends"][each] for each in ("expected reward", "std, G = 8", "arcsine"))
    return f"At $G = 8$ it has moved {(here - low) / (high - low):.2f} of the way from the optimum"


def best_baseline(p):
    two, four = (
        p["gradient_mse"](p["digits"], "best", G).mse
        / p["gradient_mse"](p["digits"], "grpo", G).mse
        for G in (2, 4)
    )
    return f"has {two:.2f} of grpo's error on the digits at $G = 2$ and {four:.2f} at $G = 4$"


def suboptimality(p):
    slack = p["table"]["bound / gap"]
    return f"it is {slack.min():.2f} to {slack.max():.2f} times the gap"


def limit_law(p):
    return f"with $t_0 = 4$ instead of 80 the distance to the law is {p['distance'](p['gap'], p['own']):.2f}"


def oracle_policy(p):
    pairs = [(math.log(G * (G - 1)) / 2, math.log(runs)) for G, _, _, _, runs, *_ in p["rows"]]
    return f"give a slope of {statistics.linear_regression(*zip(*pairs, strict=True)).slope:.2f} against"


def optimal_policy(p):
    ratio = p["gaps"][2] / p["gaps"][0]
    return f"mean gap is {ratio:.2f} of the oracle's ($G = {p['runs'].group_size}$, {p['steps']} steps)"


def networks(p):
    (_, _, start, *_), *_, (_, _, end, *_) = p["rows"]
    return f"start | {start:.2f} | 0.09 |\n| the same, end | {end:.2f} |"


@pytest.mark.parametrize(
    ("name", "last", "sentence"),
    [
        ("optimality", "errors = [", optimality),
        ("group_size", "exact = training", group_size),
        ("group_size", '"reshuffled epochs"', epochs),
        ("normalised", '"true deviation"', normalised),
        ("normalised", '"silent groups"', deviation),
        ("practical_mse", '"variance"]', practical_mse),
        ("arcsine", "ends = ", arcsine),
        ("best_baseline", "over_the_oracle(", best_baseline),
        ("suboptimality", '"bound / gap"', suboptimality),
        ("limit_law", "for offset in (80.0, 4.0)", limit_law),
        ("oracle_policy", '"times G(G-1)"', oracle_policy),
        ("optimal_policy", '"mean gap"', optimal_policy),
        ("networks", "shown = ", networks),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_numbers_are_those_of_the_pages_cells(monkeypatch, name, last, sentence):
    """Findings say what the page computes; order of words and digits are the findings' own."""
    assert sentence(run(monkeypatch, name, last)) in page("findings")
