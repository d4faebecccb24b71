"""The paper's results by stem and by label."""

import pytest

from simulations.paper import RESULTS, stem_of
from tests.support.refusals import refuses


def test_every_result_goes_by_its_stem_and_its_label():
    for stem, result in RESULTS.items():
        for name in (stem, stem.upper(), result.label, result.label.lower().replace(" ", "")):
            assert stem_of(name) == stem


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("msee", "mse"),
        ("theorm 2", "Theorem 2"),
        ("Corolary 4", "Corollary 4"),
        ("lema 1", "Lemma 1"),
    ],
)
def test_the_nearest_is_named(name, meant):
    refuses(f"is unknown, did you mean .*{meant}", stem_of, name)


def test_what_is_near_to_nothing_lists_all():
    refuses("'qqq' is unknown: choose one of ustatistic, mse", stem_of, "qqq")
