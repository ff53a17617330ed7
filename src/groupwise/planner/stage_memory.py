"""GPU memory of a stage by part and by phase: sampling, scoring, update. The peak is the largest phase.

The bytes that a layer keeps per token, the sizes of cache and optimizer, and the conditions for recorded passes follow
from the code, and tests compare them. Two constants are measured and say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from groupwise.config import RlStage
from groupwise.engines.native.schedule import BLOCK_TOKENS, CACHE_SHARE, PREFILL_TOKENS
from groupwise.models.memory_limits import (
    CHUNK_SHARE,
    EXCHANGE_BYTES,
    KEPT_SUMS_SHARE,
    MOMENT_BLOCK,
    RECORDED_SHARE,
    capacity,
    grain,
)
from groupwise.planner.gpus import CONTEXT_GIB
from groupwise.planner.shapes import ModelShape
from groupwise.planner.work import Work

GIB = 2**30
Parts = Mapping[str, float]
"""Bytes by name."""

CHUNK_BYTES = 256 << 20
"""The constant of algo/logprobs.py, which imports torch."""
CONTEXT_BYTES = int(CONTEXT_GIB * GIB)
HEAD_CHUNKS = 1.75
"""Chunks of logits in memory at once, with gradients in bf16. Measured: 0.46 GiB at a vocabulary of 151,936."""
RECORDED_SLACK = 1.75
"""Memory of a recorded pass / its working memory: some of it cannot be reused.

Measured: 2.5 to 2.9 GiB for 12,288 tokens of Qwen2.5-1.5B's shape (learner_h200, updates).
"""
PACKED_BYTES = {"none": None, "8bit": 1.0, "4bit": 0.5 + 1 / 64 + 4 / (64 * 256)}
"""Bytes of a quantized weight. 4 bit: one byte of scale per 64 weights, and one float per 256 scales."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    phases: Mapping[str, Parts]
    """Phase → part → bytes."""
    rollouts_at_once: int
    """Rollouts whose cache fits on one GPU; 0 if the stage samples nothing."""
    needed_cache: float
    """Bytes that one group needs; with less, the engine refuses to run."""
    room: float
    """Bytes of GPU memory that a run can use."""

    @property
    def peak_phase(self) -> str:
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def peak(self) -> float:
        return sum(self.phases[self.peak_phase].values())

    @property
    def fits(self) -> bool:
        has_cache = self.phases.get("sampling", {}).get("cache", self.needed_cache) >= self.needed_cache
        return self.peak <= self.room and has_cache


def plan_memory(work: Work, pack_tokens: int) -> StageMemory:
    """Return the memory of a stage with microbatches of `pack_tokens`."""
    lasting = lasting_parts(work) | recorded_parts(work, pack_tokens)
    room = float(work.gpu.free_bytes - CONTEXT_BYTES)
    update = lasting | update_parts(work, pack_tokens)
    if not isinstance(work.stage, RlStage):
        return StageMemory({"update": update}, 0, 0.0, room)
    cache = cache_of(work, room - sum(lasting.values()))
    phases: dict[str, Parts] = {"sampling": lasting | {"cache": cache, **buffer_parts(work)}}
    if work.stage.uses_reference or work.stage.needs_old_logprobs:
        phases["scoring"] = lasting | scoring_parts(work, pack_tokens)
    phases["update"] = update
    at_once = min(work.slots, int(cache // (work.row_tokens * work.shape.cache_bytes(work.value_bytes))))
    return StageMemory(phases, at_once, group_cache(work), room)


# ---- all the time ----


def weight_bytes(work: Work) -> float:
    """Return the bytes of the whole model and its adapters."""
    shape, each = work.shape, work.value_bytes
    adapters = work.trained if work.model.lora is not None else 0
    packed = PACKED_BYTES[work.model.quantization]
    products = shape.layers * shape.layer_products
    return (shape.parameters - products + adapters) * each + products * (each if packed is None else packed)


def lasting_parts(work: Work) -> dict[str, float]:
    """Return the bytes of weights, optimizer state and reference. Each rank has its slice."""
    optimizer, trained = work.stage.optimizer, work.trained
    is_own_master = work.value_bytes == 4
    moment = 8.0 if optimizer.moments == "fp32" else 2 * (1 + 4 / MOMENT_BLOCK)
    on_gpu = 0 if optimizer.offload else trained
    has_copy = work.stage.uses_reference and not work.stage.offloads_reference
    parts = {
        "weights": weight_bytes(work),
        "masters": 0.0 if is_own_master else 4.0 * on_gpu,
        "moments": moment * on_gpu,
        "reference": reference_bytes(work) if has_copy else 0.0,
        "average": 4.0 * on_gpu if work.model.ema_decay else 0.0,
        "gradient sums": gradient_bytes(work) if keeps_sums(work) else 0.0,
    }
    return {name: size / work.ranks for name, size in parts.items() if size}


def reference_bytes(work: Work) -> float:
    """Return the bytes of a copy of the trained weights."""
    return float(work.value_bytes * work.trained)


def checkpoint_bytes(work: Work) -> float:
    """Return the bytes on disk during a stage: weights, moments and average, all in fp32, and the reference copy."""
    copied = reference_bytes(work) if work.stage.uses_reference else 0.0
    return (16.0 if work.model.ema_decay else 12.0) * work.trained + copied


def gradient_bytes(work: Work) -> float:
    return 4.0 * work.trained


def keeps_sums(work: Work) -> bool:
    """Return whether gradient sums stay in memory between updates, as those of small models do."""
    return work.value_bytes == 2 and work.ranks == 1 and gradient_bytes(work) <= KEPT_SUMS_SHARE * work.gpu.memory_bytes


# ---- passes over a microbatch ----


def kept_bytes(work: Work) -> int:
    """Return the bytes per token that a layer keeps between forward and backward pass (models/straight.py)."""
    shape, which = work.shape, work.model.gradient_checkpointing
    each, projected = work.value_bytes, shape.query + 2 * shape.key
    if which is True:
        return each * shape.hidden
    if not work.is_straight:
        # autograd also keeps the inputs of all products and norms, and the output of the activation
        gates = 0 if which == "mlp" else 3 * shape.width
        return each * (5 * shape.hidden + 2 * projected + shape.query + gates)
    norms = shape.query + shape.key if shape.has_head_norms else 0
    gates = 0 if which == "mlp" else 2 * shape.width
    return each * (2 * shape.hidden + projected + shape.query + norms + gates)


def working_bytes(shape: ModelShape, value_bytes: int) -> int:
    """Return the bytes per token in the backward pass of one layer: gates, their gradients, and their neighbours."""
    projected = shape.query + 2 * shape.key
    return value_bytes * (6 * shape.width + 2 * projected + 6 * shape.hidden)


def recordable_tokens(work: Work) -> int:
    """Return the tokens of the largest pack whose passes can be recorded; 0 if none can (models/recorded.py)."""
    if not work.is_straight or work.ranks > 1:
        return 0
    tokens = int(RECORDED_SHARE * work.gpu.memory_bytes) // (kept_bytes(work) * work.shape.layers)
    return tokens // grain(tokens) * grain(tokens)


def is_recorded(work: Work, pack_tokens: int, *, learns: bool) -> bool:
    return capacity(pack_tokens) <= recordable_tokens(work) and (keeps_sums(work) or not learns)


def most_tokens(work: Work) -> int:
    """Return the maximum tokens of a pack: the recipe's, or less where passes are recorded."""
    recordable = recordable_tokens(work) if keeps_sums(work) else 0
    return min(work.stage.microbatch_tokens, recordable or work.stage.microbatch_tokens)


def longest_pack(work: Work) -> int:
    """Return the tokens of the largest possible microbatch, which a run tries before its first step."""
    length = work.prompt_tokens + work.max_tokens
    return max(1, most_tokens(work) // length) * length


def usual_pack(work: Work) -> int:
    """Return the tokens of the largest pack at expected lengths. Packs of a step are about equally large."""
    most = most_tokens(work)
    own = max(1.0, work.mean_tokens - 1)
    bundle = work.prompt_tokens + work.group * own
    if bundle > most:
        return round(work.prompt_tokens + max(1.0, (most - work.prompt_tokens) // own) * own)
    problems = math.ceil(work.problems / work.updates_per_epoch / work.ranks)
    packs = math.ceil(problems / (most // bundle))  # a group that fits is not split
    return round(math.ceil(problems / packs) * bundle)


def recorded_parts(work: Work, pack_tokens: int) -> dict[str, float]:
    """Return the bytes that recorded passes hold in all phases, even if a pack is too large to be recorded.

    Passes of smaller packs share the memory of the largest.
    """
    tokens, shape = min(capacity(pack_tokens), recordable_tokens(work)), work.shape
    working = RECORDED_SLACK * working_bytes(shape, work.value_bytes)
    if tokens and keeps_sums(work):
        ends = 4 * work.value_bytes * shape.hidden
        return {"recorded passes": tokens * (kept_bytes(work) * shape.layers + working + ends)}
    is_scored = isinstance(work.stage, RlStage) and (work.stage.uses_reference or work.stage.needs_old_logprobs)
    if tokens and is_scored:
        return {"recorded passes": tokens * working / 2}  # forward pass only
    return {}


def update_parts(work: Work, pack_tokens: int) -> dict[str, float]:
    shape, each = work.shape, work.value_bytes
    parts = {"logits": HEAD_CHUNKS * chunk_bytes(work) + 2 * pack_tokens * each * shape.hidden}
    if not keeps_sums(work):
        parts["gradient sums"] = gradient_bytes(work) / work.ranks
    if is_recorded(work, pack_tokens, learns=True):
        # autograd's gradient of the embedding, before it is added to the sum
        parts["activations"] = 0.0 if work.model.lora else float(each * shape.embedding_parameters)
    else:
        parts["activations"] = float(pack_tokens * kept_bytes(work) * shape.layers)
        parts["working memory"] = pack_tokens * working_bytes(shape, each) + dense_bytes(work)
    return parts | gathered_parts(work)


def scoring_parts(work: Work, pack_tokens: int) -> dict[str, float]:
    shape, each = work.shape, work.value_bytes
    parts: dict[str, float] = {"logits": chunk_bytes(work) + pack_tokens * each * shape.hidden}
    if not is_recorded(work, pack_tokens, learns=False):
        parts["working memory"] = pack_tokens * working_bytes(shape, each) / 2 + dense_bytes(work)
    if work.stage.uses_reference:
        largest = 0 if work.model.lora else each * shape.embedding_parameters
        parts["exchange"] = min(float(max(EXCHANGE_BYTES, largest)), reference_bytes(work)) / work.ranks
    return parts | gathered_parts(work)


def chunk_bytes(work: Work) -> float:
    """Return the bytes of a chunk of logits in fp32 (models/head.py)."""
    return min(max(CHUNK_BYTES, CHUNK_SHARE * work.gpu.memory_bytes), 4 * CHUNK_BYTES)


def dense_bytes(work: Work) -> float:
    """Return the bytes of the largest quantized weight while it is dequantized for use."""
    sizes = work.shape.linear_sizes.values()
    return 0.0 if work.model.quantization == "none" else 2.0 * max(inputs * outputs for inputs, outputs in sizes)


def gathered_parts(work: Work) -> dict[str, float]:
    """Return what each of several ranks gathers during a pass: a layer, the next one, and both ends of the model."""
    shape = work.shape
    whole = 2 * shape.layer_parameters + shape.parameters - shape.layers * shape.layer_parameters
    return {} if work.ranks == 1 else {"gathered": float(work.value_bytes * whole)}


# ---- sampling ----


def cache_of(work: Work, free: float) -> float:
    """Return the bytes of the cache: for all slots and one more, or as the recipe says, within free memory."""
    token = work.shape.cache_bytes(work.value_bytes)
    free -= sum(buffer_parts(work).values())
    wanted = token * (work.engine.cache_tokens or (work.slots + 1) * work.row_tokens)
    return max(0.0, min(float(wanted), CACHE_SHARE * free))


def group_cache(work: Work) -> float:
    """Return the cache bytes of a group: its prompt once and each of its rollouts, in whole blocks."""
    prefix = work.prompt_tokens - 1
    prompt_blocks = math.ceil(prefix / BLOCK_TOKENS)
    own_blocks = math.ceil((prefix + work.max_tokens) / BLOCK_TOKENS) - prefix // BLOCK_TOKENS
    tokens = BLOCK_TOKENS * (prompt_blocks + min(work.group, work.slots) * own_blocks)
    return float(work.shape.cache_bytes(work.value_bytes) * tokens)


def buffer_parts(work: Work) -> dict[str, float]:
    """Return the engine's tensors (engines/native/decoder.py), logits, and with several ranks the whole weights."""
    shape = work.shape
    rows = max(PREFILL_TOKENS, work.slots)
    elements = 3 * shape.hidden + shape.query + 2 * shape.key + 2 * shape.query + 3 * shape.width
    parts = {
        "engine buffers": float(rows * elements * work.value_bytes) + dense_bytes(work),
        "logits": 4.0 * work.slots * shape.vocab,
    }
    return parts if work.ranks == 1 else {**parts, "replica": weight_bytes(work)}
