"""Commands in processes of their own, killed while they run."""

import json
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from tests.support.commands import ROOT


def claims_in(text: str) -> str:
    """The claims of a run's records, as text."""
    return json.dumps(json.loads(text)["claims"])


def blocks(folder: Path) -> int:
    """Blocks that a run has finished."""
    return len(list((folder / "blocks").glob("*.json")))


def interruptible(words: list[str]) -> subprocess.Popen[str]:
    """A command of this repository that hears an interruption, whatever the tests' own shell ignores."""
    return subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


def kill_in_mid_run(
    words: list[str], folder: Path, more: int, whole: int, kills: Iterable[int]
) -> subprocess.CompletedProcess[str]:
    """Run a command once for each signal, killed when ``more`` blocks of the ``whole`` are finished;
    then once more, to its end.
    """
    kept = blocks(folder)
    for kill in kills:
        process = interruptible(words)
        deadline = time.monotonic() + 1200
        while time.monotonic() < deadline and process.poll() is None:
            if blocks(folder) >= kept + more:
                break
            time.sleep(0.002)
        process.send_signal(kill)
        _, error = process.communicate(timeout=1200)
        assert process.returncode == (-9 if kill == signal.SIGKILL else 130), error
        if kill != signal.SIGKILL:
            assert error == "simulations: interrupted; finished blocks are kept\n"
        kept = blocks(folder)
        assert 0 < kept < whole
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert not list((folder / "blocks").glob("*.damaged"))
    return done
