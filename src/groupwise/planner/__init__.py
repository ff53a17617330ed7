"""The planner: memory by part and time of a run before it starts, and changes that make it fit.

It computes with the sizes of a model and the keys of a recipe; no weights are loaded. Measured constants come from
benchmarks/results, by name, in `stage_memory` and `timing`.
"""
