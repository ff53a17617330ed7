"""Where things lie in a run directory. Names only; nothing here reads or writes.

RUN/ recipe.toml  run.json  run.lock  metrics.jsonl  evals.jsonl  events.jsonl
     rollouts/000012.jsonl        one scored group a line, one file per step
     tokens/000010.jsonl          what the step did to each token; a line per group, as in rollouts/
     eval_rollouts/000010.jsonl   the same for the held-out problems
     checkpoints/                 see groupwise.models.checkpoint_store
     audit/                       page.html to label chains on, labels.jsonl: see groupwise.audit
"""

from __future__ import annotations

import re

RECIPE = "recipe.toml"
INFO = "run.json"
LOCK = "run.lock"
METRICS = "metrics.jsonl"
EVALS = "evals.jsonl"
EVENTS = "events.jsonl"
ROLLOUTS = "rollouts"
TOKENS = "tokens"
EVAL_ROLLOUTS = "eval_rollouts"
REWARDS = "rewards"
"""The source of reward functions, for people to read."""
DATA = "data"
"""Rows that were passed to `groupwise.train` as objects."""
CHECKPOINTS = "checkpoints"
SWEEP = "sweep.json"
"""In a folder that is no run, and holds those of a sweep (groupwise.sweeps) ..."""
SWEEP_RUNS = "runs"
"""... in here, by arm and seed."""

_ROLLOUT_FILE = re.compile(r"(\d{6,})\.jsonl")
_RUN_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RunNameError(ValueError):
    """A run name that cannot be a folder's name everywhere."""


def validate_run_name(name: str) -> str:
    """`name`, when it is safe as a folder, in an address and on a command line."""
    if not _RUN_NAME.fullmatch(name) or name in (".", ".."):
        raise RunNameError(f"run name {name!r}: use 1 to 64 letters, digits, dots, underscores and hyphens")
    return name


def rollout_file(step: int) -> str:
    return f"{step:06d}.jsonl"


def rollout_step(file_name: str) -> int | None:
    """The step whose rollouts a file holds; None for other files."""
    match = _ROLLOUT_FILE.fullmatch(file_name)
    return int(match.group(1)) if match else None
