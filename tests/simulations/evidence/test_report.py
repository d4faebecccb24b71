"""Reports: the HTML page is whole and self-contained; all of them say the same of a run."""

import json
import re
import shlex
from base64 import b64decode
from collections import Counter
from html.parser import HTMLParser

import pytest

from simulations.__main__ import main
from simulations.evidence.report import html, markdown, verdict_table
from simulations.evidence.results import load_run
from simulations.paper import RESULTS

pytest.importorskip("seaborn")

from figures.__main__ import main as figures

VOID = {"meta", "img", "br", "link", "input", "hr"}
HOSTILE = "<script>alert('x')</script>\"' onload=x &amp; {{ 7 * 7 }} `rm`"


class Page(HTMLParser):
    """What a page holds; refuses tags that do not balance, and attributes given twice."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert len(dict(attributes)) == len(attributes), (tag, attributes)
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with its report, made by the commands."""
    folder = tmp_path_factory.mktemp("run")
    words = ["verify", "ustatistic", "minibatch", "--size", "smoke", "--seed", "3"]
    # In this process: others would load the library anew.
    assert main([*words, "--workers", "1", "--out", str(folder)]) == 0
    assert figures([str(folder), "--report"]) == 0
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def altered(folder, tmp_path, change):
    """The records of a run whose stored verdicts were changed."""
    document = json.loads((folder / "verdicts.json").read_text())
    change(document)
    (tmp_path / "verdicts.json").write_text(json.dumps(document))
    return load_run(tmp_path)


def edited(folder, tmp_path, change):
    """The page of a run whose stored verdicts were changed."""
    return html(altered(folder, tmp_path, change))


def test_the_page_is_sound(page, folder):
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>\n<html lang=")
    ids = Counter(a["id"] for _, a in page.tags if "id" in a)
    assert max(ids.values()) == 1
    targets = {a["href"][1:] for a in page.all("a") if a["href"].startswith("#")}
    assert targets <= set(ids)
    contents = {"results", "figures", "checks", "power", "run"}
    assert targets == {"ustatistic", "minibatch"} | contents
    for stem in ("ustatistic", "minibatch"):
        assert RESULTS[stem].title in "".join(page.text)


def test_no_request_leaves_the_page(page, folder):
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "action", "poster", "xlink:href"):
            if name in attributes:
                address = attributes[name]
                own = address.startswith(("#", "data:image/svg+xml;base64,"))
                # The one link that a reader may follow.
                assert own or (tag == "a" and address == "https://arxiv.org/abs/2603.01162")
    text = (folder / "report.html").read_text()
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|<link|<iframe", text)
    for image in page.all("img"):
        svg = b64decode(image["src"].split(",", 1)[1]).decode()
        assert not re.findall(r"(?:href|src)=\"(?!#)|url\((?!#)|@import", svg)
        assert image["alt"]


def test_every_check_has_its_picture_and_its_command(page, folder):
    document = json.loads((folder / "verdicts.json").read_text())
    checks = [(c["stem"], check) for c in document["claims"] for check in c["checks"]]
    strips = [a for a in page.all("svg") if a.get("class") == "strip"]
    assert len(strips) == len(checks)
    assert all(strip["aria-label"].startswith("estimate ") for strip in strips)
    text = "".join(page.text)
    commands = re.findall(r"^python -m simulations check .*$", text, re.MULTILINE)
    assert len(commands) == len(checks)
    for (stem, check), command in zip(checks, commands, strict=True):
        words = shlex.split(command)
        assert words[4:6] == [stem, check["name"]]
        assert words[6:12] == ["--size", "smoke", "--engine", "cpu", "--seed", "3"]
        # Where one number serves all cells of a check, its evidence counts each cell's.
        each = map(int, words[words.index("--replications") + 1].split(","))
        assert check["simulation"]["replications"] % sum(each) == 0


def claims_on(page):
    """The claims of a page, and whether each is open."""
    return ["open" in a for a in page.all("details") if a["class"].startswith("claim")]


def test_claims_are_folded_and_those_that_failed_are_not(folder, page, tmp_path):
    assert claims_on(page) == [False, False]

    def fail(document):
        first, second = document["claims"]
        first["verdict"] = first["checks"][0]["exact"]["verdict"] = "REFUTED"
        second["verdict"] = "INCONCLUSIVE"
        result = second["checks"][0]["simulation"]
        result |= {"verdict": "INCONCLUSIVE", "interval": [None, None], "standard_error": None}
        result |= {"estimate": None, "smallest_discrepancy": None}
        result["replications_needed"] = 123_456_789
        second["rivals"][1]["verdict"] = "SURVIVED"

    results = altered(folder, tmp_path, fail)
    failed = Page(html(results))
    assert claims_on(failed) == [True, True]
    (banner,) = [a for a in failed.all("p") if "banner" in a.get("class", "")]
    assert banner["class"] == "banner REFUTED"
    text = " ".join("".join(failed.text).split())
    assert "0 of 2 results confirmed, 1 REFUTED, 1 INCONCLUSIVE" in text
    assert "it would need 123,456,789 replications" in text
    # Every door shows the verdict of each claim; the page twice, as a colour and as a word.
    says = {"ustatistic": "REFUTED", "minibatch": "INCONCLUSIVE"}
    table = [line.split("|") for line in verdict_table(results.claims, "github").splitlines()[2:]]
    assert {row[2].strip(): row[3].strip() for row in table if len(row) > 3} == says
    headings = re.findall(r"^## .* \((\w+)\): (.*)$", markdown(results), re.MULTILINE)
    assert dict(headings) == says
    place = rf'(?:href="#|id=")({"|".join(says)})".*?class="verdict (\w+)">\S+ (\w+)<'
    spans = re.findall(place, html(results), re.DOTALL)
    assert spans == [(stem, says[stem], says[stem]) for stem in (*says, *says)]


def test_hostile_names_are_shown_and_not_obeyed(folder, tmp_path):
    def change(document):
        document["run"]["command"] = HOSTILE
        for claim in document["claims"]:
            document["draws"][claim["stem"]][HOSTILE] = [5, 7]
            claim["checks"][0]["name"] = HOSTILE
            claim["rivals"][0]["name"] = HOSTILE
            claim["checks"][0]["rivals"] = {HOSTILE: [1.0, 1.0]}
            claim["checks"][0]["simulation"]["rivals"] = {HOSTILE: "REFUTED"}
            claim["checks"][0]["not_enumerated"] = HOSTILE
            claim["checks"][0]["exact"] = None

    harmless = Page(edited(folder, tmp_path, lambda document: None))
    text = edited(folder, tmp_path, change)
    page = Page(text)
    assert len(page.all("script")) == len(harmless.all("script")) == 1
    assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]
    shown = "".join(page.text)
    assert shown.count(HOSTILE) >= 5
    assert "49" not in re.findall(r"\{\{ 7 \* 7 \}\}|\b49 `rm`", shown)
    # In the command it is one word to a shell.
    command = next(line for line in shown.splitlines() if "simulations check" in line)
    words = shlex.split(command)
    assert words[5] == HOSTILE
    assert words[words.index("--replications") + 1] == "5,7"
