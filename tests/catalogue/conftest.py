import pytest


@pytest.fixture
def written(tmp_path):
    def write(name, text, beside=None):
        for other, content in {**(beside or {}), name: text}.items():
            place = tmp_path / other
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)
        return str(tmp_path / name)

    return write
