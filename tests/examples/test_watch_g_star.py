"""The example of G* by step: a few steps, the records and the picture."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")

FILE = Path(__file__).resolve().parents[2] / "examples" / "watch_g_star.py"


def test_sums_are_right_and_a_first_line_is_judged():
    names = runpy.run_path(str(FILE))
    for row in names["sums"](5):
        *worked, last = row["prompt"].split("\n")
        assert len(worked) == 4
        for line in [*worked, f"{last} {row['answer']}"]:
            left, right = line.split(" = ")
            assert sum(map(int, left.split(" + "))) == int(right)
    assert names["right"]([" 4\n5", "5\n4", "4 "], ["4", "4", "4"]) == [1.0, 0.0, 1.0]


def test_a_picture_of_records_shows_the_ends_that_are_known(tmp_path):
    names, pictures = runpy.run_path(str(FILE)), set()
    known = {"noise/g_star": 3.0, "noise/g_star_low": 2.0}
    for last in ({}, known, known | {"noise/g_star_high": 5.0}):
        names["draw"](
            [{"step": 1}, {"step": 2, **known}, {"step": 3, **last}], tmp_path / "g_star.svg"
        )
        pictures.add((tmp_path / "g_star.svg").read_text())
    assert len(pictures) == 3
