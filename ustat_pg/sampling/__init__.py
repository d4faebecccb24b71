"""How prompts are chosen, outputs drawn and random numbers addressed."""
