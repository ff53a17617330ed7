"""What a run will take before it runs: memory by part, time, and what to change where it does not fit.

Arithmetic over the sizes of a model and the keys of a recipe; no weights are loaded. Constants that arithmetic does not
give come from benchmarks/results, by name, in `memory` and `timing`.
"""
