"""Experiments on the language models that ship with the library."""
