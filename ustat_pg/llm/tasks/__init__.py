"""Tasks by name: prompts with the verifiers that reward their answers."""
