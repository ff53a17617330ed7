"""Scores of the reasoning: the arithmetic that is written in it."""
