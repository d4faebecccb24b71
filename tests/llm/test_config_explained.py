"""``explain`` takes TRL's own configs: what a run has, without writing it down again."""

from __future__ import annotations

import pytest

import ustat_pg

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")


@pytest.mark.parametrize(
    ("config", "framework", "name"),
    [("GRPOConfig", "trl", "std-ddof1"), ("RLOOConfig", "trl-rloo", "grpo")],
)
def test_a_config_is_read(tmp_path, config, framework, name):
    args = getattr(trl, config)(
        output_dir=str(tmp_path),
        num_generations=4,
        num_iterations=3,
        gradient_accumulation_steps=4,
        use_cpu=True,
        bf16=False,
    )
    for spec in (args, args.to_dict()):
        found = ustat_pg.explain(spec)
        assert (found.meaning.framework.name, found.name) == (framework, name)
        assert found.group_size == 4
        assert found.meaning.steps == 3
