"""The picture of the floors is that of the contracts, and no package or module is missing."""

from itertools import chain

from figures.floors import COLOURS, FILE, ROOT, floors, picture

UNSEEN = {"_version", "one_step"}
"""A number; and the part of the claim ``suboptimality`` that is asked of networks."""


def test_every_package_and_module_stands_on_one_floor():
    for package in COLOURS:
        files = ROOT.joinpath(*package.split(".")).iterdir()
        there = {
            file.stem
            for file in files
            if (file.suffix == ".py" and file.stem != "__init__") or (file / "__init__.py").exists()
        }
        drawn = list(chain.from_iterable(floors(package)))
        assert len(drawn) == len(set(drawn))
        assert there - set(drawn) <= UNSEEN
        assert set(drawn) <= there


def test_the_committed_picture_is_the_one_that_is_drawn():
    assert FILE.read_text("utf-8") == picture(), "python -m figures.floors"
