"""Sweeps: arms made of a recipe, each run with several seeds in a run directory of its own, and what they show.

    sweep.toml ──spec──▶ SweepSpec ──arms──▶ Sweep ──folder──▶ sweep.json ──runner──▶ runs/ARM/seed-S ──study──▶ report

The runs are the state: there is no other record of what is done, so asking again goes on. The analysis reads
sweep.json and the run directories alone. Nothing here imports torch: training happens in processes of its own.
"""
