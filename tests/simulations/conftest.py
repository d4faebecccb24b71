"""What tests of the command share."""

import pytest

from simulations.__main__ import main
from tests.support.commands import refusal_of


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Asks the command for what it refuses: one line, exit code 2, and no file is written."""
    folder = tmp_path / "nothing"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def ask(words):
        text = refusal_of(capsys, main, *words)
        assert not any(path.is_file() for path in folder.rglob("*"))
        return text

    return ask
