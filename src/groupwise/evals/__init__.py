"""Evaluation: held-out scores with their uncertainty."""
