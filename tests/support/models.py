"""Tiny random language models that stand in for real ones: Qwen2 with a character tokenizer."""

from __future__ import annotations

import string

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


def save_tiny(folder, *, seed=0, characters=CHARACTERS, std=0.3, **config):
    """Write a tiny random Qwen2 model and its tokenizer into a folder."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = character_tokenizer(characters)
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": std,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": None,
    } | config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(Qwen2Config(**settings))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
