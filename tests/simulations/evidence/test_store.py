"""Blocks on disk: whole or not at all, never a foreign one, nothing lost."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from simulations.evidence import Store, StoreError
from simulations.evidence import store as module

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
