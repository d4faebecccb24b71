"""The advantages of TRL's RLOOTrainer; the installed release."""

from .trl import rloo as advantages

FUNCTION = "trl.RLOOTrainer._generate_and_score_completions"

__all__ = ["FUNCTION", "advantages"]
