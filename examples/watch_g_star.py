"""The best group size of a real model from a training that runs anyway, narrowing step by step.

``python examples/watch_g_star.py --model smollm2`` trains by TRL's ``RLOOTrainer`` on sums after four worked
ones, 16 outputs a step in groups of 8, and draws G* with its 95% interval. It needs the extra llm and
Matplotlib. A model is a folder, a hub id, ``smollm2`` or a ``.gguf`` file.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from ustat_pg.llm.models.loading import load_model
from ustat_pg.validation import needed

with needed("this example", "llm"):
    import torch
    from datasets import Dataset
    from trl import RLOOConfig, RLOOTrainer

    from ustat_pg.llm import NoiseMonitor

GROUP, OUTPUTS, EXAMPLES = 8, 16, 4


def sums(count: int) -> Dataset:
    """Prompts of worked sums and one that is open, and its answer."""
    rng, rows = random.Random(2), []
    for _ in range(count):
        pairs = [(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(EXAMPLES + 1)]
        *worked, (a, b) = pairs
        text = "".join(f"{p} + {q} = {p + q}\n" for p, q in worked)
        rows.append({"prompt": f"{text}{a} + {b} =", "answer": str(a + b)})
    return Dataset.from_list(rows)


def right(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 where the first line is the answer."""
    firsts = [text.strip().split("\n")[0].strip() for text in completions]
    return [float(first == a) for first, a in zip(firsts, answer, strict=True)]


def train(model: str, steps: int, folder: Path) -> list[dict[str, Any]]:
    """Train, and return TRL's records."""
    torch.set_num_threads(1)
    language_model = load_model(model, dtype="float32")
    settings = RLOOConfig(
        str(folder), learning_rate=1e-6, max_steps=steps, num_generations=GROUP, beta=0.0,
        per_device_train_batch_size=GROUP, gradient_accumulation_steps=OUTPUTS // GROUP,
        max_completion_length=4, save_strategy="no", logging_steps=1, bf16=False,
        gradient_checkpointing=False, use_cpu=not torch.cuda.is_available(), report_to=[],
    )  # fmt: skip
    trainer = RLOOTrainer(
        language_model.model, right, settings, sums(steps * OUTPUTS // GROUP),
        processing_class=language_model.tokenizer,
        callbacks=[NoiseMonitor(window=max(steps, 2), detail=True)],
    )  # fmt: skip
    trainer.train()
    return [record for record in trainer.state.log_history if "loss" in record]


def draw(records: list[dict[str, Any]], file: Path) -> None:
    """G* by step; an end that is not known is at the edge."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams["svg.hashsalt"] = "0"
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    known = [r for r in records if "noise/g_star" in r]
    steps = [r["step"] for r in known]
    low = [r.get("noise/g_star_low", 1.0) for r in known]
    high = [r.get("noise/g_star_high", 64.0) for r in known]
    axes.fill_between(steps, low, high, alpha=0.25, linewidth=0, label="95%")
    axes.plot(steps, [r["noise/g_star"] for r in known], marker=".")
    axes.axhline(GROUP, color="0.4", linewidth=0.8, linestyle="--", label="in use")
    axes.set(yscale="log", ylim=(1, 64), xlabel="step", ylabel="best group size")
    axes.set_yticks([1, 2, 4, 8, 16, 32, 64], labels=["1", "2", "4", "8", "16", "32", "64"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Train and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("results/watch_g_star"), metavar="FOLDER")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    records = train(options.model, options.steps, options.out)
    (options.out / "records.json").write_text(json.dumps(records, indent=1), encoding="utf-8")
    draw(records, options.out / "watch_g_star.svg")


if __name__ == "__main__":
    main()
