"""Kernels are kept on disk: another process finds them, and only them."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from numba import config, cuda

from tests.support import card
from tests.support.commands import python
from ustat_pg.execution import compiled

PROGRAM = """
import hashlib, pytest
from tests.support import card
with pytest.MonkeyPatch.context() as patch:
    card.pretend(patch)
    for number in (1.5, 2.5):
        code, *found = card.compiled(card.storing(number))
        print(hashlib.sha256(code.encode()).hexdigest(), *found)
"""


def test_another_process_finds_the_kernels(tmp_path):
    """Each of two, which differ by a constant alone."""
    first, second = (
        [
            line.split()
            for line in python(PROGRAM, NUMBA_CACHE_DIR=str(tmp_path)).stdout.splitlines()
        ]
        for _ in range(2)
    )
    assert [found for _, *found in first] == [["0", "1"]] * 2
    assert [found for _, *found in second] == [["1", "0"]] * 2
    assert [code for code, *_ in first] == [code for code, *_ in second]
    assert first[0][0] != first[1][0]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The folder of this test's kernels."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    compiled.folder.cache_clear()
    card.pretend(monkeypatch)
    yield tmp_path
    compiled.folder.cache_clear()


def test_a_kernel_is_found_by_all_that_it_is_made_of(kept, monkeypatch):
    assert card.compiled(card.storing(1.5))[1:] == (0, 1)
    assert card.compiled(card.storing(1.5))[1:] == (1, 0)
    assert card.compiled(card.storing(1.5, fastmath=True))[1:] == (0, 1)
    if not cuda.is_available():
        card.pretend(monkeypatch, (9, 0))
        assert card.compiled(card.storing(1.5))[1:] == (0, 1)


def test_a_damaged_file_is_made_again(kept):
    card.compiled(card.storing(1.5))
    (file,) = kept.glob("*/*.kernel")
    content = file.read_bytes()
    for damaged in (b"", content[:-10], content[:99] + b"no" + content[101:]):
        file.write_bytes(damaged)
        code, *found = card.compiled(card.storing(1.5))
        assert found == [0, 1]
        assert card.compiled(card.storing(1.5)) == (code, 1, 0)


def test_where_nothing_can_be_written_nothing_is_kept(kept, monkeypatch):
    kernel = card.storing(1.5)
    (kept / "is a file").write_text("")
    kernel._cache.cache_path = str(kept / "is a file")
    assert card.compiled(kernel)[1:] == (0, 1)
    kernel = card.storing(1.5)
    kernel._cache.cache_path = ""
    assert card.compiled(kernel)[1:] == (0, 1)


def test_two_threads_compile_a_kernel_once(kept):
    kernel, together = card.storing(1.5), Barrier(2)

    def use(_):
        together.wait()
        return card.compiled(kernel)

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(use, range(2)))) == 1
    assert card.compiled(kernel)[1:] == (0, 1)
