"""Philox against published vectors; its two faces; addresses; thresholds."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from numba import njit

from tests.support.philox import KNOWN, ONES
from ustat_pg import rng
from ustat_pg.engines.gradients.lanes import philox_scalar
from ustat_pg.validation import InputError


@njit
def scalar_face(counters, keys, out):
    for n in range(len(counters)):
        c, k = counters[n], keys[n]
        words = philox_scalar(c[0], c[1], c[2], c[3], k[0], k[1])
        for i in range(4):
            out[n, i] = words[i]


def scalar(counters, keys):
    counters, keys = np.asarray(counters, np.uint64), np.asarray(keys, np.uint64)
    out = np.empty((len(counters), 4), np.uint64)
    scalar_face(counters, keys, out)
    return out


@pytest.mark.parametrize("name", KNOWN)
def test_published_vectors(name):
    counter, key, expected = KNOWN[name]
    assert rng.philox(counter, key).tolist() == expected
    assert scalar([counter], [key])[0].tolist() == expected


def test_the_two_faces_are_one_function():
    generator = np.random.default_rng(0)
    counters = generator.integers(0, 2**32, (2000, 4), dtype=np.uint64)
    keys = generator.integers(0, 2**32, (2000, 2), dtype=np.uint64)
    # Corners: words that are all ones or zero.
    counters[:16] = np.array(np.meshgrid(*[[0, ONES]] * 4)).reshape(4, -1).T
    array = rng.philox(counters, keys)
    assert array.dtype == np.uint32
    assert np.array_equal(array, scalar(counters, keys))


def test_one_key_serves_many_counters():
    counters = np.arange(24).reshape(2, 3, 4)
    found = rng.philox(counters, [1, 2])
    assert found.shape == (2, 3, 4)
    for where in np.ndindex(2, 3):
        assert np.array_equal(found[where], rng.philox(counters[where], [1, 2]))


def test_a_word_is_where_its_address_says():
    key = rng.cell_key(3, "cell")
    rep, slot = 2**40 + 3, 5
    found = rng.words(key, rep, slot, 10)
    assert found.shape == (10,)
    for i in range(10):
        block = rng.philox([i // 4, slot, rep & ONES, rep >> 32], key)
        assert found[i] == block[i % 4]


def test_words_of_a_replication_do_not_depend_on_its_company():
    key = rng.cell_key(0, "cell")
    alone = rng.words(key, 7, 2, 9)
    for count in range(9, 14):
        many = rng.words(key, np.arange(5, 10)[:, None], np.arange(4), count)
        assert many.shape == (5, 4, count)
        assert np.array_equal(many[2, 2, :9], alone)
    for count in range(1, 9):
        assert np.array_equal(rng.words(key, 7, 2, count), alone[:count])


def test_words_differ_between_addresses():
    """No two addresses share a word: 64-bit pairs of words collide with probability 1e-11 here."""
    pairs = []
    for seed in range(3):
        for cell in ("a", "b"):
            key = rng.cell_key(seed, cell)
            reps = np.array([0, 1, 2, 2**32, 2**32 + 1, 2**33, 2**40])[:, None]
            slots = np.array([0, 1, 2, 77, rng.CONTEXT_SLOT])
            drawn = rng.words(key, reps, slots, 12).reshape(-1, 2).astype(np.uint64)
            pairs.append((drawn[:, 0] << np.uint64(32)) | drawn[:, 1])
    pairs = np.concatenate(pairs)
    assert len(np.unique(pairs)) == len(pairs)


def test_keys_are_pinned():
    """A stored result names its seed: the key behind it must not change between releases."""
    # BLAKE2b of "7\\0cell", eight bytes, read as two little-endian words.
    assert rng.cell_key(7, "cell").tolist() == [0x1285AFA9, 0x4431B08B]
    assert rng.cell_key(0, "").dtype == np.uint64
    assert rng.cell_key(0, "a").shape == (2,)
    assert (rng.cell_key(12345, "x/G4/B2/iid") <= ONES).all()
    keys = {tuple(rng.cell_key(s, c).tolist()) for s in range(50) for c in ("", "0", "1", "11")}
    assert len(keys) == 200
    # "1" with cell "1x" against "11" with cell "x": the separator keeps them apart.
    assert rng.cell_key(1, "1x").tolist() != rng.cell_key(11, "x").tolist()


def test_words_are_uniform():
    """Bytes of 400,000 words, pairs of neighbours and single bits, at a fixed seed."""
    drawn = rng.words(rng.cell_key(2024, "uniform"), np.arange(50_000), 0, 8)
    count = np.bincount(drawn.view(np.uint8).ravel(), minlength=256)
    assert scipy.stats.chisquare(count).pvalue > 1e-3
    nibble = (drawn >> np.uint32(28)).astype(np.int64)
    pairs = np.bincount((nibble[:, :-1] * 16 + nibble[:, 1:]).ravel(), minlength=256)
    assert scipy.stats.chisquare(pairs).pvalue > 1e-3
    across = np.bincount((nibble[:-1] * 16 + nibble[1:]).ravel(), minlength=256)
    assert scipy.stats.chisquare(across).pvalue > 1e-3
    for bit in range(32):
        ones = int(((drawn >> np.uint32(bit)) & np.uint32(1)).sum())
        assert abs(ones - drawn.size / 2) < 5 * np.sqrt(drawn.size) / 2


def chosen(ends, word):
    """The outcome of a word by the definition: ends[j-1] <= word < ends[j]."""
    (found,) = [j for j in range(len(ends)) if (ends[j - 1] if j else 0) <= word < ends[j]]
    return found


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
    assert np.abs(widths - probs).max() < 2.0**-32
    assert ends[-1] == 2**32


def test_thresholds_by_hand():
    assert rng.thresholds([0.25, 0.0, 0.75]).tolist() == [2**30, 2**30, 2**32]
    assert rng.thresholds([0.0, 1.0, 0.0]).tolist() == [0, 2**32, 2**32]
    assert rng.thresholds([[1.0, 0.0], [0.5, 0.5]]).tolist() == [[2**32] * 2, [2**31, 2**32]]
    assert rng.thresholds([1 / 3] * 3).dtype == np.uint64


def test_sums_that_round_below_one_leave_no_gap():
    probs = np.full(49, 1 / 49)
    assert np.cumsum(probs)[-1] != 1.0
    assert rng.thresholds(probs)[-1] == 2**32


@pytest.mark.parametrize("probs", [[0.5, 0.5 - 9e-10], [0.5, 0.5 - 9e-10, 0.0, 0.0]])
def test_a_sum_that_is_short_within_tolerance_leaves_no_word_without_outcome(probs):
    ends = rng.thresholds(probs).tolist()
    assert ends[1:] == [2**32] * (len(probs) - 1)
    assert chosen(ends, ONES) == 1


def test_padding_after_the_last_outcome_is_not_drawn():
    """Outcomes are padded to equal length; a sum below 1 must not reach the padding."""
    probs = np.append(np.full(49, 1 / 49), [0.0, 0.0])
    ends = rng.thresholds(probs).tolist()
    assert chosen(ends, ONES) == 48


@pytest.mark.parametrize(
    "probs", [[0.5, 0.4], [1.5, -0.5], [float("nan"), 1.0], [[1.0, 0.0], [0.5, 0.6]]]
)
def test_thresholds_refuse_what_is_no_law(probs):
    with pytest.raises(InputError, match="nonnegative and sum to 1"):
        rng.thresholds(probs)


def test_draws_follow_the_law():
    probs = np.array([0.05, 0.0, 0.35, 0.6])
    drawn = rng.words(rng.cell_key(1, "law"), np.arange(40_000), 3, 4).ravel()
    found = np.searchsorted(rng.thresholds(probs), drawn.astype(np.uint64), side="right")
    count = np.bincount(found, minlength=4)
    assert count[1] == 0
    assert scipy.stats.chisquare(count[[0, 2, 3]], probs[[0, 2, 3]] * len(drawn)).pvalue > 1e-3


def test_slots_of_steps_never_meet():
    corners = [0, 1, 2, rng.MOST_PROMPTS - 1]
    steps = [0, 1, 2, rng.MOST_STEPS - 1, rng.MOST_STEPS]
    slots = rng.step_slots(np.array(steps)[:, None], corners)
    assert slots.dtype == np.uint64
    assert slots.tolist() == [[s * 1024 + b for b in corners] for s in steps]
    assert len(np.unique(slots)) == slots.size
    assert slots.max() < 2**31 < rng.CONTEXT_SLOT
    assert rng.step_slots(1, 0) == rng.step_slots(0, rng.MOST_PROMPTS - 1) + 1


@pytest.mark.parametrize(
    ("steps", "prompts"), [(2**20 + 1, 0), (1, 2**10), (-1, 0), (0, -1), (0.5, 0), ([1, 2**21], 0)]
)
def test_steps_and_prompts_without_a_slot_are_refused(steps, prompts):
    with pytest.raises(InputError, match="whole numbers from 0 to"):
        rng.step_slots(steps, prompts)
