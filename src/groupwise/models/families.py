"""The table of model architectures and what groupwise can do with each. All other code consults it.

To add an architecture, add one entry to `FAMILIES`. A model that is not in the table still trains and samples: it runs
the forward pass of transformers, and each fused form (models/fused.py) is used only where it reproduces the model's own
output on a random input.

Classes are named by strings and configurations are read by attribute, so this module imports neither torch nor
transformers. The planner reads it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture under the names that transformers gives its parts, and what groupwise can do with it."""

    prefix: str
    """Beginning of its class names in transformers: "Llama" in LlamaModel and LlamaDecoderLayer."""
    has_head_norms: bool = False
    """Queries and keys are normalized per head."""
    has_qkv_bias: bool = False
    """Query, key and value always have a bias. Elsewhere `attention_bias` of the configuration decides."""
    window: Literal["module", "config"] = "module"
    """Where an attention layer keeps the size of its sliding window."""

    @property
    def decoder(self) -> str:
        """Class of the decoder, which is the model without its output head."""
        return f"{self.prefix}Model"

    @property
    def layer(self) -> str:
        """Class of a decoder layer."""
        return f"{self.prefix}DecoderLayer"


FAMILIES: Mapping[str, Family] = {
    "llama": Family("Llama"),
    "mistral": Family("Mistral", window="config"),
    "qwen2": Family("Qwen2", has_qkv_bias=True),
    "qwen3": Family("Qwen3", has_head_norms=True),
}
"""By `model_type` of the configuration. Layers of these are run straight over their weights, while decoding
(engines/native/decoder.py) and in training (models/straight.py)."""

UNKNOWN = Family("")
"""Any other architecture: it runs its own forward pass."""

ROTARY_BY_POSITION = frozenset({"default", "linear", "llama3", "yarn"})
"""Kinds of rotary embedding whose angles depend on the position alone, so that they can be computed once."""
SILU_CLASSES = frozenset({"SiLU", "SiLUActivation"})


def family_of(model: Any) -> Family:
    """Return the family of a loaded model, by the class of its decoder."""
    decoder = type(model.get_decoder()).__name__
    return next((family for family in FAMILIES.values() if family.decoder == decoder), UNKNOWN)


def family_named(model_type: str) -> Family:
    """Return the family of a configuration's `model_type`."""
    return FAMILIES.get(model_type, UNKNOWN)


def window_of(family: Family, attention: Any) -> int:
    """Return how many tokens back a query sees, itself included; 0 means all."""
    owner = attention.config if family.window == "config" else attention
    return getattr(owner, "sliding_window", None) or 0


def has_silu(mlp: Any) -> bool:
    return type(getattr(mlp, "act_fn", None)).__name__ in SILU_CLASSES


def has_rotary_by_position(decoder: Any) -> bool:
    rotary = getattr(decoder, "rotary_emb", None)
    return rotary is not None and getattr(rotary, "rope_type", "default") in ROTARY_BY_POSITION


# ---- what differs between configurations, whatever the family ----


KEPT_AS_KEYS_AND_VALUES = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers whose whole state is a key and a value per token."""


def other_state(config: Any) -> str:
    """Return what the layers keep besides a key and a value per token, or instead; "" if nothing.

    That is the state of linear attention, convolutions and recurrences, or a compressed key and value (DeepSeek). It
    would leak from one sequence of a pack to the next.
    """
    if getattr(config, "kv_lora_rank", None):
        return "latent attention"
    if getattr(config, "lru_width", None):  # RecurrentGemma lists its layers elsewhere
        return "recurrent layers"
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - KEPT_AS_KEYS_AND_VALUES)
    return f"layers of type {', '.join(kinds)}" if kinds else ""


def not_sampled(config: Any) -> str:
    """Return why the native engine cannot sample from a model, where its trial of the model would not show that."""
    if getattr(config, "lru_width", None):
        return "its modules keep the states of recurrences themselves"
    # A short sequence is within one chunk and within what an indexer chooses.
    kinds = {"chunked_attention", "indexed_attention"} & set(getattr(config, "layer_types", None) or ())
    return f"it has layers of type {', '.join(sorted(kinds))}" if kinds else ""


def is_uniform(config: Any) -> bool:
    """Whether all layers have the same sizes. Elsewhere (Gemma 4) a configuration has no single head size to read."""
    return not getattr(config, "is_heterogeneous", False)


def num_kv_heads(config: Any) -> int:
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def has_bias(config: Any) -> bool:
    """Whether query, key and value have a bias."""
    return family_named(config.model_type).has_qkv_bias or bool(getattr(config, "attention_bias", False))


def logit_softcap(config: Any) -> float:
    """Return the soft cap of the output logits (Gemma 2, RecurrentGemma); 0 means none."""
    return float(getattr(config, "final_logit_softcapping", None) or getattr(config, "logits_soft_cap", None) or 0.0)


def has_plain_logits(config: Any) -> bool:
    """Whether the output logits are the product with the head's matrix and nothing is done to them afterwards."""
    names = ("final_logit_softcapping", "logits_soft_cap", "logit_scale", "logits_scaling")
    return not any(getattr(config, name, None) for name in names)


def logit_factor(config: Any) -> float:
    """Return what the output logits are multiplied with (Cohere, Granite)."""
    return float(getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1))


def fits_packed_attention(config: Any) -> bool:
    """Whether the kernels for packed sequences (kernels/packed.py) can compute this attention."""
    if not is_uniform(config) or other_state(config) or not getattr(config, "num_attention_heads", 0):
        return False
    has_softcap = bool(getattr(config, "attn_logit_softcapping", None))
    return not has_softcap and head_size(config) % 8 == 0 and head_size(config) <= 256
