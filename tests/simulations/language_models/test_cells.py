"""Cells of language models: both sides of a replication against enumeration, and how they are drawn."""

from __future__ import annotations

import itertools
import json
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from simulations.language_models import cells
from simulations.language_models.cells import (
    BASELINES,
    BATCH,
    CONSTANTS,
    NOISE,
    SIGNAL,
    LmCell,
    LmQuantity,
    Member,
    drawn,
    pooled,
)
from tests.support.imports import reached
from tests.support.models import OUTPUTS, every_output, save_tiny
from tests.support.refusals import refuses
from ustat_pg.engines import InfeasibleError, MomentSums
from ustat_pg.experiment.blocks import Block, record_of, run_task, sums_of
from ustat_pg.llm import estimates
from ustat_pg.llm.models import load_model, tokenise
from ustat_pg.llm.tasks import load_task

SIZES = (2, 3)
VALUES, GROUPS, PER = 24, 12, 3
"""Of a replication; PER prompts, of the three that there are."""
TABLE = "std"
GRPO_SIGNAL = f"{SIGNAL} grpo"
REPLICATIONS = 40
FEW = 4.5
"""Standard errors that an estimate may be off by."""

VERIFIER = '''
"""A verifier of one's own."""


def graded(prompts, completions, likes, **columns):
    """More for the letter that the prompt likes, a little for length."""
    return [
        0.6 * completion.count(letter) + 0.1 * len(completion) - 0.2
        for completion, letter in zip(completions, likes)
    ]


def found(prompts, completions, likes, **columns):
    """1 for the letter that the prompt likes."""
    return [float(letter in completion) for completion, letter in zip(completions, likes)]
'''


def write_task(folder, prompts=(("a", "a"), ("ba", "b"), ("b", "a"))):
    """Prompts and verifier in a folder; returns the words of a member."""
    folder.mkdir(exist_ok=True)
    rows = [json.dumps({"prompt": text, "likes": letter}) for text, letter in prompts]
    (folder / "prompts.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "verifier.py").write_text(VERIFIER)
    return {
        "task": str(folder / "prompts.jsonl"),
        "verifier": f"{folder / 'verifier.py'}:graded",
        "max_new_tokens": 2,
    }


@pytest.fixture(scope="module")
def member(tmp_path_factory):
    """Two letters, the end and the pad token; at most two tokens: everything can be listed."""
    folder = tmp_path_factory.mktemp("cells")
    small = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2,
             "num_hidden_layers": 1, "num_key_value_heads": 1}  # fmt: skip
    model = save_tiny(folder / "model", characters="ab", std=0.1, seed=3, **small)
    return Member("listed", str(model), **write_task(folder / "task"))


@pytest.fixture(scope="module")
def cell(member):
    return LmCell((member,), SIZES, VALUES, GROUPS, PER)


@pytest.fixture(scope="module")
def binary(cell, member):
    """The cell with rewards of 0 and 1, as tables by counts take them."""
    verifier = member.verifier.replace(":graded", ":found")
    return replace(cell, members=(replace(member, verifier=verifier),), tables=(TABLE,))


class Listed:
    """Every completion of every prompt: its probability, score and reward."""

    def __init__(self, member):
        model = load_model(member.model)
        task = load_task(member.task, verifier=member.verifier, max_new_tokens=2)
        prompts = [tokenise(model, prompt) for prompt in task.prompts]
        self.probs, self.scores, _ = every_output(model.model, prompts)
        texts = model.tokenizer.batch_decode(OUTPUTS, skip_special_tokens=True)
        rewards = [task.rewards(prompt, texts, OUTPUTS) for prompt in task.prompts]
        self.rewards = np.array(rewards)
        np.testing.assert_allclose(self.probs.sum(axis=1), 1, atol=1e-5)

    def given(self, places):
        """The mean, given the prompts, of everything that can be asked, by (what, group size)."""
        p, z = self.probs[places], self.rewards[places]
        scores = self.scores[places]
        norms = (scores**2).sum(axis=2)
        value = (p * z).sum(axis=1, keepdims=True)
        gradients = np.einsum("xk,xk,xkd->xd", p, z, scores)
        own = (gradients**2).sum(axis=1)
        first = ((p * norms * (z - value) ** 2).sum(axis=1) - own).mean()
        pair = ((p * (z - value) ** 2).sum(axis=1) * (p * norms).sum(axis=1) + own).mean()
        raw = ((p * norms * z**2).sum(axis=1) - own).mean()
        pairs = list(itertools.combinations(gradients, 2))
        signal = np.mean([one @ two for one, two in pairs])
        between = np.mean([(one - two) @ (one - two) / 2 for one, two in pairs])
        found = {("c1", 0): between, ("c2", 0): first, ("c3", 0): pair}
        for size in SIZES:
            second = pair / (size * (size - 1))
            found["vanilla", size] = raw / size
            found["oracle", size] = first / size
            found["grpo", size] = first / size + second
            found[BATCH, size] = between + first / size + second
            found[GRPO_SIGNAL, size] = signal
            if set(z.flat) <= {0, 1}:
                found |= self._of_table(p, z, scores, size)
        return found

    def _of_table(self, p, z, scores, size):
        """Noise and signal of advantages over their standard deviation, from every group there is."""
        groups = np.array(list(itertools.product(range(p.shape[1]), repeat=size)))
        laws, rewards = p[:, groups].prod(axis=2), z[:, groups]
        apart = rewards - rewards.mean(axis=2, keepdims=True)
        spread = rewards.std(axis=2, keepdims=True)
        weights = np.divide(apart, spread, out=np.zeros_like(apart), where=spread > 0)
        each = np.einsum("xgi,xgid->xgd", weights, scores[:, groups]) / size
        second = (laws * (each**2).sum(axis=2)).sum(axis=1).mean()
        means = np.einsum("xg,xgd->xd", laws, each)
        signal = np.mean([one @ two for one, two in itertools.combinations(means, 2)])
        parts = {NOISE: second - signal, SIGNAL: signal}
        return {(f"{part} {TABLE}", size): value for part, value in parts.items()}


@pytest.fixture(scope="module")
def listed(member):
    return Listed(member)


def all_of(name="listed"):
    """Everything that can be asked of a member."""
    fresh = [drawn(name, what, size) for what in (*BASELINES, BATCH, GRPO_SIGNAL) for size in SIZES]
    known = [replace(quantity, method="pool") for quantity in fresh]
    return tuple(fresh + known + [pooled(name, what) for what in CONSTANTS])


def of_table():
    """What can be asked of a table by counts."""
    parts = itertools.product((drawn, pooled), (NOISE, SIGNAL), SIZES)
    return tuple(of("listed", f"{part} {TABLE}", size) for of, part, size in parts)


def replication(cell, seed, number):
    """By label, without what is kept."""
    (member,) = cell.members
    return cells._replication.__wrapped__(member, cell._sizes, seed, number)


class Off:
    """By how much replications differ from what enumeration says of their prompts."""

    def __init__(self, cell, listed, quantities, seed, replications=REPLICATIONS):
        rows, means = [], []
        for number in range(replications):
            found = replication(cell, seed, number)
            given = listed.given(cells._places(len(listed.probs), PER, seed, number))
            rows.append([found[q.label] - given[q.what, q.group_size] for q in quantities])
            means.append([given[q.what, q.group_size] for q in quantities])
        labels = [q.label for q in quantities]
        errors = np.std(rows, axis=0, ddof=1) / np.sqrt(replications)
        self.errors = dict(zip(labels, errors, strict=True))
        self.deviations = dict(zip(labels, np.mean(rows, axis=0) / errors, strict=True))
        self.expected = dict(zip(labels, np.mean(means, axis=0), strict=True))

    def largest(self):
        return max(map(abs, self.deviations.values()))


@pytest.fixture(scope="module")
def off(cell, listed):
    return Off(cell, listed, all_of(), seed=3)


def test_both_sides_are_unbiased_for_what_enumeration_says(off):
    assert len(off.deviations) == 23
    assert off.largest() < FEW, off.deviations


def test_noise_and_signal_of_a_table_are_unbiased_too(binary):
    (member,) = binary.members
    found = Off(binary, Listed(member), of_table(), seed=6)
    assert found.largest() < FEW, found.deviations
    # So small that advantages with divisor G-1, half of these at G = 2, would be seen.
    for quantity in (drawn, pooled):
        label = quantity("listed", f"{NOISE} {TABLE}", 2).label
        assert found.expected[label] / 2 > (FEW + 2) * found.errors[label]


def test_errors_are_small_enough_to_tell_wrong_formulas(off):
    """What these would be off by, in standard errors: no second-order part, twice c1, no centring."""

    def expected(what, size=2):
        return off.expected[pooled("listed", what, size).label]

    second = expected("c3", 0) / 2
    gaps = {
        drawn("listed", "grpo", 2): second / 2,
        drawn("listed", BATCH, 2): second / 2,
        pooled("listed", "grpo", 2): second / 2,
        pooled("listed", "c3"): expected("c3", 0) / 2,
        # Gradients divided twice would make a quarter of c1.
        pooled("listed", "c1"): 0.75 * expected("c1", 0),
        drawn("listed", "vanilla", 2): abs(expected("vanilla") - expected("oracle")),
        pooled("listed", "vanilla", 2): abs(expected("vanilla") - expected("oracle")),
    }
    for quantity, gap in gaps.items():
        assert gap > (FEW + 2) * off.errors[quantity.label], quantity.label


def test_prompts_are_drawn_alike():
    places = np.array([cells._places(3, 2, 0, number) for number in range(900)])
    for column in (*places.T, 3 * places[:, 0] + places[:, 1]):
        counts = np.bincount(column)
        expected = len(column) / len(counts)
        # At most 9 standard deviations from what is expected, of each count.
        assert ((counts - expected) ** 2 < 9**2 * expected).all()
        assert len(counts) in (3, 9)


def test_the_groups_read_no_formulas(cell, listed, monkeypatch):
    """Without formulas, what was drawn stays what enumeration says."""

    def wrong(pool):
        raise AssertionError

    monkeypatch.setattr(estimates, "prompt_moments", wrong)
    monkeypatch.setattr(cells, "_pool_values", lambda *_: {})
    fresh = tuple(q for q in all_of() if q.method == "drawn")
    assert Off(cell, listed, fresh, seed=4, replications=12).largest() < FEW


def test_the_oracle_of_groups_needs_two_values(cell, listed, monkeypatch):
    """One value twice is an oracle that errs: its error is above the oracle's by Var V̂ tr F / G."""

    def one(self, *arguments):
        own(self, *arguments)
        # Of one rollout, so that it is seen.
        self.values = [float(self.rewards[0])] * 2

    own = cells._Side.__init__
    monkeypatch.setattr(cells._Side, "__init__", one)
    monkeypatch.setattr(cells, "_pool_values", lambda *_: {})
    found = Off(cell, listed, (drawn("listed", "oracle", 2),), seed=5, replications=20)
    assert found.deviations[drawn("listed", "oracle", 2).label] > FEW


# Addressed draws.


def sums_equal(one: MomentSums, other: MomentSums):
    assert one.n == other.n
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-12)
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-9, atol=1e-12)


def test_a_replication_is_a_function_of_its_number(cell):
    asked = all_of()
    whole = cell.measure("autograd", asked, seed=7, replications=4)
    for parts in [(1, 3), (2, 1, 1)]:
        cells._replication.cache_clear()
        merged, first = None, 0
        for count in parts:
            part = cell.measure("autograd", asked, seed=7, first=first, replications=count)
            merged = part if merged is None else merged.merge(part)
            first += count
        sums_equal(merged, whole)
    backwards = cell.measure("autograd", asked[::-1], seed=7, replications=4)
    np.testing.assert_array_equal(backwards.mean[::-1], whole.mean)
    other = cell.measure("autograd", asked, seed=8, replications=4)
    assert (other.mean != whole.mean).all()


def test_threads_and_order_change_nothing(cell):
    label = [quantity.label for quantity in all_of()]
    alone = [replication(cell, 0, number) for number in range(4)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda number: replication(cell, 0, number), reversed(range(4))))
    for one, other in zip(alone, reversed(together), strict=True):
        assert [one[name] for name in label] == [other[name] for name in label]


def test_each_thread_has_a_model_of_its_own(member):
    mine = cells._model(member.model)
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(cells._model, member.model).result()
    assert mine is cells._model(member.model)
    assert theirs.model is not mine.model


def test_other_members_change_nothing(member, cell):
    """Blocks of several models draw what the model's own would."""
    both = replace(cell, members=(replace(member, name="twin"), member))
    assert both.name != cell.name
    asked = all_of()
    one = cell.measure("autograd", asked, seed=1, replications=2)
    two = both.measure("autograd", (*asked, *all_of("twin")), seed=1, replications=2)
    np.testing.assert_array_equal(two.mean, np.tile(one.mean, 2))


def test_what_a_replication_costs_is_paid_once(cell):
    cells._replication.cache_clear()
    for asked in all_of()[:3]:
        cell.measure("autograd", (asked,), seed=9, replications=2)
    # All draws are within a replication.
    assert cells._replication.cache_info()[:2] == (4, 2)


def test_blocks_are_plain_data(cell):
    copy = pickle.loads(pickle.dumps(cell))
    assert copy == cell
    assert copy.name == cell.name
    block = Block(copy, all_of(), "autograd", seed=7, first=1, replications=3)
    found = record_of(run_task(pickle.loads(pickle.dumps(block))))
    json.dumps([found, block.description], allow_nan=False)
    sums_equal(sums_of(found), cell.measure("autograd", all_of(), seed=7, first=1, replications=3))


# Names.


def test_the_name_holds_weights_task_and_code(member, cell, tmp_path, monkeypatch):
    verifier = write_task(tmp_path / "verifier")
    (tmp_path / "verifier" / "verifier.py").write_text(VERIFIER.replace("0.6", "0.7"))
    members = (
        {"max_new_tokens": 1},
        write_task(tmp_path / "prompts", (("a", "a"), ("ab", "b"), ("b", "a"))),
        write_task(tmp_path / "columns", (("a", "a"), ("ba", "a"), ("b", "a"))),
        verifier,
        {"model": str(save_tiny(tmp_path / "model", characters="ab", seed=6))},
    )
    changes = [{"members": (replace(member, **words),)} for words in members]
    changes += [{"group_sizes": (2, 4)}, {"values": VALUES + 1}, {"groups": GROUPS + 1}]
    changes += [{"prompts": PER + 1}, {"tables": (TABLE,)}]
    names = [cell.name, *(replace(cell, **change).name for change in changes)]
    monkeypatch.setattr(cells, "_code", lambda: "another")
    names.append(cell.name)
    assert len(set(names)) == len(names) == 12


def test_the_same_places_and_words_make_the_same_name(member, cell, tmp_path):
    again = replace(member, **write_task(tmp_path / "again"))
    assert replace(cell, members=(again,)).name == cell.name


def test_the_code_of_every_module_that_makes_a_replication_is_in_the_name():
    home = Path(estimates.__file__).parent
    named = re.findall(r"from ustat_pg\.llm\.(\w+) import", Path(cells.__file__).read_text())
    entries = [home / f"{name}.py" for name in named] + [*(home / "scores").glob("*.py")]
    # The package itself loads a monitor of training, late.
    package = home / "__init__.py"
    found = reached(entries, [package]) - {package}
    ours = {file.relative_to(home).parts[0] for file in found if home in file.parents}
    assert ours == set(cells._MAKERS)


def test_a_member_is_a_model_with_its_own_task_unless_named():
    assert Member("embedded:strong") == Member(*["embedded:strong"] * 3)
    assert LmCell(("embedded:strong",)).by_name == {"embedded:strong": Member("embedded:strong")}
    assert Member("few", "embedded:short", "embedded:short:problems=9").task.endswith("=9")


# Refusals.


def test_what_a_cell_refuses():
    short = ("embedded:short",)
    for members in ((), short * 2, (*short, Member("embedded:short", "other"))):
        refuses("different names", LmCell, members)
    for words, message in [
        (((),), "increase"),
        (((2, 2),), "increase"),
        (((1, 2),), "group size"),
        (((2, 8), 0), "values"),
        (((2, 8), 16, 1), "groups"),
        (((2, 8), 16, 2, 1), "prompts"),
        (((2, 8), 16, 2, 2, ("unknown",)), "unknown"),
    ]:
        refuses(message, LmCell, short, *words)


@pytest.mark.parametrize(
    "quantity",
    [
        drawn("unknown", "grpo", 2),
        drawn("listed", "c1", 2),
        drawn("listed", "c1", 0),
        drawn("listed", "grpo", 4),
        drawn("listed", "grpo", 0),
        pooled("listed", "c1", 2),
        pooled("listed", "grpo"),
        pooled("listed", "norm-weighted", 2),
        drawn("listed", f"{NOISE} {TABLE}", 2),
        LmQuantity("guessed", "listed", "grpo", 2),
        "grpo",
    ],
)
def test_quantities_that_are_none(quantity, cell):
    refuses(r"quantity|unknown|group sizes", cell.measure, "autograd", (quantity,), replications=1)


def test_nothing_is_enumerated_and_nothing_but_autograd_scores(cell):
    asked = all_of()[:1]
    for call in (cell.require_exact, lambda quantities: cell.measure("exact", quantities)):
        with pytest.raises(InfeasibleError, match="listed"):
            call(asked)
    refuses("autograd", cell.measure, "cpu", asked, replications=1)
    refuses("at least one", cell.measure, "autograd", (), replications=1)
    assert cell.engine("cpu") == "autograd"
    assert (cell.group_size, cell.batch_size, cell.steps) == (3, 1, 1)
    assert cell.outputs == PER * (2 * VALUES + 3 * 3 * GROUPS) * cells._WORK


def test_a_block_measures_all_so_that_claims_share_it(cell):
    """Whatever is asked, a block is the same one, of everything that there is."""
    from ustat_pg.experiment import Options, mean_of
    from ustat_pg.experiment.measurements import Measurements

    tasks = [
        Measurements([mean_of(cell, quantity)], Options()).pilot_tasks[cell.name]
        for quantity in (pooled("listed", "grpo", 2), drawn("listed", BATCH, 3))
    ]
    assert tasks[0] == tasks[1]
    assert {quantity.label for quantity in tasks[0].quantities} == {q.label for q in all_of()}
    assert tasks[0].replications > cell.block
    assert cell.looks > 1
