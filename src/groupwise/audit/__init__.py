"""The audit of a run: checks of what the model wrote, and labels that people give to completions.

Reads a run directory and writes only below its folder `audit/`. The audit judges the verifier, so it never runs one.
Nothing imports torch.
"""
