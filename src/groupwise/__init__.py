"""groupwise teaches a language model to reason: sample a group of answers, verify each, learn from the best (GRPO)."""

__version__ = "0.1.0"
