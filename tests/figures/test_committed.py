"""The committed figures: of one run, and told on their pages as their own data tell them."""

import re
from hashlib import sha256
from pathlib import Path

import pytest

from simulations import ON_LANGUAGE_MODELS

ROOT = Path(__file__).resolve().parents[2]
DRAWN = sorted(file for file in (ROOT / "figures").glob("*.svg") if file.stem != "floors")
SOURCE = r"<dc:source>(.*?)</dc:source>"
COUNT = r"\d+ of \d+ intervals exclude the predicted value\."
PAGES = "\n".join(page.read_text("utf-8") for page in (ROOT / "theory").rglob("*.md"))


def told(name):
    """What pages say of a figure, its description and its caption."""
    blocks = rf"^:::\{{figure\}} (?:\.\./)+figures/{name}\.svg\n(.*?)^:::$"
    return "\n".join(re.findall(blocks, PAGES, re.S | re.M))


def source(svg):
    """The run that a figure says that it is drawn from."""
    found = re.search(SOURCE, svg)
    return found and found[1]


# What language models draw is of their own run.
OF_CLAIMS = [file for file in DRAWN if not file.stem.startswith(ON_LANGUAGE_MODELS)]


SIGNED = [file for file in DRAWN if source(file.read_text("utf-8"))]


def test_all_are_of_one_run():
    runs = {source(file.read_text("utf-8")) for file in OF_CLAIMS}
    assert len(runs) == 1
    assert "simulations verify" in runs.pop()


@pytest.mark.parametrize(
    "file", [f for f in DRAWN if source(f.read_text("utf-8"))], ids=lambda file: file.stem
)
def test_a_png_is_drawn_with_its_svg(file):
    image = pytest.importorskip("PIL.Image")
    svg = file.read_bytes()
    with image.open(file.with_suffix(".png")) as picture:
        assert picture.info["Source"] == sha256(svg).hexdigest()


@pytest.mark.parametrize("file", DRAWN, ids=lambda file: file.stem)
def test_a_caption_says_how_many_intervals_are_off(file):
    """The counts of a caption are those that were taken as the figure was drawn."""
    assert re.findall(COUNT, told(file.stem)) == re.findall(COUNT, file.read_text("utf-8"))
