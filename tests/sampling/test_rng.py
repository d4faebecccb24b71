"""Philox against published vectors; its faces; addresses; shuffles; thresholds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from ustat_pg.engines import draws
from ustat_pg.sampling import rng

ONES = 0xFFFFFFFF
# Random123, tests/kat_vectors, philox4x32 10: counter, key, words.
KNOWN = {
    "zero": ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    "ones": ([ONES] * 4, [ONES] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    "pi": (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
}

WORD = st.one_of(st.integers(0, ONES), st.sampled_from([0, 1, 2**31 - 1, 2**31, ONES]))
COUNTERS = st.lists(st.tuples(*[WORD] * 4), min_size=1, max_size=8)


@njit
def compiled_face(counters, key, out):
    for n in range(len(counters)):
        c = counters[n]
        out[n] = np.array(draws.philox(c[0], c[1], c[2], c[3], key[0], key[1]))


@njit
def addressed_face(counters, key, out):
    """By the number of a replication."""
    for n in range(len(counters)):
        c = counters[n]
        out[n] = np.array(draws.words_at(c[0], c[1], c[2] | (c[3] << 32), key))


@njit
def narrow_face(counters, key, out):
    """As kernels have it."""
    narrow = np.uint32(key[0]), np.uint32(key[1])
    for n in range(len(counters)):
        c = counters[n]
        words = draws.words_of_32(c[0], c[1], np.uint32(c[2]), np.uint32(c[3]), narrow)
        for k in range(4):
            out[n, k] = words[k]


def compiled(counters, key, face=compiled_face):
    out = np.empty((len(counters), 4), np.int64)
    face(np.array(counters, np.int64), np.array(key, np.int64), out)
    return out.tolist()


def addressed(counters, key):
    return compiled(counters, key, addressed_face)


def narrow(counters, key):
    return compiled(counters, key, narrow_face)


def whole(counters, key):
    """In whole numbers without end, where nothing wraps."""
    return [list(rng.philox(*map(int, counter), *map(int, key))) for counter in counters]


def arrays(counters, key):
    with np.errstate(all="raise"):
        return np.stack(rng.philox(*np.array(counters, np.int64).T, *key), axis=-1).tolist()


def tensors(counters, key):
    torch = pytest.importorskip("torch")
    columns = torch.tensor(counters, dtype=torch.int64).unbind(-1)
    return torch.stack(rng.philox(*columns, *key), dim=-1).tolist()


@pytest.mark.parametrize("name", KNOWN)
def test_published_vectors(name):
    counter, key, expected = KNOWN[name]
    assert whole([counter], key) == [expected]


@pytest.mark.parametrize("face", [arrays, tensors, compiled, addressed, narrow])
@given(COUNTERS, st.tuples(WORD, WORD))
def test_every_face_is_one_function(face, counters, key):
    assert face(counters, key) == whole(counters, key)


@given(
    st.tuples(WORD, WORD),
    st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4),
    st.lists(st.one_of(WORD, st.just(rng.CONTEXT_SLOT)), min_size=1, max_size=3),
    st.integers(1, 13),
    st.integers(0, 2**32),
)
def test_words_stand_where_their_address_says(key, replications, slots, count, first):
    """Also above 2^32, and from a word in the middle of a block."""
    rows = np.array(replications)[:, None]
    result = rng.words(key, rows, slots, count, first)
    assert result.shape == (len(replications), len(slots), count)
    for r, rep in enumerate(replications):
        for s, slot in enumerate(slots):
            for i, word in enumerate(result[r, s].tolist(), start=first):
                counter = i // 4, slot, rep & ONES, rep >> 32
                assert word == rng.philox(*counter, *key)[i % 4]


@njit
def compiled_shuffle(order, words, first):
    for r in range(len(order)):
        for step in range(words.shape[1]):
            draws.swap(order[r], first + step, words[r, step])


@given(st.integers(1, 6), st.data())
def test_arrays_and_bodies_shuffle_alike(total, data):
    """By the definition: place j swaps with place j + floor(w (N - j) / 2^32)."""
    first = data.draw(st.integers(0, total - 1))
    row = st.lists(WORD, min_size=total - first, max_size=total - first)
    words = np.array(data.draw(st.lists(row, min_size=1, max_size=3)), np.int64)
    order = np.tile(np.arange(total), (len(words), 1))
    loop, expected = order.copy(), order.tolist()
    for line, drawn in zip(expected, words.tolist(), strict=True):
        for j, word in enumerate(drawn, start=first):
            other = j + word * (total - j) // 2**32
            line[j], line[other] = line[other], line[j]
    rng.shuffle(order, words, first)
    compiled_shuffle(loop, words, first)
    assert order.tolist() == loop.tolist() == expected


def test_keys_are_pinned():
    """A stored result names its seed: the key behind it must not change between releases."""
    # BLAKE2b of "7\\0cell", eight bytes, read as two little-endian words.
    assert rng.cell_key(7, "cell").tolist() == [0x1285AFA9, 0x4431B08B]
    assert rng.cell_key(0, "").dtype == np.int64
    assert rng.cell_key(0, "a").shape == (2,)
    assert (rng.cell_key(12345, "x/G4/B2/iid") <= ONES).all()
    keys = {tuple(rng.cell_key(s, c).tolist()) for s in range(50) for c in ("", "0", "1", "11")}
    assert len(keys) == 200
    # "1" with cell "1x" against "11" with cell "x": the separator keeps them apart.
    assert rng.cell_key(1, "1x").tolist() != rng.cell_key(11, "x").tolist()


def chosen(ends, word):
    """The outcome of a word by the definition: ends[j-1] <= word < ends[j]."""
    (result,) = [j for j in range(len(ends)) if (ends[j - 1] if j else 0) <= word < ends[j]]
    return result


@pytest.mark.parametrize(
    "probs",
    [
        [1.0],
        [0.5, 0.5],
        [0.0, 1.0],
        [1.0, 0.0],
        [0.0, 0.0, 1.0, 0.0, 0.0],
        [0.25, 0.0, 0.75],
        [1 / 3] * 3,
        [0.1] * 10,
        [0.0, 0.5, 0.0, 0.5, 0.0],
        [1e-300, 1.0 - 1e-16, 0.0],
        # Sums that round below 1 or are short of it, with and without padding behind.
        [1 / 49] * 49,
        [*[1 / 49] * 49, 0.0, 0.0],
        [0.5, 0.5 - 9e-10],
        [0.5, 0.5 - 9e-10, 0.0, 0.0],
    ],
)
def test_every_word_has_one_outcome_and_none_of_probability_zero(probs):
    ends = rng.thresholds(probs).tolist()
    edges = {0, 1, ONES - 1, ONES} | {
        word for end in ends for word in (end - 1, end, end + 1) if 0 <= word <= ONES
    }
    for word in edges:
        assert probs[chosen(ends, word)] > 0
    widths = np.diff([0, *ends]) / 2**32
    assert np.abs(widths - probs).max() < 2.0**-32 + 1 - sum(probs)
    assert ends[-1] == 2**32


def test_slots_of_steps_never_meet():
    corners = [0, 1, 2, rng.MOST_PROMPTS - 1]
    steps = [0, 1, 2, rng.MOST_STEPS - 1, rng.MOST_STEPS]
    slots = rng.step_slots(np.array(steps)[:, None], corners)
    assert slots.dtype == np.int64
    assert slots.tolist() == [[s * 1024 + b for b in corners] for s in steps]
    assert len(np.unique(slots)) == slots.size
    assert slots.max() < 2**31 < rng.CONTEXT_SLOT
    assert rng.step_slots(1, 0) == rng.step_slots(0, rng.MOST_PROMPTS - 1) + 1
