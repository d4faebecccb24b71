"""Philox in torch integers: published vectors, and the words of the library's own generator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.philox import KNOWN
from ustat_pg import rng

torch = pytest.importorskip("torch")

from ustat_pg.engines import torch_draws  # noqa: E402

WORD = st.integers(0, 2**32 - 1)
KEY = st.tuples(WORD, WORD)


def integers(array):
    return torch.tensor(np.asarray(array), dtype=torch.int64)


@pytest.mark.parametrize("name", KNOWN)
def test_published_vectors(name):
    counter, key, expected = KNOWN[name]
    assert torch_draws.philox(integers(counter), key).tolist() == expected


@given(st.lists(st.tuples(WORD, WORD, WORD, WORD), min_size=1, max_size=8), KEY)
def test_it_is_the_same_function_of_counter_and_key(counters, key):
    found = torch_draws.philox(integers(counters), key)
    assert found.dtype == torch.int64
    assert found.tolist() == rng.philox(counters, key).tolist()


def test_corners_of_words_give_the_same():
    """All ones and zeros, and the sign bit, where int64 and uint64 part."""
    corners = [0, 1, 2**31 - 1, 2**31, 2**32 - 1]
    counters = np.array(np.meshgrid(*[corners] * 4)).reshape(4, -1).T
    for key in ((0, 0), (2**31, 2**32 - 1), (2**32 - 1, 2**32 - 1)):
        found = torch_draws.philox(integers(counters), key).numpy()
        assert np.array_equal(found, rng.philox(counters, key))


@given(
    KEY,
    st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4),
    st.lists(st.one_of(WORD, st.just(rng.CONTEXT_SLOT)), min_size=1, max_size=3),
    st.integers(1, 13),
    st.integers(0, 2**32),
)
def test_the_words_at_an_address_are_the_generators(key, replications, slots, count, first):
    """Also of replications above 2^32, and from a word in the middle of a block."""
    rows, columns = integers(replications)[:, None], integers(slots)
    found = torch_draws.words(key, rows, columns, count, first % 29)
    whole = rng.words(key, np.array(replications)[:, None], slots, first % 29 + count)
    assert found.shape == (len(replications), len(slots), count)
    assert np.array_equal(found.numpy(), whole[..., first % 29 :])
    # Far from the start there is no beginning to cut off: blocks are counted from the word asked.
    far = torch_draws.words(key, rows[:1], columns[:1], count, first).ravel().tolist()
    at = [
        [block, slots[0], replications[0] % 2**32, replications[0] >> 32]
        for block in range(first // 4, (first + count - 1) // 4 + 1)
    ]
    assert far == rng.philox(at, key).ravel()[first % 4 : first % 4 + count].tolist()


def test_replications_that_differ_above_32_bits_draw_other_words():
    numbers = integers([5, 5 + 2**32, 5 + 2**62])
    found = torch_draws.words((1, 2), numbers, torch.zeros_like(numbers), 4)
    assert len({tuple(row) for row in found.tolist()}) == 3


def test_nothing_is_made_on_another_device():
    """A tensor made without a device would land on the default one and fail."""
    numbers, slots = integers([1, 2]), integers([0, 0])
    with torch.device("meta"):
        found = torch_draws.words((1, 2), numbers, slots, 3)
    assert np.array_equal(found.numpy(), rng.words((1, 2), [1, 2], [0, 0], 3))
