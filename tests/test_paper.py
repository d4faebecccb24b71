"""The paper's results by stem and by label."""

from __future__ import annotations

import pytest

from ustat_pg.paper import RESULTS, stem_of
from ustat_pg.validation import InputError


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
    with pytest.raises(InputError, match=f"is unknown, did you mean .*{meant}"):
        stem_of(name)


def test_what_is_near_to_nothing_lists_all():
    with pytest.raises(InputError, match="'qqq' is unknown: choose of ustatistic, mse"):
        stem_of("qqq")
