"""GPU memory of a stage by part and by phase: sampling, scoring, update. The peak is the largest phase.

What a token makes a layer keep, the sizes of cache and optimizer, and when passes are recorded follow from the code; a
test holds the constants that are restated here against it. The two that are measured say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from groupwise.config import RlStage
from groupwise.planner.gpus import CONTEXT_GIB
from groupwise.planner.shapes import ModelShape
from groupwise.planner.work import Work

GIB = 2**30
Parts = Mapping[str, float]
"""Bytes by name."""

# As in models/optimizer.py, models/recorded.py, algo/logprobs.py, models/head.py, models/memory.py, models/moments.py
# and engines/native/engine.py, which import torch.
KEPT_SUMS_SHARE = 1 / 16
RECORDED_SHARE = 1 / 8
CHUNK_BYTES = 256 << 20
CHUNK_SHARE = 1 / 128
EXCHANGE_BYTES = 256 << 20
MOMENT_BLOCK = 256
BLOCK_TOKENS = 16
PREFILL_TOKENS = 2048
CACHE_SHARE = 0.8

CONTEXT_BYTES = int(CONTEXT_GIB * GIB)
HEAD_CHUNKS = 1.75
"""Chunks of logits that the head has at once, with their gradients in bf16: 0.46 GiB at a vocabulary of 151,936."""
RECORDED_SLACK = 1.75
"""Measured: what the memory of a recorded pass takes of its working memory, since pieces of it cannot be reused.
2.5 to 2.9 GiB for 12,288 tokens of Qwen2.5-1.5B's shape (learner_h200, updates)."""
PACKED_BYTES = {"none": None, "8bit": 1.0, "4bit": 0.5 + 1 / 64 + 4 / (64 * 256)}
"""Of a quantized weight; the scales of 4 bit are one byte for 64 weights, and theirs one float for 256 of those."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    phases: Mapping[str, Parts]
    """Phase → part → bytes."""
    rollouts_at_once: int
    """Whose cache fits, on one GPU; 0 where a stage samples nothing."""
    needed_cache: float
    """Bytes for one group; less than that and the engine refuses."""
    room: float
    """Bytes of the GPU that a run can have."""

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
    """With microbatches of so many tokens."""
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


# ---- what is there all the time ----


def weight_bytes(work: Work) -> float:
    """Of the model and its adapters, whole."""
    shape, each = work.shape, work.value_bytes
    adapters = work.trained if work.model.lora is not None else 0
    packed = PACKED_BYTES[work.model.quantization]
    products = shape.layers * shape.layer_products
    return (shape.parameters - products + adapters) * each + products * (each if packed is None else packed)


def lasting_parts(work: Work) -> dict[str, float]:
    """Weights, and what the optimizer and the reference hold of them. Each rank has its slice."""
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
    """A copy of what is trained."""
    return float(work.value_bytes * work.trained)


def checkpoint_bytes(work: Work) -> float:
    """On the disk, inside a stage: weights and moments in fp32 however they are held, average, the reference's copy."""
    copied = reference_bytes(work) if work.stage.uses_reference else 0.0
    return (16.0 if work.model.ema_decay else 12.0) * work.trained + copied


def gradient_bytes(work: Work) -> float:
    return 4.0 * work.trained


def keeps_sums(work: Work) -> bool:
    """Sums of a small model stay from update to update."""
    return work.value_bytes == 2 and work.ranks == 1 and gradient_bytes(work) <= KEPT_SUMS_SHARE * work.gpu.memory_bytes


# ---- passes over a microbatch ----


def kept_bytes(work: Work) -> int:
    """Of a token, by one layer, between the forward and the backward pass (models/straight.py)."""
    shape, which = work.shape, work.model.gradient_checkpointing
    each, projected = work.value_bytes, shape.query + 2 * shape.key
    if which is True:
        return each * shape.hidden
    if not work.is_straight:
        # autograd keeps the inputs of all products and norms as well, and what comes out of the activation
        gates = 0 if which == "mlp" else 3 * shape.width
        return each * (5 * shape.hidden + 2 * projected + shape.query + gates)
    norms = shape.query + shape.key if shape.has_head_norms else 0
    gates = 0 if which == "mlp" else 2 * shape.width
    return each * (2 * shape.hidden + projected + shape.query + norms + gates)


def working_bytes(shape: ModelShape, value_bytes: int) -> int:
    """Of a token, in the backward pass of one layer: gates and their gradients, and around them."""
    projected = shape.query + 2 * shape.key
    return value_bytes * (6 * shape.width + 2 * projected + 6 * shape.hidden)


def filled_tokens(tokens: int) -> int:
    """What a pack is filled up to where passes are recorded (models/recorded.py)."""
    return -(-tokens // _grain(tokens)) * _grain(tokens)


def _grain(tokens: int) -> int:
    return max(256, 1 << max(0, (tokens - 1).bit_length() - 3))


def recordable_tokens(work: Work) -> int:
    """Of the largest pack whose passes can be recorded (models/recorded.py); 0 where none are."""
    if not work.is_straight or work.ranks > 1:
        return 0
    tokens = int(RECORDED_SHARE * work.gpu.memory_bytes) // (kept_bytes(work) * work.shape.layers)
    return tokens // _grain(tokens) * _grain(tokens)


def is_recorded(work: Work, pack_tokens: int, *, learns: bool) -> bool:
    return filled_tokens(pack_tokens) <= recordable_tokens(work) and (keeps_sums(work) or not learns)


def most_tokens(work: Work) -> int:
    """Of a pack: what the recipe says, and where passes are recorded no more than can be."""
    recordable = recordable_tokens(work) if keeps_sums(work) else 0
    return min(work.stage.microbatch_tokens, recordable or work.stage.microbatch_tokens)


def longest_pack(work: Work) -> int:
    """Tokens of the largest microbatch that the stage can make; the one that is rehearsed."""
    length = work.prompt_tokens + work.max_tokens
    return max(1, most_tokens(work) // length) * length


def usual_pack(work: Work) -> int:
    """Of the largest one in a step of the expected lengths: packs of a step are about equally large."""
    most = most_tokens(work)
    own = max(1.0, work.mean_tokens - 1)
    bundle = work.prompt_tokens + work.group * own
    if bundle > most:
        return round(work.prompt_tokens + max(1.0, (most - work.prompt_tokens) // own) * own)
    problems = math.ceil(work.problems / work.updates_per_epoch / work.ranks)
    packs = math.ceil(problems / (most // bundle))  # a group that fits is not cut
    return round(math.ceil(problems / packs) * bundle)


def recorded_parts(work: Work, pack_tokens: int) -> dict[str, float]:
    """What recorded passes hold, in all phases alike: also beside a pack that is too large for one.

    Those of smaller packs lie in the memory of the largest.
    """
    tokens, shape = min(filled_tokens(pack_tokens), recordable_tokens(work)), work.shape
    working = RECORDED_SLACK * working_bytes(shape, work.value_bytes)
    if tokens and keeps_sums(work):
        ends = 4 * work.value_bytes * shape.hidden
        return {"recorded passes": tokens * (kept_bytes(work) * shape.layers + working + ends)}
    is_scored = isinstance(work.stage, RlStage) and (work.stage.uses_reference or work.stage.needs_old_logprobs)
    if tokens and is_scored:
        return {"recorded passes": tokens * working / 2}  # a forward pass alone
    return {}


def update_parts(work: Work, pack_tokens: int) -> dict[str, float]:
    shape, each = work.shape, work.value_bytes
    parts = {"logits": HEAD_CHUNKS * chunk_bytes(work) + 2 * pack_tokens * each * shape.hidden}
    if not keeps_sums(work):
        parts["gradient sums"] = gradient_bytes(work) / work.ranks
    if is_recorded(work, pack_tokens, learns=True):
        # autograd's gradient of the embedding, before it is added to its sum
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
    """Of the logits that are there at once, in fp32 (models/head.py)."""
    return min(max(CHUNK_BYTES, CHUNK_SHARE * work.gpu.memory_bytes), 4 * CHUNK_BYTES)


def dense_bytes(work: Work) -> float:
    """The largest product's weight, which is packed elsewhere and dense while it is used."""
    sizes = work.shape.linear_sizes.values()
    return 0.0 if work.model.quantization == "none" else 2.0 * max(inputs * outputs for inputs, outputs in sizes)


def gathered_parts(work: Work) -> dict[str, float]:
    """Among ranks: what is whole while a pass runs. A layer, the next one on its way, and both ends of the model."""
    shape = work.shape
    whole = 2 * shape.layer_parameters + shape.parameters - shape.layers * shape.layer_parameters
    return {} if work.ranks == 1 else {"gathered": float(work.value_bytes * whole)}


# ---- sampling ----


def cache_of(work: Work, free: float) -> float:
    """Bytes: for all slots and one more, or what the recipe says, as far as memory goes."""
    token = work.shape.cache_bytes(work.value_bytes)
    free -= sum(buffer_parts(work).values())
    wanted = token * (work.engine.cache_tokens or (work.slots + 1) * work.row_tokens)
    return max(0.0, min(float(wanted), CACHE_SHARE * free))


def own_tokens(work: Work) -> tuple[int, int]:
    """(of the cache for a group's prompt, for each of its rollouts), in whole blocks."""
    prefix = work.prompt_tokens - 1
    own = -(-(prefix + work.max_tokens) // BLOCK_TOKENS) - prefix // BLOCK_TOKENS
    return -(-prefix // BLOCK_TOKENS) * BLOCK_TOKENS, own * BLOCK_TOKENS


def group_cache(work: Work) -> float:
    prompt, own = own_tokens(work)
    return float(work.shape.cache_bytes(work.value_bytes) * (prompt + min(work.group, work.slots) * own))


def buffer_parts(work: Work) -> dict[str, float]:
    """The engine's own tensors (engines/native/decoder.py), logits, and among ranks the whole weights."""
    shape = work.shape
    rows = max(PREFILL_TOKENS, work.slots)
    elements = 3 * shape.hidden + shape.query + 2 * shape.key + 2 * shape.query + 3 * shape.width
    parts = {
        "engine buffers": float(rows * elements * work.value_bytes) + dense_bytes(work),
        "logits": 4.0 * work.slots * shape.vocab,
    }
    return parts if work.ranks == 1 else {**parts, "replica": weight_bytes(work)}
