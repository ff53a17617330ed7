"""Verifier runs: during training in killable workers, over a file, and over gold and wrong answers."""
