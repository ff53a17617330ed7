"""Sweeps: variants of a recipe (arms), each run with several seeds in its own run directory, and their analysis.

    sweep.toml ─spec─▶ SweepSpec ─arms─▶ Sweep ─folder─▶ sweep.json ─run_jobs─▶ runs/ARM/seed-S ─sweep_page─▶ report

The runs are the state: nothing else records what is done, so the same command continues a sweep. The analysis reads
only sweep.json and the run directories. Nothing here imports torch: training runs in other processes.
"""
