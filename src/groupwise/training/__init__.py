"""The stages of a run: the loops, what they share, set-up, checkpoints."""
