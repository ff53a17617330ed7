"""Save and restore a run: the two halves of an exact resume.

A checkpoint contains the policy's tensors, the position, the batch in flight, the global random state, and the identity
that must be equal in a resumed run (recipe fingerprint, verifier, versions).
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy
import torch

from groupwise.config import ConfigError
from groupwise.data.batch import batch_from_json, batch_to_json
from groupwise.models.checkpoint_store import checkpoint_name

if TYPE_CHECKING:
    from groupwise.training.training import Training


@dataclass(slots=True)
class Position:
    """The counters and decisions of a run that a resumed run must continue from."""

    stage_index: int = 0
    stage_step: int = 0
    """Steps of the stage that are complete."""
    step: int = 0
    """Steps of the run that are complete."""
    policy_version: int = 0
    num_tokens: int = 0
    """Tokens sampled so far."""
    nonfinite_in_a_row: int = 0
    kl_coefficient: float | None = None
    """Coefficient of the target-seeking controller."""
    sampler: dict[str, Any] | None = None
    """State of the sampler after the newest batch was sampled."""
    last_eval_step: int = -1
    best_pass_at_1: float = -1.0
    best_checkpoint: str = ""
    evals_without_best: int = 0
    """Evaluations in this stage since the best one."""
    guards_at_start: dict[str, float] = field(default_factory=dict)
    """Readings of the guards before the first step."""
    is_guard_broken: bool = False
    """A guard that ends the stage was broken in this stage."""


def save(training: Training) -> None:
    """Save the run after a step or, with a batch in flight, inside one. Nothing is written twice."""
    position, batch = training.position, training.batch
    updates_done = len(batch.updates) if batch else 0
    if training.saved == (position.step, updates_done):
        return
    name = checkpoint_name(position.step + 1, updates_done) if batch else checkpoint_name(position.step)
    start = time.perf_counter()
    state = {
        "position": asdict(position),
        "batch": batch_to_json(batch) if batch else None,
        "identity": training.identity,
        "random": random_state(),
    }
    is_stage_over = position.stage_step >= training.recipe.stages[position.stage_index].steps
    tensors = training.policy.state(is_stage_over=is_stage_over)
    training.store.save(name, tensors, state, protected={position.best_checkpoint})
    training.policy.world.gather(None)  # no rank reads the checkpoint before it is complete
    training.saved = (position.step, updates_done)
    training.save_end = time.perf_counter()
    training.save_s = training.save_end - start
    training.aside["time/checkpoint_s"] += training.save_s
    training.log.write_event("checkpoint", name=name, seconds=training.save_s)


def restore(training: Training, *, accept_verifier: bool = False) -> None:
    """Load the newest valid checkpoint. Without one, the run starts over with the same numbers."""
    path = training.store.newest_valid()
    if path is not None:
        path = training.store.rewind(path.name)
    # Rank 0 chooses the checkpoint; the others only read.
    path = training.policy.world.gather(path)[0]
    if path is None:
        training.log.rewind(0, eval_step=-1)
        return
    tensors, state = training.store.load(path, check=False)
    changed = _refuse_changes(training.identity, state["identity"], accept_verifier)
    if changed:
        training.log.write_event("verifier_changed", step=state["position"]["step"], change=changed)
    position = Position(**state["position"])
    stage = training.recipe.stages[position.stage_index]
    training.policy.begin_stage(
        stage.optimizer, keep_reference=stage.uses_reference, offload_reference=stage.offloads_reference
    )
    training.policy.load_state(tensors, position.policy_version)
    training.position = position
    training.batch = batch_from_json(state["batch"]) if state["batch"] else None
    training.saved = (position.step, len(training.batch.updates) if training.batch else 0)
    restore_random_state(state["random"])
    # The rollouts of a step in flight were written before the checkpoint and are not sampled again.
    in_flight = 1 if training.batch else 0
    training.log.rewind(position.step, eval_step=position.last_eval_step, rollout_step=position.step + in_flight)
    if position.best_checkpoint in training.store.names():
        training.store.mark(position.best_checkpoint, "best")


def _refuse_changes(now: Mapping[str, Any], then: Mapping[str, Any], accept_verifier: bool) -> str:
    """Return the accepted change of the verifier; "" if there is none."""
    for key, fix in (
        ("fingerprint", "restore recipe.toml"),
        ("verifier", "install the version that it was started with, or continue anyway with --accept-verifier"),
    ):
        if now[key] != then[key] and not (key == "verifier" and accept_verifier):
            raise ConfigError(
                f"this run was started with {key} {then[key]} and would continue with {now[key]}: its numbers would "
                f"not be comparable; {fix}, or start a new run"
            )
    return "" if now["verifier"] == then["verifier"] else f"{then['verifier']} → {now['verifier']}"


def seed_random_state(seed: int) -> None:
    """Seed the global generators, which dropout and user-defined tasks may use."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [part.tolist() if isinstance(part, numpy.ndarray) else part for part in numpy.random.get_state()],
        "torch": torch.get_rng_state().tolist(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state().tolist()
    return state


def restore_random_state(state: Mapping[str, Any]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), *rest))
    torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.tensor(state["cuda"], dtype=torch.uint8))
