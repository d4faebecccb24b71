"""The playground: its closed forms against the library's, and the page as a student moves it."""

import contextlib
import io
import json
import math
import re

import pytest

from tests.support.site import ROOT
from ustat_pg.moments.record import Moments
from ustat_pg.predictions import MseConstants, gradient_mse, optimal_group_size

FORMULAS = ROOT / "theory" / "_static" / "closed_forms.js"
SETTINGS = [
    dict(zip(("p", "spread", "correlation", "signal", "agreement"), row, strict=True))
    for row in (
        (0.2, 0.5, 0.0, 0.1, 0.3),
        (0.05, 2.0, -1.0, 0.4, 0.0),
        (0.9, 1.0, -0.9, 0.01, 0.9),
        (0.5, 0.0, 0.0, 1.0, 0.3),
        (0.99, 1.5, 0.7, 0.8, 1.0),
        (0.01, 0.1, 1.0, 1.0, 0.5),
    )
]


@pytest.fixture(scope="module")
def formulas():
    """The closed forms of the page, run by V8 without a page: called by name with plain data."""
    racer = pytest.importorskip("py_mini_racer", reason="needs the extra dev")
    context = racer.MiniRacer()
    context.eval(FORMULAS.read_text("utf-8").replace("const closedForms", "var closedForms"))

    def call(name, *arguments):
        written = ", ".join(json.dumps(argument) for argument in arguments)
        return json.loads(context.eval(f"JSON.stringify(closedForms.{name}({written}))"))

    call.names = json.loads(context.eval("JSON.stringify(closedForms.names)"))
    return call


def moments_of(found):
    """The library's record of the page's prompts."""
    return Moments(
        context_probs=[1.0],
        value=[found["value"]],
        reward_variance=[found["rewardVariance"]],
        fisher_trace=[1.0],
        norm_advantage=[found["normAdvantage"]],
        norm_squared_advantage=[found["normSquaredAdvantage"]],
        gradient_sq=[found["gradientSq"]],
        mean_gradient_sq=found["meanGradientSq"],
        reward_range=(0.0, 1.0),
    )


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"p={setting['p']}")
def test_values_are_the_librarys(formulas, setting):
    moments = moments_of(formulas("momentsOf", setting))
    for name in formulas.names:
        for size in (2, 3, 4, 5, 8, 16, 33, 64):
            result = formulas("evaluate", name, size, setting)
            known = gradient_mse(moments, name, size)
            assert result["mse"] == pytest.approx(known.mse, rel=1e-9, abs=1e-12), (name, size)
            assert result["weight"] == pytest.approx(known.mean_factor[0], rel=1e-9)
            noise = size * (known.mse - known.squared_bias) / known.mean_factor[0] ** 2
            assert result["noise"] == pytest.approx(noise, rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"p={setting['p']}")
def test_the_best_group_is_the_librarys(formulas, setting):
    result = formulas("momentsOf", setting)
    moments, sizes = moments_of(result), list(range(2, 65))
    for name in formulas.names:
        best = formulas("bestGroup", name, sizes, setting)
        known = [gradient_mse(moments, name, size) for size in sizes]
        noise = [
            size * (each.mse - each.squared_bias) / each.mean_factor[0] ** 2
            for size, each in zip(sizes, known, strict=True)
        ]
        assert noise[sizes.index(best["best"])] == pytest.approx(min(noise), rel=1e-9, abs=1e-12)
    c1 = result["gradientSq"] - result["meanGradientSq"]
    if c1 > 0:
        c3 = result["rewardVariance"] + result["gradientSq"]
        real = optimal_group_size(MseConstants(c1=c1, c2=0.0, c3=c3))
        assert formulas("bestReal", setting) == pytest.approx(real, rel=1e-9)


def test_the_answers_are_true(formulas):
    """The numbers under *Things to try*, from the settings of the page's buttons."""
    page = (ROOT / "theory" / "playground.md").read_text("utf-8")
    presets = [json.loads(preset) for preset in re.findall(r"data-set='(.*?)'", page)]
    hard, solved, coin, _ = presets
    even = {**hard, "p": 0.2}

    def value(name, size, setting, key):
        return formulas("evaluate", name, size, setting)[key]

    assert value("oracle", 2, coin, "mse") == 0
    found = value("grpo", 2, coin, "mse"), value("grpo", 2, coin, "silent")
    assert found == (0.25, 0.5)
    bend = {
        size: [value("std-ddof1", size, {**even, "p": p}, "weight") for p in (0.05, 0.2, 0.5)]
        for size in (2, 3, 4)
    }
    assert bend[2] == pytest.approx([0.707] * 3, abs=1e-3)
    assert bend[3] == pytest.approx([1.155] * 3, abs=1e-3)
    assert bend[4][0] > 1.01 * bend[4][1]
    ratios = [
        value("vanilla", 8, setting, "mse") / value("oracle", 8, setting, "mse")
        for setting in (solved, {**solved, "correlation": 0})
    ]
    assert ratios == pytest.approx([2.0, 9.6], abs=0.05)
    sizes = list(range(2, 65))
    for changed, best in (
        ({"signal": 1, "agreement": 0}, 3),
        ({"agreement": 0.95}, 30),
        ({"agreement": 0.95, "spread": 2}, 30),
    ):
        assert formulas("bestGroup", "grpo", sizes, {**even, **changed})["best"] == best
    assert value("maxrl", 60, hard, "weight") == pytest.approx(0.95 * 20, abs=0.05)


# ---------------------------------------------------------------- the page in a browser


@pytest.fixture
def page(site, browser):
    """The page, opened anew."""
    browser.get("about:blank")
    browser.get((site / "playground.html").as_uri())
    return browser


def shown(page):
    """All digits of the results, by name."""
    return page.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('[data-result]')]"
        ".map(cell => [cell.dataset.result, [cell.title, cell.textContent]]))"
    )


def printed(page):
    """What the page's own Python prints: MSE and w."""
    code = page.execute_script(
        "return document.querySelector('.playground-python code').textContent"
    )
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    return [float(word) for word in out.getvalue().split()]


@pytest.mark.slow
def test_what_is_shown_is_what_its_python_prints(page):
    names = page.execute_script(
        "return [...document.querySelectorAll('#play-estimator option')].map(o => o.value)"
    )
    assert names == page.execute_script("return closedForms.names")
    for name in names:
        page.execute_script(
            "const menu = document.getElementById('play-estimator'); menu.value = arguments[0];"
            "menu.dispatchEvent(new Event('input', {bubbles: true}))",
            name,
        )
        mse, weight = printed(page)
        assert float(shown(page)["mse"][0]) == pytest.approx(mse, rel=1e-9)
        assert float(shown(page)["weight"][0]) == pytest.approx(weight, rel=1e-9, abs=1e-9)
        assert f"estimator={name.split(':')[0]}" in page.current_url


@pytest.mark.slow
def test_every_control_moves_by_keyboard_and_changes_what_is_shown(page):
    for control in page.find_elements("css selector", "#playground-form input[type=range]"):
        before = shown(page)
        lines = page.find_element("css selector", "[data-plot=mse]").get_attribute("innerHTML")
        control.send_keys("\ue014\ue014\ue014")  # right
        label = page.find_element("css selector", f"label[for={control.get_attribute('id')}]")
        assert label.text.endswith(control.get_attribute("value"))
        assert page.execute_script("return document.activeElement.id") == control.get_attribute(
            "id"
        )
        after = page.find_element("css selector", "[data-plot=mse]").get_attribute("innerHTML")
        # Uncorrelated or of one length alone, norms cannot show.
        assert (shown(page), after) != (before, lines) or control.get_attribute("name") == "spread"
    hard = page.find_element("css selector", "[data-set]")
    hard.send_keys("\ue007")  # enter
    assert page.find_element("id", "play-p").get_attribute("value") == "0.05"


@pytest.mark.slow
def test_the_address_keeps_the_setting(site, browser):
    address = (site / "playground.html").as_uri()
    browser.get("about:blank")
    browser.get(f"{address}#p=0.9&G=16&estimator=maxrl&nothing=1&spread=x")
    assert browser.find_element("id", "play-G").get_attribute("value") == "16"
    weight = float(shown(browser)["weight"][0])
    assert math.isclose(weight, (1 - 0.1**15) / 0.9, rel_tol=1e-9)
