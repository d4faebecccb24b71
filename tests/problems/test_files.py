"""Problems in files: round trips, and files that are not what they should be."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ustat_pg.problems import (
    KINDS,
    LocationBandit,
    SoftmaxBandit,
    example_problem,
    load_problem,
    problem_from_mapping,
    random_problem,
    save_problem,
)
from ustat_pg.validation import InputError

suffixes = pytest.mark.parametrize("suffix", [".json", ".npz"])


@suffixes
@pytest.mark.parametrize("kind", KINDS)
def test_a_problem_is_read_back_as_written(tmp_path, kind, suffix):
    for seed in range(5):
        problem = random_problem(seed, kind)
        path = tmp_path / f"{seed}{suffix}"
        save_problem(problem, path)
        found = load_problem(str(path))
        assert type(found.policy) is type(problem.policy)
        assert set(found.arrays()) == set(problem.arrays())
        for name, array in problem.arrays().items():
            assert np.allclose(found.arrays()[name], array, rtol=1e-15, atol=0), name


@suffixes
def test_a_problem_is_read_back_unchanged(tmp_path, suffix):
    """To the last bit: the digest is the address of a problem's draws."""
    changed = []
    for kind in KINDS:
        for seed in range(10):
            problem = random_problem(seed, kind)
            save_problem(problem, tmp_path / f"a{suffix}")
            if load_problem(tmp_path / f"a{suffix}").digest != problem.digest:
                changed.append((kind, seed))
    assert not changed


def with_offset(offset=((0.1, -0.7, 1 / 3), (0.0, 2.5, -1e-3))):
    return SoftmaxBandit.linear(
        [0.25, 0.75],
        np.linspace(-1, 1, 12).reshape(2, 3, 2),
        [0.3, -0.2],
        np.tile([1.0, 0.0], (2, 3, 1)),
        np.tile([0.4, 0.6], (2, 3, 1)),
        offset,
    )


@suffixes
def test_an_offset_is_written_and_read_back_to_the_last_bit(tmp_path, suffix):
    problem, path = with_offset(), tmp_path / f"a{suffix}"
    save_problem(problem, path)
    found = load_problem(path)
    assert np.array_equal(found.policy.offset, problem.policy.offset)
    assert np.array_equal(found.policy.probs, problem.policy.probs)
    assert found.digest == problem.digest != with_offset(None).digest
    location = LocationBandit.bump([-1.0, 1.0], [0.2, 0.4])
    best = location.at(location.maximiser)
    save_problem(best, path)
    found = load_problem(path)
    assert found.digest == best.digest
    assert found.objective() == pytest.approx(location.maximum, rel=1e-13)


@suffixes
def test_a_problem_without_an_offset_has_none_in_its_file(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    save_problem(with_offset(None), path)
    assert load_problem(path).policy.offset is None
    names = json.loads(path.read_text()) if suffix == ".json" else np.load(path).files
    assert "offset" not in names


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        ("[[0, 0, 0]]", r"offset has shape \(1, 3\): it must be contexts and arms, \(2, 3\)"),
        ("[0, 0, 0]", "offset has shape"),
        ("[[0, 0, NaN], [0, 0, 0]]", "offset holds nan"),
        ('"none"', "offset is not an array of numbers"),
    ],
)
def test_an_offset_that_is_refused_is_named_with_the_file(tmp_path, offset, message):
    path = tmp_path / "a.json"
    save_problem(with_offset(None), path)
    text = path.read_text().rstrip()
    path.write_text(f'{text[:-1]}, "offset": {offset}}}')
    with pytest.raises(InputError, match=message) as caught:
        load_problem(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("form", ["logits", "weights"])
def test_only_features_of_arms_have_an_offset(form):
    data = example_problem() | {"offset": [[0.0] * 3] * 2}
    if form == "weights":
        del data["logits"]
        data |= {"context_features": [[1.0]] * 2, "weights": [[0.0]] * 3}
    with pytest.raises(InputError, match="unknown names: offset"):
        problem_from_mapping(data)


def test_the_example():
    problem = problem_from_mapping(example_problem())
    assert (problem.contexts, problem.arms, problem.d) == (2, 3, 6)
    assert np.allclose(problem.policy.probs, [[0.5, 0.25, 0.25], [0.2, 0.4, 0.4]])
    # V = .5; V = .2 + .4 (.5 .4 - .5 .6) + .4 .3 .6.
    assert np.allclose(problem.moments().value, [0.5, 0.2 - 0.04 + 0.072])
    assert problem.reward_range == (-0.5, 1.0)
    assert json.loads(json.dumps(example_problem())) == example_problem()


@pytest.mark.parametrize("name", list(example_problem()))
def test_a_missing_name_is_named(name):
    data = example_problem()
    del data[name]
    with pytest.raises(InputError, match="logits" if name == "logits" else f"lacks {name}"):
        problem_from_mapping(data)


def test_several_missing_names_are_all_named():
    with pytest.raises(InputError, match="lacks context_probs, reward_probs, reward_values"):
        problem_from_mapping({"logits": [[0.0, 1.0]]})


def test_an_unknown_name_is_named():
    with pytest.raises(InputError, match="unknown names: rewards"):
        problem_from_mapping(example_problem() | {"rewards": [1.0]})


@pytest.mark.parametrize("extra", [{"theta": [1.0]}, {"features": [[[1.0]]]}, {"weights": [[1.0]]}])
def test_two_forms_at_once_are_refused(extra):
    with pytest.raises(InputError, match="exactly one of: logits; features with theta"):
        problem_from_mapping(example_problem() | extra)


@pytest.mark.parametrize(("name", "missing"), [("features", "theta"), ("weights", "context_feat")])
def test_half_a_form_is_refused(name, missing):
    data = example_problem() | {name: [[1.0]]}
    del data["logits"]
    with pytest.raises(InputError, match=f"lacks {missing}"):
        problem_from_mapping(data)


@pytest.mark.parametrize("suffix", ["", ".txt", ".JSON", ".npy", ".json.gz"])
def test_another_suffix_is_refused(tmp_path, suffix):
    path = tmp_path / f"problem{suffix}"
    path.write_text("{}")
    with pytest.raises(InputError, match=r"must end in \.json or \.npz"):
        load_problem(path)
    with pytest.raises(InputError, match=r"must end in \.json or \.npz"):
        save_problem(random_problem(0), path)


@suffixes
def test_a_file_that_is_not_there(tmp_path, suffix):
    with pytest.raises(InputError, match=f"none{suffix}: No such file"):
        load_problem(tmp_path / f"none{suffix}")


@suffixes
def test_a_folder_is_no_problem(tmp_path, suffix):
    (tmp_path / f"a{suffix}").mkdir()
    with pytest.raises(InputError, match=f"a{suffix}: Is a directory"):
        load_problem(tmp_path / f"a{suffix}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("not json", "not JSON"),
        ("[]", "one object of named arrays"),
        ("[1, 2]", "one object of named arrays"),
        ("3", "one object of named arrays"),
        ("null", "one object of named arrays"),
        ('"logits"', "one object of named arrays"),
        ("{}", "exactly one of"),
        ("[" * 100_000, "not a readable problem"),
        ('{"logits": [[1' + "0" * 5000 + "]]}", "not a readable problem"),
    ],
)
def test_text_that_is_no_problem(tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load_problem(path)
    assert str(caught.value).startswith(str(path))


def test_a_truncated_json_file(tmp_path):
    path = tmp_path / "a.json"
    save_problem(random_problem(0), path)
    text = path.read_text().rstrip()
    for length in range(0, len(text), 7):
        path.write_text(text[:length])
        with pytest.raises(InputError, match="not JSON"):
            load_problem(path)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(InputError, match="not a readable problem"):
        load_problem(path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("context_probs", "[NaN, 1.0]", "context_probs holds nan"),
        ("context_probs", "[Infinity, 1.0]", "context_probs holds inf"),
        ("context_probs", "[0.6, 0.6]", "context_probs sums to 1.2"),
        ("context_probs", "null", "context_probs is not an array of numbers"),
        ("logits", '[["a", 1, 2], [1, 2, 3]]', "logits is not an array of numbers"),
        ("logits", "[[1, 2], [1, 2, 3]]", "logits is ragged"),
        ("logits", "{}", "logits is not an array of numbers"),
        ("logits", "[[1e400, 0, 0], [0, 0, 0]]", "logits holds inf"),
    ],
)
def test_values_that_are_refused_are_named_with_the_file(tmp_path, name, value, message):
    path = tmp_path / "a.json"
    data = {key: json.dumps(entry) for key, entry in example_problem().items()}
    data[name] = value
    path.write_text("{" + ", ".join(f'"{key}": {entry}' for key, entry in data.items()) + "}")
    with pytest.raises(InputError, match=message) as caught:
        load_problem(path)
    assert str(caught.value).startswith(f"{path}: ")


def saved(tmp_path):
    path = tmp_path / "a.npz"
    save_problem(random_problem(0), path)
    return path, path.read_bytes()


def test_a_truncated_archive(tmp_path):
    path, whole = saved(tmp_path)
    for length in (0, 1, 4, 30, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError) as caught:
            load_problem(path)
        assert str(caught.value).startswith(str(path))


def test_an_archive_with_a_damaged_byte_is_refused_or_read(tmp_path):
    """Never an error of another kind: zlib's own, or of a compression method unheard of."""
    path, whole = saved(tmp_path)
    kinds = {}
    for position in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            load_problem(path)
        except InputError:
            pass
        except Exception as error:
            kinds.setdefault(type(error).__name__, position)
    assert not kinds


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04", b"\x93NUMPY"])
def test_bytes_that_are_no_archive(tmp_path, content):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(InputError):
        load_problem(path)


def test_one_array_is_no_archive(tmp_path):
    path = tmp_path / "a.npz"
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(InputError):
        load_problem(path)


def test_pickled_objects_are_not_loaded(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, logits=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="not a readable archive"):
        load_problem(path)


def test_an_archive_of_integers_is_read(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(
        path,
        context_probs=[1],
        logits=[[0, 0]],
        reward_values=[[[1], [0]]],
        reward_probs=[[[1], [1]]],
    )
    assert load_problem(path).moments().value.tolist() == [0.5]
