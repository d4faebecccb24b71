"""Cells of language models: both sides of a replication against enumeration, and how they are drawn."""

import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from simulations.language_models import cells
from simulations.language_models.cells import BATCH, NOISE, SIGNAL, LmCell, drawn, pooled
from tests.support.models import OUTPUTS, every_output, save_tiny
from ustat_pg.llm.models.loading import load_model, tokenise
from ustat_pg.llm.pool import estimates
from ustat_pg.llm.prompts import Prompt, Task

SIZES = (2, 3)
VALUES, GROUPS, PER = 24, 12, 3
"""Numbers of a replication; PER prompts of the three that there are."""
TABLE = cells.NORMALISED
REPLICATIONS = 40
FEW = 4.5
"""Standard errors that an estimate may be off by."""


def found(prompts, completions, likes, **columns):
    """1 for the letter that the prompt likes."""
    return [float(letter in text) for text, letter in zip(completions, likes, strict=True)]


def task(*prompts):
    """Prompts, each with the letter that it likes."""
    asked = [Prompt(str(n), text, {"likes": likes}) for n, (text, likes) in enumerate(prompts)]
    return Task("listed", tuple(asked), found, max_new_tokens=2)


TASK = task(("a", "a"), ("ba", "b"), ("b", "a"))


@pytest.fixture(scope="module", autouse=True)
def _tasks():
    """Every model here has the same task."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cells, "_task", lambda name: TASK)
        yield


@pytest.fixture(scope="module")
def member(tmp_path_factory):
    """Two letters, the end and the pad token; at most two tokens: everything can be listed."""
    small = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2,
             "num_hidden_layers": 1, "num_key_value_heads": 1}  # fmt: skip
    folder = tmp_path_factory.mktemp("cells") / "model"
    return str(save_tiny(folder, characters="ab", std=0.1, seed=3, **small))


@pytest.fixture(scope="module")
def cell(member):
    return LmCell((member,), SIZES, VALUES, GROUPS, PER)


class Listed:
    """Every group of every prompt's completions: mean and mean square of each estimator's gradient."""

    def __init__(self, member):
        model = load_model(member)
        p, scores, _ = every_output(model.model, [tokenise(model, one) for one in TASK.prompts])
        texts = model.tokenizer.batch_decode(OUTPUTS, skip_special_tokens=True)
        z = np.array([TASK.rewards(prompt, texts, OUTPUTS) for prompt in TASK.prompts])
        np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-5)
        value = (p * z).sum(axis=1)[:, None, None]
        self.means, self.squares = {}, {}
        for size in SIZES:
            groups = np.array(list(itertools.product(range(p.shape[1]), repeat=size)))
            laws, rewards = p[:, groups].prod(axis=2), z[:, groups]
            apart = rewards - rewards.mean(axis=2, keepdims=True)
            spread = rewards.std(axis=2, keepdims=True)
            for name, weights in {
                "vanilla": rewards,
                "oracle": rewards - value,
                "grpo": apart * size / (size - 1),
                "std": apart / np.where(spread > 0, spread, 1.0),
            }.items():
                each = np.einsum("xgi,xgid->xgd", weights, scores[:, groups]) / size
                self.means[name, size] = np.einsum("xg,xgd->xd", laws, each)
                self.squares[name, size] = (laws * (each**2).sum(axis=2)).sum(axis=1)

    def given(self, places):
        """The mean, given the prompts, of everything that can be asked, by (what, group size)."""
        result = {}
        for name, size in self.means:
            means, square = self.means[name, size][places], self.squares[name, size][places].mean()
            result[name, size] = square - (means**2).sum(axis=1).mean()
            signal = np.mean([one @ two for one, two in itertools.combinations(means, 2)])
            result[f"{SIGNAL} {name}", size] = signal
            result[f"{NOISE} {name}", size] = square - signal
        result["c1", 0] = result[BATCH, 2] - result["grpo", 2]
        result["c2", 0] = 2 * result["oracle", 2]
        result["c3", 0] = 2 * (result["grpo", 2] - result["oracle", 2])
        return result


@pytest.fixture(scope="module")
def listed(member):
    return Listed(member)


def replication(cell, seed, number):
    """By label, without what is kept."""
    return cells._replication.__wrapped__(cell.members[0], cell._sizes, seed, number)


class Off:
    """By how much replications differ from what enumeration says of their prompts."""

    def __init__(self, cell, listed, seed, replications=REPLICATIONS):
        rows, means = [], []
        for number in range(replications):
            measured = replication(cell, seed, number)
            given = listed.given(cells._places(len(TASK.prompts), PER, seed, number))
            asked = [q for q in cell.quantities if q.label in measured]
            means.append([given[q.what, q.group_size] for q in asked])
            rows.append(
                [measured[q.label] - mean for q, mean in zip(asked, means[-1], strict=True)]
            )
        labels = [q.label for q in asked]
        errors = np.std(rows, axis=0, ddof=1) / np.sqrt(replications)
        self.errors = dict(zip(labels, errors, strict=True))
        self.deviations = dict(zip(labels, np.mean(rows, axis=0) / errors, strict=True))
        self.expected = dict(zip(labels, np.mean(means, axis=0), strict=True))


@pytest.fixture(scope="module")
def off(cell, listed):
    return Off(cell, listed, seed=3)


def test_both_sides_are_unbiased_for_what_enumeration_says(off, cell):
    assert off.deviations.keys() == {quantity.label for quantity in cell.quantities}
    assert max(map(abs, off.deviations.values())) < FEW, off.deviations


def test_errors_are_small_enough_to_tell_wrong_formulas(off, member):
    """The errors of these, in standard errors: no second-order part, twice c1, no centring, divisor G-1."""

    def expected(what, size=2):
        return off.expected[pooled(member, what, size).label]

    uncentred = abs(expected("vanilla") - expected("oracle"))
    gaps = {pooled(member, "c3"): expected("c3", 0) / 2}
    # Gradients divided twice would make a quarter of c1.
    gaps[pooled(member, "c1")] = 0.75 * expected("c1", 0)
    for of in (drawn, pooled):
        gaps |= {of(member, "grpo", 2): expected("c3", 0) / 4, of(member, "vanilla", 2): uncentred}
        gaps[of(member, f"{NOISE} {TABLE}", 2)] = expected(f"{NOISE} {TABLE}") / 2
    for quantity, gap in gaps.items():
        assert gap > (FEW + 2) * off.errors[quantity.label], quantity.label


def test_the_groups_read_no_formulas(cell, listed, monkeypatch):
    """Without formulas, what was drawn stays what enumeration says."""

    def wrong(pool):
        raise AssertionError

    monkeypatch.setattr(estimates, "prompt_moments", wrong)
    monkeypatch.setattr(cells, "_pool_values", lambda *_: {})
    alone = Off(cell, listed, seed=4, replications=12)
    assert max(map(abs, alone.deviations.values())) < FEW


def test_a_replication_is_a_function_of_its_number(cell):
    asked = cell.quantities
    whole = cell.measure("autograd", asked, seed=7, replications=4)
    cells._replication.cache_clear()
    parts = [cell.measure("autograd", asked, seed=7, first=n, replications=2) for n in (0, 2)]
    merged = parts[0].merge(parts[1])
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(merged.covariance, whole.covariance, rtol=1e-9, atol=1e-12)
    other = cell.measure("autograd", asked, seed=8, replications=4)
    assert (other.mean != whole.mean).all()


def test_threads_and_order_change_nothing(cell):
    alone = [replication(cell, 0, number) for number in range(4)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda number: replication(cell, 0, number), reversed(range(4))))
        theirs = pool.submit(cells.model_of, cell.members[0]).result()
    assert alone == together[::-1]
    # Hooks of two threads on one module would meet.
    assert cells.model_of(cell.members[0]).model is not theirs.model


def test_the_name_holds_weights_task_sizes_and_code(cell, tmp_path, monkeypatch):
    other = str(save_tiny(tmp_path, characters="ab", seed=6))
    changes = [{"members": (other,)}, {"group_sizes": (2, 4)}, {"values": VALUES + 1}]
    changes += [{"groups": GROUPS + 1}, {"prompts": PER + 1}]
    names = [cell.name, *(replace(cell, **change).name for change in changes)]
    assert pickle.loads(pickle.dumps(cell)).name == cell.name
    for name, value in (
        ("_task", lambda name: task(("a", "b"), ("ba", "b"), ("b", "a"))),
        ("source_digest", lambda file, salt: "another"),
    ):
        cells._digest.cache_clear()
        monkeypatch.setattr(cells, name, value)
        names.append(cell.name)
    cells._digest.cache_clear()
    assert len(set(names)) == len(names) == 8
