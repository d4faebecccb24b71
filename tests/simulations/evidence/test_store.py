"""Blocks on disk: whole or not at all, never a foreign one, nothing lost."""

import errno
import json
import re
from pathlib import Path

import pytest

from simulations.evidence import Store, StoreError
from simulations.evidence import store as module
from tests.support.refusals import refuses

WHAT = {"kind": "block", "first": 0}
FOUND = {"n": 2, "mean": [0.1]}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "blocks")


def file_of(store: Store) -> Path:
    return store.folder / f"{store.key(WHAT)}.json"


def test_a_result_comes_back_bit_for_bit_and_for_no_other_description(store):
    store.put(WHAT, FOUND)
    assert store.get(WHAT) == FOUND
    assert store.get({**WHAT, "first": 1}) is None
    assert [path.name for path in store.folder.iterdir()] == [file_of(store).name]


def test_the_key_follows_the_code(store, monkeypatch):
    store.put(WHAT, FOUND)
    monkeypatch.setattr(module, "code_version", lambda: "another")
    assert store.get(WHAT) is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'{"descr',
        b"[]",
        b'{"description": {}}',
        json.dumps({"description": WHAT, "checksum": "0" * 16, "result": FOUND}).encode(),
        json.dumps({"description": {"kind": "other"}, "checksum": "", "result": FOUND}).encode(),
        b"\xff\xfe\x00",
    ],
    ids=["empty", "truncated", "list", "incomplete", "checksum", "foreign", "no text"],
)
def test_a_damaged_file_is_kept_named_and_computed_again(store, text):
    file_of(store).write_bytes(text)
    assert store.get(WHAT) is None
    (aside,) = store.set_aside
    assert Path(aside).read_bytes() == text
    store.put(WHAT, FOUND)
    assert store.get(WHAT) == FOUND


def test_damaged_files_are_all_kept_in_order(store):
    for number in range(3):
        file_of(store).write_bytes(b"%d" % number)
        assert store.get(WHAT) is None
    names = [file_of(store).with_suffix(f".damaged{n or ''}") for n in range(3)]
    assert store.set_aside == [str(name) for name in names]
    assert [name.read_bytes() for name in names] == [b"0", b"1", b"2"]


def test_a_key_is_32_signs_whatever_the_order_of_a_description(store):
    assert re.fullmatch("[0-9a-f]{32}", store.key(WHAT))
    assert store.key(dict(reversed(WHAT.items()))) == store.key(WHAT)
    assert store.key({"a": [1, 2]}) == store.key({"a": (1, 2)})
    store.put({"a": (1, 2)}, FOUND)
    assert store.get({"a": (1, 2)}) == FOUND


def test_blocks_are_not_waited_for_and_results_are(store, monkeypatch):
    """A power failure may cut a block off, which its checksum tells, and no page."""
    waited = []
    true = module.whole_file
    monkeypatch.setattr(
        module,
        "whole_file",
        lambda path, lasting: waited.append(lasting) or true(path, lasting=lasting),
    )
    store.put(WHAT, FOUND)
    store.write(store.folder / "page", "text")
    assert waited == [False, True]


def test_memory_keeps_nothing():
    memory = module.Memory()
    memory.put(WHAT, FOUND)
    assert memory.get(WHAT) is None
    assert memory.set_aside == []
    assert memory.key(dict(reversed(WHAT.items()))) == memory.key(WHAT) != memory.key({})


def test_a_folder_is_made_with_its_parents_or_refused(tmp_path):
    Store(tmp_path / "a" / "b")
    Store(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    refuses("results cannot be written here", Store, tmp_path / "file")


def test_a_full_disk_is_one_clear_error_and_finished_blocks_stay(store, monkeypatch):
    store.put(WHAT, FOUND)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    # Said when the file is closed, or when the disk is waited for.
    monkeypatch.setattr(module.Path, "replace", full)
    with pytest.raises(StoreError, match=r"No space left.*finished blocks are kept"):
        store.put({**WHAT, "first": 1}, FOUND)
    assert store.get(WHAT) == FOUND
    assert len(list(store.folder.iterdir())) == 1
