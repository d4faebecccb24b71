"""The noise of a real run while TRL trains: K over K_crit with its band, beside the reward.

``python examples/watch_noise.py`` trains a model that ships with the library by TRL's ``GRPOTrainer``, and
draws what the monitor logs. ``--report tensorboard`` or ``wandb`` writes it there too, as TRL does. It needs
the extra llm and Matplotlib.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ustat_pg.llm.models.loading import load_model
from ustat_pg.llm.tasks.named import load_task
from ustat_pg.llm.trl.training import dataset
from ustat_pg.validation import needed

with needed("this example", "llm"):
    import torch
    from trl import GRPOConfig, GRPOTrainer

    from ustat_pg.llm import NoiseMonitor


def train(steps: int, folder: Path, report: list[str]) -> list[dict[str, Any]]:
    """Train, and return TRL's records."""
    torch.set_num_threads(1)
    language_model = load_model("embedded:short")
    task = load_task("embedded:short")
    settings = GRPOConfig(
        str(folder), learning_rate=3e-4, max_steps=steps, num_generations=8,
        per_device_train_batch_size=8, gradient_accumulation_steps=16,
        max_completion_length=task.max_new_tokens, save_strategy="no", logging_steps=1,
        bf16=False, gradient_checkpointing=False, use_cpu=True, report_to=report,
    )  # fmt: skip
    trainer = GRPOTrainer(
        language_model.model, task.verifier, settings, dataset(task),
        processing_class=language_model.tokenizer, callbacks=[NoiseMonitor(window=40)],
    )  # fmt: skip
    trainer.train()
    return [record for record in trainer.state.log_history if "loss" in record]


def draw(records: list[dict[str, Any]], file: Path) -> None:
    """The reward, and the step in units of the critical one with its 95% interval."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams["svg.hashsalt"] = "0"
    figure, (above, below) = plt.subplots(2, sharex=True, figsize=(7, 4.5), layout="constrained")
    above.plot([r["step"] for r in records], [r["reward"] for r in records], color="0.4")
    above.set_ylabel("reward")
    name = "noise/budget_over_critical"
    known = [r for r in records if name in r]
    steps = [r["step"] for r in known]
    # An end that is not known is at the edge.
    low = [max(r.get(f"{name}_low", 0.01), 0.01) for r in known]
    high = [r.get(f"{name}_high", 10.0) for r in known]
    below.fill_between(steps, low, high, alpha=0.25, linewidth=0, label="95%")
    below.plot(steps, [max(r[name], 0.01) for r in known])
    below.axhline(1, color="0.4", linewidth=0.8, linestyle="--")
    below.set(yscale="log", ylim=(0.01, 10), xlabel="step", ylabel="K over K_crit")
    below.legend(frameon=False)
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Train and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--report", nargs="*", default=[], metavar="tensorboard|wandb")
    parser.add_argument("--out", type=Path, default=Path("results/watch_noise"), metavar="FOLDER")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    draw(train(options.steps, options.out, options.report), options.out / "watch_noise.svg")


if __name__ == "__main__":
    main()
