"""Named tasks: prompts with the verifiers that reward their answers."""
