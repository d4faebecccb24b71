"""The example of a run that is watched: a few steps, the records and the picture."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")

FILE = Path(__file__).resolve().parents[2] / "examples" / "watch_noise.py"


def test_a_run_is_watched_and_drawn(tmp_path):
    names = runpy.run_path(str(FILE))
    records = names["train"](11, tmp_path / "run", [])
    assert len(records) == 11
    assert "noise/signal_low" in records[-1]
    names["draw"](records, tmp_path / "noise.svg")
    whole = (tmp_path / "noise.svg").read_bytes()
    names["draw"]([*records[:-1], records[-1] | {"reward": 9.0}], tmp_path / "noise.svg")
    assert (tmp_path / "noise.svg").read_bytes() != whole
