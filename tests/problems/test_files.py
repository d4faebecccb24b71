"""Problems in files: round trips, and files that are not what they should be."""

import json

import numpy as np
import pytest

from simulations.interior_problems.location_bandit import LocationBandit
from tests.support.refusals import refusals, refuses
from ustat_pg.problems import (
    KINDS,
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
def test_a_problem_is_read_back_unchanged(tmp_path, suffix):
    """To the last bit: the digest is the address of a problem's draws."""
    changed = []
    for kind in KINDS:
        for seed in range(10):
            problem = random_problem(seed, kind)
            save_problem(problem, tmp_path / f"a{suffix}")
            result = load_problem(str(tmp_path / f"a{suffix}"))
            assert type(result.policy) is type(problem.policy)
            assert set(result.arrays()) == set(problem.arrays())
            if result.digest != problem.digest:
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
    result = load_problem(path)
    assert np.array_equal(result.policy.offset, problem.policy.offset)
    assert np.array_equal(result.policy.probs, problem.policy.probs)
    assert result.digest == problem.digest != with_offset(None).digest
    location = LocationBandit.bump([-1.0, 1.0], [0.2, 0.4])
    best = location.at(location.maximiser)
    save_problem(best, path)
    result = load_problem(path)
    assert result.digest == best.digest
    assert result.objective() == pytest.approx(location.maximum, rel=1e-13)


def test_the_example():
    problem = problem_from_mapping(example_problem())
    assert (problem.contexts, problem.arms, problem.d) == (2, 3, 6)
    assert np.allclose(problem.policy.probs, [[0.5, 0.25, 0.25], [0.2, 0.4, 0.4]])
    # V = .5; V = .2 + .4 (.5 .4 - .5 .6) + .4 .3 .6.
    assert np.allclose(problem.moments().value, [0.5, 0.2 - 0.04 + 0.072])
    assert problem.reward_range == (-0.5, 1.0)
    assert json.loads(json.dumps(example_problem())) == example_problem()


OTHER_FORM = {"logits": None, "context_features": [[1.0]] * 2, "weights": [[0.0]] * 3}
"""What makes the example one of shared weights; None takes a name away."""


test_missing_and_unknown_names_are_reported = refusals(
    *(({name: None}, f"lacks {name}") for name in example_problem() if name != "logits"),
    ({"logits": None}, "logits"),
    (dict.fromkeys(set(example_problem()) - {"logits"}), "lacks context_probs, reward_probs, "),
    ({"rewards": [1.0]}, "unknown names: rewards"),
    ({"offset": [[0.0] * 3] * 2}, "unknown names: offset"),
    (OTHER_FORM | {"offset": [[0.0] * 3] * 2}, "unknown names: offset"),
    ({"theta": [1.0]}, "exactly one of: logits; features with theta"),
    ({"features": [[[1.0]]]}, "exactly one of: logits; features with theta"),
    ({"logits": None, "features": [[1.0]]}, "lacks theta"),
    ({"logits": None, "weights": [[1.0]]}, "lacks context_feat"),
    of=lambda changes: problem_from_mapping(
        {name: value for name, value in (example_problem() | changes).items() if value}
    ),
)


@pytest.mark.parametrize("suffix", ["", ".txt", ".JSON", ".npy", ".json.gz"])
def test_another_suffix_is_refused(tmp_path, suffix):
    path = tmp_path / f"problem{suffix}"
    path.write_text("{}")
    refuses(r"must end in \.json or \.npz", load_problem, path)
    refuses(r"must end in \.json or \.npz", save_problem, random_problem(0), path)


def example_with(**entries):
    """The text of the example, or of one with an offset, with entries of its own."""
    data = with_offset(None).arrays() if "offset" in entries else example_problem()
    texts = {name: json.dumps(np.asarray(value).tolist()) for name, value in data.items()}
    return "{" + ", ".join(f'"{name}": {text}' for name, text in (texts | entries).items()) + "}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "not JSON") for text in ("", "{", "not json")),
        *((text, "one object of named arrays") for text in ("[]", "3", "null", '"logits"')),
        ("{}", "exactly one of"),
        (example_with(context_probs="[NaN, 1.0]"), "context_probs holds nan"),
        (example_with(context_probs="[0.6, 0.6]"), r"context_probs sums to 1\.2"),
        (example_with(logits='[["a", 1, 2], [1, 2, 3]]'), "logits is not an array of numbers"),
        (example_with(logits="[[1, 2], [1, 2, 3]]"), "logits is ragged"),
        (example_with(logits="[[1e400, 0, 0], [0, 0, 0]]"), "logits holds inf"),
        (example_with(offset="[[0, 0, 0]]"), r"offset has shape \(1, 3\): .*, \(2, 3\)"),
        (example_with(offset="[[0, 0, NaN], [0, 0, 0]]"), "offset holds nan"),
    ],
)
def test_an_invalid_problem_is_reported_with_its_file(tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load_problem(path)
    assert str(caught.value).startswith(f"{path}: ")


def saved(tmp_path):
    path = tmp_path / "a.npz"
    save_problem(random_problem(0), path)
    return path, path.read_bytes()


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
