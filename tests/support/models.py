"""Tiny random language models that stand in for real ones: Qwen2 with a character tokenizer."""

import copy
import string
from dataclasses import replace

import numpy as np
import pytest

CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] + '>' + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'a>' }}{% endif %}"
)


def byte_level(character: str) -> str:
    """How byte-level pre-tokenisation writes an ASCII character."""
    return {" ": "Ġ", "\n": "Ċ"}.get(character, character)


def character_tokenizer(characters: str = CHARACTERS, *, chat_template: str | None = TEMPLATE):
    """One token for each character, ``<pad>`` 0 and ``<eos>`` 1."""
    pytest.importorskip("tokenizers", reason="language models need the extra llm")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = ["<pad>", "<eos>", *(byte_level(character) for character in characters)]
    tokenizer = Tokenizer(models.BPE({s: i for i, s in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat_template
    return fast


def random_model(
    kind="Qwen2", *, seed=0, vocab_size, hidden_size=16, intermediate_size=32, std=0.3, **config
):
    """A random model of two layers, of the architecture that ``kind`` names."""
    import torch
    import transformers

    settings = {"vocab_size": vocab_size, "initializer_range": std}
    if kind == "GPT2":
        settings |= {"n_positions": 64, "n_embd": hidden_size, "n_layer": 2, "n_head": 2}
    else:
        settings |= {"hidden_size": hidden_size, "intermediate_size": intermediate_size}
        settings |= {"max_position_embeddings": 64, "num_hidden_layers": 2}
        settings |= {"num_attention_heads": 2}
    if kind == "Qwen3":
        settings |= {"num_key_value_heads": 1, "head_dim": 4}
    made = getattr(transformers, f"{kind}Config")(**settings | config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.AutoModelForCausalLM.from_config(made).eval()


def save_tiny(folder, *, seed=0, characters=CHARACTERS, **config):
    """Write a tiny random Qwen2 model and its tokenizer into a folder."""
    tokenizer = character_tokenizer(characters)
    settings = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    settings |= {"max_position_embeddings": 256, "pad_token_id": 0, "eos_token_id": 1}
    settings |= {"bos_token_id": None, "vocab_size": len(tokenizer)} | config
    random_model(seed=seed, **settings).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def fresh(language_model):
    """A copy that may be changed and trained, and that is no longer what its folder holds."""
    return replace(language_model, model=copy.deepcopy(language_model.model), source="")


OUTPUTS = [(1,), *[(first, second) for first in (0, 2, 3) for second in range(4)]]
"""All completions of four symbols, of which 1 ends, cut after two tokens."""


def output_by_hand(model, prompt, output):
    """Probability, score and token proxy of an output by plain autograd: no padding, no batch."""
    import torch

    logits = model(input_ids=torch.tensor([[*prompt, *output]]), use_cache=False).logits[0]
    log_law = logits[len(prompt) - 1 : -1].double().log_softmax(-1)
    total = log_law[range(len(output)), output].sum()
    parts = torch.autograd.grad(total, [p for p in model.parameters() if p.requires_grad])
    score = torch.cat([part.reshape(-1) for part in parts]).double().numpy()
    law, chosen = log_law.detach().exp(), torch.eye(log_law.shape[1])[list(output)]
    return float(total.detach().exp()), score, float((chosen - law).square().sum())


def every_output(model, prompts):
    """Probabilities (P, K), scores (P, K, d) and token proxies (P, K) of all outputs of the prompts."""
    result = [output_by_hand(model, prompt, output) for prompt in prompts for output in OUTPUTS]
    shape = len(prompts), len(OUTPUTS)
    return tuple(
        np.reshape(part, (*shape, *np.shape(part[0]))) for part in zip(*result, strict=True)
    )


def permuted(weights, heads):
    """Rows of a query's or key's weights in GGUF's order: what rotates together are neighbours."""
    return weights.reshape(heads, 2, -1, weights.shape[1]).swapaxes(1, 2).reshape(weights.shape)


def save_gguf(path, kind="Q4_1", *, seed=0):
    """Write a random Llama of two layers and a tokenizer of characters and "12" into a GGUF file.

    Returns:
        the same Llama with the weights that the file's matrices, of this type of GGUF, stand for.
    """
    import gguf
    import torch
    from transformers import LlamaForCausalLM

    symbols = ["<pad>", "<eos>", *map(byte_level, CHARACTERS), "12"]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_key_value_heads": 1}
    sizes |= {"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "vocab_size": len(symbols)}
    model = random_model("Llama", seed=seed, **sizes)
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(symbols))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(symbols)
    writer.add_token_types([3, 3] + [1] * (len(symbols) - 2))
    writer.add_token_merges(["1 2"])
    writer.add_pad_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    stored = gguf.GGMLQuantizationType[kind]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    with torch.no_grad():
        for name, weights in LlamaForCausalLM.named_parameters(model):
            values, where = weights.numpy(), names.get_name(name, try_suffixes=(".weight",))
            if values.ndim == 1:
                writer.add_tensor(where, values)
                continue
            count = heads.get(name.split(".")[-2])
            packed = gguf.quants.quantize(
                values if count is None else permuted(values, count), stored
            )
            writer.add_tensor(where, packed, raw_dtype=stored)
            weights.copy_(
                torch.from_numpy(
                    gguf.quants.dequantize(gguf.quants.quantize(values, stored), stored)
                )
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model
