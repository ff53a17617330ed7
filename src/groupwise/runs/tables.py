"""What readers use of tables that have more keys: a run's recipe, its run.json and its events.

Contract: `typed` checks the types of these keys where they are set. A reader that uses another key adds it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_STAGE: Mapping[str, Any] = {
    **dict.fromkeys(("name", "algorithm"), str),
    **dict.fromkeys(("steps", "problems_per_step", "problems_per_update", "rollouts_per_problem"), int),
    "epochs_per_batch": int,
    "sampling": {
        **dict.fromkeys(("max_new_tokens", "top_k"), int),
        **dict.fromkeys(("temperature", "top_p", "min_p"), float),
        "stop_strings": tuple[str, ...],
    },
    "optimizer": dict.fromkeys(("learning_rate", "max_grad_norm"), float),
    "loss": {**dict.fromkeys(("advantage", "surrogate", "weights", "importance"), str), "clip_high": float},
    "kl": {"coefficient": float},
    "reward": {
        "part_weights": Mapping[str, float],
        "format_parts": tuple[str, ...],
        **dict.fromkeys(("overlong_buffer_share", "overlong_penalty", "length_cost", "process_weight"), float),
        **dict.fromkeys(("min_reward", "max_reward"), float),
    },
    "curriculum": {"kind": str},
}
RECIPE_KEYS: Mapping[str, Any] = {
    "name": str,
    "model": dict.fromkeys(("path", "dtype"), str),
    "task": {"name": str, "options": Mapping[str, Any]},
    "stages": [_STAGE],
    "evaluation": {
        **dict.fromkeys(("every_steps", "num_problems", "rollouts_per_problem", "max_new_tokens"), int),
        "temperature": float,
    },
    "verifier": dict.fromkeys(("seconds", "wall_seconds", "memory_mb"), float),
}
INFO_KEYS: Mapping[str, Any] = {
    **dict.fromkeys(("fingerprint", "verifier"), str),
    "machine": {**dict.fromkeys(("device", "device_name", "dtype"), str), "num_cores": int, "num_parameters": float},
    "versions": Mapping[str, Any],
}
EVENT_KEYS: Mapping[str, Any] = {
    **dict.fromkeys(("kind", "reason", "action"), str),
    "step": int,
    **dict.fromkeys(("seconds", "perplexity", "format_share"), float),
    "broken": tuple[str, ...],
}
