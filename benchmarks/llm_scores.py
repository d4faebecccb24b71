"""Scores of completions of a language model: ``python -m benchmarks.llm_scores``.

Norms of the scores of 64 completions, inner products and sketches of three weighted sums of them, in one
pass; against the same with the Gram matrix, which every pool took before, one backward pass for each
completion, ``vmap`` over ``torch.func.grad``, and Opacus. All must give
the same norms. Opacus refuses tied parameters, so heads are not tied here. Each measurement is a
process of its own, which runs once on two completions first; rounds interleave the ways. Memory is
the process's peak above what it holds just before.

``--device cuda`` measures hooks alone, on a randomly initialised model of Qwen2.5-0.5B's
configuration: prompts scored in a second, peak memory, and matrix products per second as a share of
what one large product reaches there.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from os import getloadavg
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from numpy.typing import NDArray
from tabulate import tabulate

from benchmarks.ustatistics import machine
from ustat_pg.llm.score_weights import moment_weights
from ustat_pg.llm.scores import Scores

AGREEMENT = 1e-3
"""Relative difference of squared norms that is rounding, in float32."""

CHUNK = 8
"""Completions under ``vmap`` at once."""

MEMORY = 2**33
"""Bytes allowed to the hooks: as much as the other ways may take."""

QWEN = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
"""Qwen2.5-0.5B, as its configuration states it."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Size:
    """A Qwen2 model whose head is not tied."""

    vocabulary: int
    width: int
    layers: int

    def model(self, attention: str = "sdpa") -> Any:
        """Random weights, the same each time."""
        from transformers import Qwen2Config, Qwen2ForCausalLM

        config = Qwen2Config(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            intermediate_size=11 * self.width // 4,
            num_hidden_layers=self.layers,
            num_attention_heads=self.width // 32,
            num_key_value_heads=max(1, self.width // 64),
            max_position_embeddings=512,
            tie_word_embeddings=False,
            attn_implementation=attention,
        )
        torch.manual_seed(0)
        return Qwen2ForCausalLM(config).eval()


SIZES = {
    "0.1M": Size(97, 64, 2),
    "0.3M": Size(97, 96, 3),
    "3M": Size(512, 256, 4),
    "25M": Size(7000, 512, 6),
}
TINY = Size(20, 32, 1)
PROMPT = 8


def tokens(size: Size, count: int, length: int) -> tuple[list[int], list[list[int]]]:
    """A prompt and random completions of one length."""
    drawn = np.random.default_rng(0).integers(0, size.vocabulary, (count + 1, length + PROMPT))
    return drawn[0, :PROMPT].tolist(), drawn[1:, :length].tolist()


Way = Callable[[Size], Callable[[list[int], list[list[int]]], Array]]


def weights_of(count: int) -> Array:
    """Those of a pool: 1, z̃ and z̃² of as many rewards of each kind."""
    return moment_weights(np.resize([0.0, 1.0, 0.5], count))


def pass_by_hooks(size: Size) -> Callable[[list[int], list[list[int]]], Array]:
    """Norms, inner products of three weighted sums, and their sketches: what a pool takes."""
    scores = Scores(size.model(), memory=MEMORY)
    return lambda prompt, rows: scores.of(prompt, rows, weights_of(len(rows))).squared_norms


def blocks_by_hooks(size: Size) -> Callable[[list[int], list[list[int]]], Array]:
    """The same four completions at a time."""
    scores = Scores(size.model(), memory=MEMORY)
    scores.room.most = 4
    return lambda prompt, rows: scores.of(prompt, rows, weights_of(len(rows))).squared_norms


def gram_by_hooks(size: Size) -> Callable[[list[int], list[list[int]]], Array]:
    """The same and the Gram matrix, which every pool took before."""
    scores = Scores(size.model(), memory=MEMORY)

    def run(prompt: list[int], rows: list[list[int]]) -> Array:
        found = scores.of(prompt, rows, weights_of(len(rows)), gram=True)
        if found.gram is None:
            raise SystemExit("the Gram matrix needs all completions in one block: more memory")
        return np.diag(found.gram)

    return run


def pass_by_loop(size: Size) -> Callable[[list[int], list[list[int]]], Array]:
    """One backward pass each, every gradient dropped once it is squared and added."""
    scores = Scores(size.model(), memory=MEMORY, method="loop")
    return lambda prompt, rows: scores.of(prompt, rows, weights_of(len(rows))).squared_norms


def norms_by_loop(size: Size) -> Callable[[list[int], list[list[int]]], Array]:
    """One backward pass each, every gradient dropped once it is squared."""
    return Scores(size.model(), memory=MEMORY, method="loop").norms


def norms_by_vmap(size: Size) -> Callable[[list[int], list[list[int]]], Array]:
    """Gradients of some completions at once by ``torch.func``."""
    # The mask of "sdpa" cannot be made under vmap.
    model = size.model("eager")
    state = {name: p.detach() for name, p in model.named_parameters()}

    def log_prob(state: Any, ids: torch.Tensor) -> torch.Tensor:
        arguments = (ids[None, :-1],)
        logits = torch.func.functional_call(
            model, state, arguments, {"use_cache": False, "logits_to_keep": len(ids) - PROMPT}
        ).logits[0]
        log = torch.log_softmax(logits, dim=-1)
        return log.gather(1, ids[PROMPT:, None]).sum()

    slopes = torch.func.vmap(torch.func.grad(log_prob), in_dims=(None, 0))

    def run(prompt: list[int], rows: list[list[int]]) -> Array:
        ids = torch.tensor([prompt + row for row in rows])
        found = []
        for part in ids.split(CHUNK):
            found.append(sum(g.flatten(1).square().sum(1) for g in slopes(state, part).values()))
        return torch.cat(found).double().numpy()

    return run


def norms_by_opacus(size: Size) -> Callable[[list[int], list[list[int]]], Array]:
    """Per-sample gradients as Opacus keeps them."""
    from opacus.grad_sample import GradSampleModule

    # Opacus looks at models in training mode only; this one has no dropout.
    model = GradSampleModule(size.model("eager").train(), loss_reduction="sum", strict=False)

    def run(prompt: list[int], rows: list[list[int]]) -> Array:
        ids = torch.tensor([prompt + row for row in rows])
        # Positions without a row for each completion would be taken for one sample.
        positions = torch.arange(ids.shape[1] - 1).repeat(len(ids), 1)
        logits = model(input_ids=ids[:, :-1], position_ids=positions, use_cache=False).logits
        log = torch.log_softmax(logits[:, PROMPT - 1 :], dim=-1)
        log.gather(2, ids[:, PROMPT:, None]).sum().backward()
        squares = [p.grad_sample.flatten(1).square().sum(1) for p in model.parameters()]
        for parameter in model.parameters():
            parameter.grad_sample = parameter.grad = None
        return torch.stack(squares).sum(0).double().numpy()

    return run


WAYS: dict[str, Way] = {
    "one pass": pass_by_hooks,
    "one pass, blocks of 4": blocks_by_hooks,
    "one pass and Gram matrix": gram_by_hooks,
    "loop": pass_by_loop,
    "loop, norms": norms_by_loop,
    "torch.func, norms": norms_by_vmap,
    "Opacus, norms": norms_by_opacus,
}
FIRST = next(iter(WAYS))


def installed(way: str) -> bool:
    """Whether what a way needs is there."""
    return not way.startswith("Opacus") or find_spec("opacus") is not None


def memory_now() -> int:
    """Bytes in memory; the peak begins here where the system can forget the last one."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return peak()


def peak() -> int:
    """The most bytes that this process has had in memory."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure(way: str, size: Size, count: int, length: int) -> dict[str, Any]:
    """CPU seconds and bytes of one run, and the norms that it found."""
    run = WAYS[way](size)
    prompt, rows = tokens(size, count, length)
    run(prompt, rows[:2])
    before = memory_now()
    # Of the one thread that works: other work on the machine is not counted.
    start = process_time()
    norms = run(prompt, rows)
    seconds = process_time() - start
    return {"seconds": seconds, "bytes": max(0, peak() - before), "norms": norms.tolist()}


def in_process(way: str, name: str, count: int, length: int, limit: float) -> dict[str, Any] | None:
    """A measurement in a process of its own; None where it takes longer than the limit."""
    command = [sys.executable, "-m", "benchmarks.llm_scores", "--child", way, "--sizes", name]
    command += ["--lengths", str(length), "--count", str(count)]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise SystemExit(f"{way} at {name}, {length} tokens:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(
    name: str, length: int, count: int, rounds: int, limit: float, run: Any = in_process
) -> list[list[object]]:
    """Every way's least and median seconds, ratio to one pass, and peak memory.

    Raises:
        SystemExit: two ways give different norms.
    """
    ways = [way for way in WAYS if installed(way)]
    found: dict[str, list[dict[str, Any] | None]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            # What took too long once is not waited for again.
            again = not found[way] or found[way][-1] is not None
            result = run(way, name, count, length, limit) if again else None
            found[way].append(result)
            if result is not None:
                # To follow a run of hours; the tables come at its end.
                print(f"{name}, {length}: {way}: {result['seconds']:.3g} s", file=sys.stderr)
    reference = np.array(next(r for r in found["loop, norms"] if r)["norms"])
    rows: list[list[object]] = []
    for way in WAYS:
        head = [name, length, way]
        if way not in found:
            rows.append([*head, "not installed", None, None, None])
            continue
        results = [r for r in found[way] if r is not None]
        if not results:
            rows.append([*head, f"over {limit:.0f}", None, None, None])
            continue
        for result in results:
            off = float(np.abs(np.array(result["norms"]) / reference - 1).max())
            # Written so that a NaN is refused as well.
            if not off <= AGREEMENT:
                raise SystemExit(f"{way} at {name}, {length} tokens: norms differ by {off:.3g}")
        times = [result["seconds"] for result in results]
        pairs = zip(found[way], found[FIRST], strict=True)
        ratios = [a["seconds"] / b["seconds"] for a, b in pairs if a and b]
        ratio = f"{median(ratios):.2f}" if ratios else None
        megabytes = max(result["bytes"] for result in results) / 1e6
        rows.append([*head, f"{min(times):.3g}", f"{median(times):.3g}", ratio, f"{megabytes:.0f}"])
    return rows


# A device.


def flops_of(run: Callable[[], Any]) -> int:
    """Multiplications and additions in matrix products."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def product_rate(device: str, dtype: torch.dtype, width: int) -> float:
    """Operations per second of a square matrix product: the best of 10."""
    a = torch.randn(width, width, device=device).to(dtype)
    times = []
    for _ in range(10):
        wait(device)
        start = perf_counter()
        _ = a @ a
        wait(device)
        times.append(perf_counter() - start)
    return 2 * width**3 / min(times)


def on_device(
    device: str,
    count: int,
    length: int,
    rounds: int,
    memory: int,
    config: dict[str, Any],
    wide: int,
) -> list[list[object]]:
    """Prompts per second, peak memory and share of the matrix-product peak, by precision."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**config)).to(device).eval()
    size = Size(config["vocab_size"], config["hidden_size"], config["num_hidden_layers"])
    prompt, rows = tokens(size, count, length)
    weights = weights_of(count)
    table: list[list[object]] = []
    for label, autocast in (("float32", False), ("bfloat16 autocast", True)):
        scores = Scores(model, memory=memory, autocast_bf16=autocast)
        operations = flops_of(lambda scores=scores: scores.of(prompt, rows, weights))
        if device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if device.startswith("cuda") else memory_now()
        times = []
        for _ in range(rounds):
            wait(device)
            start = perf_counter()
            result = scores.of(prompt, rows, weights)
            wait(device)
            times.append(perf_counter() - start)
        operations = flops_of(lambda scores=scores: scores.of(prompt, rows, weights))
        top = torch.cuda.max_memory_allocated() if device.startswith("cuda") else peak()
        rate = operations / median(times)
        shares = [
            f"{rate / product_rate(device, dtype, wide):.1%}"
            for dtype in (torch.float32, torch.bfloat16)
        ]
        table.append(
            [
                label,
                scores.d,
                f"{1 / median(times):.3g}",
                result.passes,
                f"{(top - before) / 1e6:.0f}",
                f"{rate / 1e12:.3g}",
                *shares,
            ]
        )
    return table


DEVICE_HEAD = [
    "precision",
    "parameters",
    "prompts/s",
    "passes",
    "peak MB above the model",
    "Tflop/s",
    "share of float32 product",
    "share of bfloat16 product",
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison, or the device's part, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--sizes", nargs="+", choices=[*SIZES, "tiny"], default=list(SIZES))
    parser.add_argument("--lengths", nargs="+", type=int, default=[32, 256])
    parser.add_argument("--count", type=int, default=64, help="completions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300, help="seconds for one process")
    parser.add_argument("--device", default="cpu", help="cuda: Qwen2.5-0.5B's configuration there")
    parser.add_argument("--memory", type=int, default=2**35, help="bytes allowed on a device")
    parser.add_argument("--child", choices=list(WAYS), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    before = torch.get_num_threads()
    if options.device == "cpu":
        torch.set_num_threads(1)
    try:
        if options.child:
            size = TINY if options.sizes[0] == "tiny" else SIZES[options.sizes[0]]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = measure(options.child, size, options.count, options.lengths[0])
            print(json.dumps(found))
            return 0
        if options.device != "cpu":
            _print_device(options)
            return 0
        if options.quick:
            options.sizes, options.lengths, options.rounds, options.count = ["tiny"], [5], 1, 4
        _print_comparison(options)
    finally:
        torch.set_num_threads(before)
    return 0


def _print_comparison(options: argparse.Namespace) -> None:
    print("# Scores of a language model's completions\n")
    print(
        f"`python -m benchmarks.llm_scores --sizes {' '.join(options.sizes)} --lengths "
        f"{' '.join(map(str, options.lengths))} --count {options.count} --rounds {options.rounds}`\n"
    )
    names = ["torch", "transformers", *(["opacus"] if find_spec("opacus") else [])]
    print(
        f"{machine('numpy', *names)}; load {getloadavg()[0]:.1f} at the start; 1 thread; float32; "
        f"{options.count} completions after a prompt of {PROMPT} tokens; {options.rounds} "
        "interleaved rounds; ratio: median over rounds of time over that of the first row\n"
    )
    rows: list[list[object]] = []
    for name in options.sizes:
        for length in options.lengths:
            rows += compare(name, length, options.count, options.rounds, options.limit)
    head = ["parameters", "tokens", "way", "least CPU s", "median CPU s", "ratio", "peak MB"]
    print(tabulate(rows, head, tablefmt="github", disable_numparse=True, missingval="-"))


def _print_device(options: argparse.Namespace) -> None:
    device = options.device
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    print(f"Qwen2.5-0.5B's configuration, random weights, on {name}; {machine('numpy', 'torch')}\n")
    config, wide, lengths = (QWEN, 8192, options.lengths)
    if options.quick:
        config = QWEN | {"vocab_size": 64, "hidden_size": 28, "num_hidden_layers": 1}
        wide, lengths, options.count, options.rounds = 64, [5], 4, 1
    for length in lengths:
        print(f"{options.count} completions of {length} tokens after a prompt of {PROMPT}:\n")
        rows = on_device(
            device, options.count, length, options.rounds, options.memory, config, wide
        )
        print(tabulate(rows, DEVICE_HEAD, tablefmt="github", disable_numparse=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
