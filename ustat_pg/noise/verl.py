"""A meter in verl's FSDP2 engine: ``actor_rollout_ref.model.external_lib=ustat_pg.noise.verl``.

verl imports this module in every worker before it chooses an engine. Mini-batches of the first epoch are
measured, and the actor's metrics get ``actor/noise/signal``, ``actor/noise/k_crit`` and the rest. verl
reduces gradients once a mini-batch; here it does so after every micro-batch, whose own gradient would be
lost otherwise. After an error the engine warns once and then works like verl's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..validation import InputError, needed

with needed("a meter in verl", "noise"):
    from .meter import NoiseMeter
    from .onlooker import Guard, Onlooker


def measured(engine: Any) -> Any:
    """A class of verl's FSDP engines with a meter in its loop over micro-batches."""

    class Measured(Onlooker, engine):
        _guard: Guard
        _meter: NoiseMeter | None = None
        _open = False
        _seen: set[tuple[str, bytes]]
        _rows: set[tuple[str, bytes]]

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self._guard = Guard()

        def forward_step(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
            if not forward_only:
                self._safely(self._begin, micro_batch)
            return super().forward_step(micro_batch, loss_function, forward_only)

        @contextmanager
        def _gradient_sync_context(self, *, is_last_micro_batch: bool) -> Iterator[None]:
            # All processes reduce in the same way until all know that the meter is off.
            last = is_last_micro_batch or not self._guard.over
            with super()._gradient_sync_context(is_last_micro_batch=last):
                yield

        def optimizer_step(self) -> Any:
            self._safely(self._close)
            self._guard.run(self._step)
            return super().optimizer_step()

        def train_batch(self, *given: Any, **named: Any) -> Any:
            outputs = super().train_batch(*given, **named)
            metrics = self._safely(self._metrics) or {}
            # verl concatenates the lists of all processes.
            outputs["metrics"] |= {f"noise/{name}": [value] for name, value in metrics.items()}
            return outputs

        def lr_scheduler_step(self) -> Any:
            # This is reached after the last epoch over a batch.
            self._seen = set()
            return super().lr_scheduler_step()

        def _begin(self, micro_batch: Any) -> None:
            if self._meter is None:
                self._meter = _meter(self, self._guard)
                self._seen, self._rows = set(), set()
            self._close()
            names = micro_batch["uid"]
            # verl may send a single value if all are equal.
            names = [names] * len(micro_batch) if isinstance(names, str) else [*map(str, names)]
            tokens = (row.cpu().numpy().tobytes() for row in micro_batch["input_ids"].unbind())
            self._rows |= set(zip(names, tokens, strict=True))
            scaler = getattr(self, "scaler", None)
            self._meter.begin(names, 1.0 if scaler is None else scaler.get_scale())
            self._open = True

        def _close(self) -> None:
            if self._open and self._meter is not None:
                self._open = False
                self._meter.end()

        def _step(self) -> None:
            if self._meter is None:
                self._guard.gathered()
                return
            # An earlier epoch already used these outputs, or the rows only pad the batch.
            padded = any(name.startswith("pad") for name, _ in self._rows)
            self._meter.step(counts=not padded and not self._rows <= self._seen)
            self._seen |= self._rows
            self._rows = set()

        def _metrics(self) -> dict[str, float]:
            return {} if self._meter is None else self._meter.metrics()

    return Measured


def _meter(engine: Any, guard: Guard) -> NoiseMeter:
    import torch.distributed as distributed

    processes = distributed.get_world_size() if distributed.is_initialized() else 1
    if engine.get_data_parallel_size() != processes:
        raise InputError("sequences are split over processes (ulysses_sequence_parallel_size)")
    parameters = list(engine.module.parameters())
    if processes > 1 and not all(hasattr(parameter, "to_local") for parameter in parameters):
        raise InputError("parameters are not those of FSDP2: set actor.strategy=fsdp2")
    return NoiseMeter(parameters, guard=guard)


def _register() -> None:
    try:
        from verl.workers.engine import EngineRegistry
    except ImportError:
        return
    # register() keeps an existing engine of the same name, or fails, so this replaces the registry's entry.
    engines = EngineRegistry._engines["language_model"]["fsdp2"]
    engines |= {key: measured(engine) for key, engine in engines.items()}


_register()
