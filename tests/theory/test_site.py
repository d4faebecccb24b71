"""The site as a reader meets it: opened from disk in a browser, with nothing to fetch.

The checks are functions that return complaints, so that the same ones are turned on planted faults.
Where Chromium is not installed the tests that need it are skipped, unless USTAT_REQUIRE_BROWSER=1.
"""

import json
import re
import shutil
from base64 import b64decode
from contextlib import contextmanager
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from simulations import STEMS
from tests.support.site import ROOT, build

PAGES = ("index", *STEMS, "networks", "language_models")
LARGEST = 1_500_000
NAMESPACES = "http://www.w3.org/"

pytest.importorskip("sphinx", reason="the site needs the extra theory")

pytestmark = pytest.mark.slow
"""The site takes minutes to build, whatever a test takes that reads it."""


def pages(site):
    """Every page of the site."""
    return sorted(site.rglob("*.html"))


# ---------------------------------------------------------------- what the files say


class Reader(HTMLParser):
    """What a page loads, where it links, its anchors and its images."""

    def __init__(self, html):
        super().__init__()
        self.links, self.loads, self.images, self.anchors = [], [], [], set()
        self.feed(html)
        self.loads += re.findall(r"url\(\s*['\"]?([^'\")]+)", html)

    def handle_starttag(self, tag, attrs):
        has = {name: value or "" for name, value in attrs}
        if "href" in has and tag in ("a", "link"):
            (self.links if tag == "a" else self.loads).append(has["href"])
        if "id" in has:
            self.anchors.add(has["id"])
        if tag == "img":
            self.images.append(has)
        self.loads += [has[name] for name in ("src", "poster", "data", "action") if name in has]
        self.loads += [source.split()[0] for source in has.get("srcset", "").split(",") if source]


def outside(address):
    """Whether an address leaves the site."""
    return bool(urlsplit(address).netloc) or urlsplit(address).scheme not in {"", "data"}


def complaints_of_files(folder):
    """What the files of a site load from elsewhere, link to in vain, or leave undescribed."""
    result, folder = [], folder.resolve()
    readers = {page: Reader(page.read_text("utf-8")) for page in pages(folder)}
    place = cache(lambda folder, path: (folder / unquote(path)).resolve())
    is_file = cache(Path.is_file)
    for page, reader in readers.items():
        name = page.relative_to(folder)
        result += [f"{name} loads {load[:80]}" for load in reader.loads if outside(load)]
        result += [
            f"{name}: no alt for {i.get('src', '')[:80]}" for i in reader.images if not i.get("alt")
        ]
        if page.stat().st_size > LARGEST:
            result.append(f"{name} has {page.stat().st_size} bytes: at most {LARGEST} are allowed")
        for link in [*reader.links, *reader.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = place(page.parent, parts.path) if parts.path else page
            if not is_file(target):
                result.append(f"{name} points to {link}, which is not there")
            elif (
                parts.fragment
                and target in readers
                and parts.fragment not in readers[target].anchors
            ):
                result.append(f"{name} points to {link}: no such anchor")
    for sheet in folder.rglob("*.css"):
        loads = re.findall(
            r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", sheet.read_text("utf-8")
        )
        result += [f"{sheet.name} loads {a or b}" for a, b in loads if outside(a or b)]
    # MathJax names what it could load, and the browser's log shows that it does not.
    for script in {*folder.rglob("*.js")} - {*folder.rglob("tex-svg-full.js")}:
        literals = re.findall(r"[\"'`]((?:https?:)?//[^\"'`\s]+)", script.read_text("utf-8"))
        result += [f"{script.name} names {u}" for u in literals if not u.startswith(NAMESPACES)]
    return result


def test_files_load_nothing_and_links_resolve(site):
    assert complaints_of_files(site) == []


def test_every_result_has_its_page_with_a_slider_an_exercise_and_a_notebook(site):
    for page in PAGES[1:]:
        text = (site / f"{page}.html").read_text("utf-8")
        assert 'class="slider"' in text, page
        assert 'class="exercise"' in text, page
        assert "A solution" in text, page
        assert f'href="notebooks/{page}.ipynb"' in text
        assert 'class="math' in text
        assert "<img" in text
        assert "sd-dropdown" in text


def test_the_sidebar_has_stars_and_next_follows_the_course(site):
    text = (site / "mse.html").read_text("utf-8")
    assert re.search(r'href="optimality.html">★ ', text)
    assert re.search(r'href="oracle.html">[^★]', text)
    assert re.search(r'class="next-page" href="group_size.html"', text)


def test_slides_and_solutions_are_made_from_the_pages(site):
    slides, solutions = (
        (site / f"{name}.html").read_text("utf-8") for name in ("slides", "solutions")
    )
    assert 20 <= slides.count('class="sheet"') <= 80
    for title in ("The error of one prompt", "The group size at a budget"):
        assert title in slides
    asked = sum(
        page.read_text("utf-8").count('<form class="exercise"') for page in site.glob("*.html")
    )
    assert '<form class="exercise"' not in solutions
    numbers = re.findall(r"data-answer=\"([^\"]+)\"", (site / "mse.html").read_text("utf-8"))
    assert all(f"{float(answer):.6g}" in solutions for answer in numbers)
    assert solutions.count("A solution") >= len(PAGES) - 1 <= asked


def test_every_public_module_and_name_is_in_the_reference(site):
    """What a package lists, or a module defines, is documented where it is defined."""
    import importlib
    import pkgutil

    import sphinx.util.inventory

    import ustat_pg

    inventory = sphinx.util.inventory.InventoryFile.loads(
        (site / "objects.inv").read_bytes(), uri=""
    )
    known = {
        name for kind, objects in inventory.data.items() for name in objects if kind[:3] == "py:"
    }
    names = [
        module.name
        for module in pkgutil.walk_packages(ustat_pg.__path__, "ustat_pg.")
        if not any(part.startswith("_") for part in module.name.split("."))
    ]
    missing = [name for name in names if name not in known]
    for name in ("ustat_pg", "ustat_pg.predictions", "ustat_pg.ustatistics", "ustat_pg.estimators"):
        module = importlib.import_module(name)
        defined = [
            public
            for public, thing in vars(module).items()
            if public[0] != "_" and getattr(thing, "__module__", "") == name
        ]
        for public in getattr(module, "__all__", defined):
            thing = getattr(module, public)
            home = getattr(thing, "__module__", None)
            if callable(thing) and f"{home}.{public}" not in known:
                missing.append(f"{name}.{public}")
    assert missing == []


# ---------------------------------------------------------------- what the browser sees


TYPESET = """
const drawn = window.MathJax && MathJax.startup ? MathJax.startup.promise : document.fonts.ready;
drawn.then(() => setTimeout(arguments[0], 0));
"""
"""What waits until the formulas of the open page are drawn."""


def complaints_of_browser(browser, address):
    """Open a page; what its console says and which requests leave the disk or fail."""
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(address)
    browser.execute_async_script(TYPESET)
    result = [f"console: {entry['message']}" for entry in browser.get_log("browser")]
    asked = {}
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        parameters = message["params"]
        if message["method"] == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            asked[parameters["requestId"]] = url
            if urlsplit(url).scheme not in {"file", "data"}:
                result.append(f"request: {url}")
        elif message["method"] == "Network.loadingFailed":
            result.append(f"failed: {asked.get(parameters['requestId'])}")
    assert asked, "the performance log is empty: the check would see nothing"
    return result


def test_search_works_from_disk(site, browser):
    result = complaints_of_browser(browser, (site / "search.html").as_uri() + "?q=hoeffding")
    assert result == []
    listed = browser.find_elements("css selector", "#search-results a[href]")
    assert any("ustatistics" in link.get_attribute("href") for link in listed)


FORMULAS = """
return [...document.querySelectorAll("article .math")].map(math => {
  const box = (math.querySelector("svg") || math).getBoundingClientRect();
  return {
    text: math.textContent, width: box.width, height: box.height,
    drawn: math.querySelector("mjx-container svg") !== null,
    folded: math.closest("details:not([open])") !== null,
    red: math.querySelector("[data-mml-node=merror], [fill=red]") !== null,
  };
});
"""
RAW = r"\$\$|\\[a-zA-Z]{2,}\{"


def complaints_of_formulas(browser):
    """What is wrong with the formulas of the page that is open."""
    result = []
    for formula in browser.execute_script(FORMULAS):
        text = formula["text"]
        if not formula["drawn"] or formula["red"]:
            result.append(f"not drawn, or an error shown: {text}")
        elif not formula["folded"] and (formula["width"] < 3 or formula["height"] < 5):
            result.append(f"no box: {text}")
    prose = browser.execute_script(
        "const copy = document.querySelector('article').cloneNode(true);"
        "copy.querySelectorAll('pre, code, script, style').forEach(node => node.remove());"
        "return copy.textContent"
    )
    return result + [f"raw TeX: {raw}" for raw in re.findall(RAW, prose)]


BOXES = """
document.querySelectorAll("details").forEach(fold => { fold.open = true; });
const cut = [...document.querySelectorAll("article span.math")]
  .filter(math => !math.closest("table"))
  .filter(math => math.getBoundingClientRect().right > document.documentElement.clientWidth);
return [...document.querySelectorAll("article div.math")]
  .map(math => {
    const box = math.getBoundingClientRect(), number = math.querySelector(".eqno");
    const formula = math.querySelector("svg").getBoundingClientRect();
    const place = number && number.getBoundingClientRect();
    const wrong = [];
    if (formula.left < box.left - 1) wrong.push("its beginning is hidden");
    if (arguments[0] && math.scrollWidth > math.clientWidth + 1) wrong.push("it is wider than its box");
    if (place && place.left < formula.right && formula.left < place.right
        && place.top < formula.bottom && formula.top < place.bottom)
      wrong.push("its number stands over it");
    if (place && place.right > box.right + 1) wrong.push("its number is out of sight");
    return wrong.map(what => `${what}: ${math.textContent.trim()}`);
  }).flat()
  .concat(cut.map(math => `it runs out of the page: ${math.textContent.trim()}`));
"""
"""What is wrong with the places of the formulas of the open page; the argument says whether each display
must have room in its box."""

HIDDEN = """
const wrong = [...document.querySelectorAll("article pre")]
  .filter(box => box.scrollWidth > box.clientWidth + 1)
  .map(box => [box, "a line is longer than its box"]);
for (const box of document.querySelectorAll(".table-wrapper, .text_html, .slider-scroll")) {
  if (box.scrollWidth <= box.clientWidth + 1) continue;
  if (box.scrollWidth > arguments[0] * box.clientWidth && !box.querySelector("mjx-container"))
    wrong.push([box, "it is much wider than its box"]);
  const cell = box.querySelector("tbody tr > *"), seen = box.getBoundingClientRect();
  box.scrollLeft = box.scrollWidth;
  const name = cell.getBoundingClientRect();
  if (name.left < seen.left - 1) wrong.push([box, "its first column goes out of sight"]);
  if (name.width > 0.6 * seen.width) wrong.push([box, "its first column covers the others"]);
  box.scrollLeft = 0;
}
return wrong.map(([box, what]) => `${what}: ${box.textContent.trim().slice(0, 60)}`);
"""
"""What boxes of code, output and tables hide; the argument says how much wider than its box a table without
formulas may be."""

DIVIDED = r"""
const range = document.createRange(), wrong = [];
for (const cell of document.querySelectorAll("article table.docutils tr > :first-child"))
  for (const text of [cell, ...cell.querySelectorAll("a, p")].flatMap(of => [...of.childNodes]))
    if (text.nodeType === Node.TEXT_NODE)
      for (const word of text.data.matchAll(/(?<!\S)[a-zA-Z]{3,11}(?![^\s.,:;])/g)) {
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        if (range.getClientRects().length > 1) wrong.push(`a line divides ${word[0]}`);
      }
return wrong;
"""
"""The words of first columns that a line divides; longer names may be divided."""

WIDTHS = "return [document.documentElement.clientWidth, document.documentElement.scrollWidth]"


@contextmanager
def screen(browser, width, mobile=False):
    """A browser whose window has this width, in pixels."""
    size = {"width": width, "height": 740, "deviceScaleFactor": 1, "mobile": mobile}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("half", [0, 1])
def test_pages_load_nothing_and_draw_their_formulas_in_their_boxes(site, browser, half):
    """Each is opened once, on a desktop, and then held as a phone; a half of them is a worker's."""
    result = {}
    for page in pages(site)[half::2]:
        with screen(browser, 1280):
            complaints = complaints_of_browser(browser, page.as_uri())
            complaints += browser.execute_script(BOXES, True)
            complaints += browser.execute_script(HIDDEN, 9 / 8)
            complaints += complaints_of_formulas(browser)
        with screen(browser, 390, mobile=True):
            complaints += browser.execute_script(BOXES, False)
            complaints += browser.execute_script(HIDDEN, 9)
            complaints += browser.execute_script(DIVIDED)
        with screen(browser, 360, mobile=True):
            seen, taken = browser.execute_script(WIDTHS)
        if not seen == 360 >= taken:
            complaints.append(f"{taken} wide on a phone of 360, of which {seen} are seen")
        if complaints:
            result[str(page.relative_to(site))] = complaints
    assert result == {}


def test_formulas_have_no_macros_and_are_read_by_a_screen_reader(site, browser):
    """Sources are read in other viewers too, which would not know a macro."""
    assert '"macros"' not in (site / "mse.html").read_text("utf-8")
    assert complaints_of_browser(browser, (site / "mse.html").as_uri()) == []
    texts = [formula["text"] for formula in browser.execute_script(FORMULAS)]
    # Theorem 2: the second-order term over G(G-1).
    plain = [re.sub(r"[\s\u2061]", "", text) for text in texts]
    assert any("G(G−1)" in text and "Σ" in text for text in plain), plain


def sliders(site):
    """The pages that have a slider."""
    return [p for p in pages(site) if 'class="slider"' in p.read_text("utf-8")]


SHOWN = """
return [...arguments[0].querySelectorAll(".slider-frame")].filter(frame => frame.offsetHeight > 0)
  .map(frame => [frame.innerText, (frame.querySelector("img") || {}).src || ""]);
"""


def test_sliders_move_by_keyboard(site, browser):
    for page in sliders(site):
        browser.get(page.as_uri())
        for slider in browser.find_elements("css selector", ".slider"):
            control = slider.find_element("css selector", "input[type=range]")
            label = slider.find_element("css selector", "label")
            assert label.get_attribute("for") == control.get_attribute("id")
            value = slider.find_element("css selector", "output")
            assert value.get_attribute("aria-live") == "polite"
            assert not slider.find_element("css selector", "table").is_displayed()
            before, named = browser.execute_script(SHOWN, slider), value.text
            assert len(before) == 1
            at_end = control.get_attribute("value") == control.get_attribute("max")
            control.send_keys("\ue012" if at_end else "\ue014")  # left, right
            after = browser.execute_script(SHOWN, slider)
            assert len(after) == 1
            assert after != before
            assert value.text != named
            assert control.get_attribute("aria-valuetext") == value.text


def test_sliders_read_fully_without_javascript(site, browser):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        for page in sliders(site):
            browser.get(page.as_uri())
            for slider in browser.find_elements("css selector", ".slider"):
                assert not slider.find_element("css selector", "input").is_displayed()
                assert slider.find_element("css selector", "table").is_displayed()
                assert len(browser.execute_script(SHOWN, slider)) == 1
                frames = slider.find_elements("css selector", ".slider-frame")
                rows = slider.find_elements("css selector", "tbody tr")
                assert len(rows) == len(frames)
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_exercises_are_graded(site, browser):
    for page in PAGES[1:]:
        browser.get((site / f"{page}.html").as_uri())
        forms = browser.find_elements("css selector", "form.exercise")
        assert forms, page
        for form in forms:
            answer = float(form.get_attribute("data-answer"))
            field = form.find_element("css selector", "input")
            said = form.find_element("css selector", ".exercise-said")
            label = form.find_element("tag name", "label")
            assert field.get_attribute("id") == label.get_attribute("for")
            for text, result in (
                (f"{answer!r}", "right"),
                (f"{2 * answer} / 2", "right"),
                (f"{100 * answer}%", "right"),
                (f"{1.1 * answer + 0.1}", "wrong"),
                ("many", "unread"),
                ("", "unread"),
            ):
                field.clear()
                field.send_keys(text + "\ue007")  # enter
                assert form.get_attribute("data-result") == result, (page, text)
                hinted = form.get_attribute("data-hint") in said.text
                assert hinted == (result == "wrong")


def test_the_cheatsheet_prints_on_one_page(site, browser):
    browser.get((site / "cheatsheet.html").as_uri())
    browser.execute_async_script(TYPESET)
    sheet = b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert len(re.findall(rb"/Type\s*/Page\b", sheet)) == 1


# ---------------------------------------------------------------- planted faults


def planted(folder, fault):
    """A page with one fault, beside a sound one."""
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>planted</title>'
    (folder / "sound.html").write_text(f"{head}<p>Sound.</p>", "utf-8")
    (folder / "planted.html").write_text(f"{head}<article>{fault}</article>", "utf-8")
    return folder / "planted.html"


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ('<img alt="far" src="https://example.invalid/a.png">', "loads https://example.invalid"),
        ('<img alt="far" src="//example.invalid/a.png">', "loads //example.invalid"),
        ('<link rel="stylesheet" href="https://example.invalid/a.css">', "loads https"),
        ("<style>p { background: url(https://example.invalid/a.png) }</style>", "loads https"),
        ('<a href="nowhere.html">x</a>', "which is not there"),
        ('<a href="sound.html#nowhere">x</a>', "no such anchor"),
        ('<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">', "no alt"),
        ("<p>" + "x" * LARGEST + "</p>", "bytes"),
    ],
)
def test_planted_faults_in_files_are_refused(tmp_path, fault, complaint):
    planted(tmp_path, fault)
    result = complaints_of_files(tmp_path)
    assert any(complaint in one and one.startswith("planted") for one in result), result
    assert not any(one.startswith("sound") for one in result)


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("```{code-cell} ipython3\n1 / 0\n```", "ZeroDivisionError"),
        ("[nowhere](nowhere.md)", "nowhere"),
    ],
)
def test_a_fault_in_a_page_fails_the_build(tmp_path, page, complaint):
    pytest.importorskip("myst_nb", reason="the site needs the extra theory")
    source = tmp_path / "theory"
    source.mkdir()
    for name in ("_ext", "_static", "_templates"):
        shutil.copytree(ROOT / "theory" / name, source / name)
    (tmp_path / "simulations").symlink_to(ROOT / "simulations")
    conf = (ROOT / "theory" / "conf.py").read_text("utf-8")
    (source / "conf.py").write_text(conf, "utf-8")
    front = "---\nfile_format: mystnb\nkernelspec:\n  name: python3\n---\n\n# Planted\n\n"
    (source / "index.md").write_text(front + page + "\n", "utf-8")
    done = build(source, tmp_path / "site")
    assert done.returncode != 0
    assert complaint in done.stderr
