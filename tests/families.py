"""Tiny models of the decoder families of transformers, made from the defaults of their configurations."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCAB, WIDTH, LAYERS = 300, 32, 4

# What a configuration has of these is set, whatever the family. Names of one meaning are in one line.
_SIZES = {
    size: value
    for value, names in (
        (VOCAB, "vocab_size vocab_size_per_layer_input"),
        (
            WIDTH,
            "hidden_size d_model n_embd embed_dim embedding_size word_embed_proj_dim attention_hidden_size lru_width",
        ),
        (WIDTH, "intermediate_size ffn_hidden_size ffn_dim dff"),
        (16, "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size mlp_intermediate_size"),
        (16, "moe_shared_expert_intermediate_size shared_intermediate_size"),
        (LAYERS, "num_hidden_layers n_layer n_layers num_layers"),
        (2, "num_attention_heads n_head n_heads num_heads num_key_value_heads num_kv_heads n_mamba_heads"),
        (16, "head_dim global_head_dim attention_head_dim qk_head_dim q_lora_rank kv_lora_rank"),
        (8, "qk_rope_head_dim qk_nope_head_dim v_head_dim rotary_dim hidden_size_per_layer_input"),
        (4, "num_experts n_routed_experts num_local_experts moe_num_experts"),
        (2, "num_experts_per_tok moe_top_k moe_topk top_k_experts moe_k"),
        (1, "n_group topk_group n_groups mamba_n_groups"),
        (2, "linear_num_key_heads linear_num_value_heads mamba_expand expand"),
        (16, "linear_key_head_dim linear_value_head_dim mamba_d_head mamba_head_dim"),
        (4, "mamba_n_heads mamba_num_heads time_step_rank mamba_dt_rank"),
        (8, "mamba_d_state ssm_state_size state_size"),
        (64, "mamba_d_ssm max_position_embeddings n_positions n_ctx max_seq_len"),
        (0, "zero_expert_num num_kv_shared_layers pad_token_id"),
        (5, "sliding_window"),
        (1, "bos_token_id"),
        (2, "eos_token_id"),
        (True, "is_decoder"),
        (False, "tie_word_embeddings"),
    )
    for size in names.split()
}
_LAYER_KINDS = ("layer_types", "layers_block_type", "mlp_layer_types")

_OWN: dict[str, dict[str, Any]] = {
    "axk1": {"head_dim": 8},
    "bamba": {"attn_layer_indices": [2]},
    "codegen": {"n_head": 4},
    "deepseek_v3": {"head_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "conv"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "conv"]},
    "longcat_flash": {"head_dim": 8},
    "mamba2": {"num_heads": 4},
    "youtu": {"head_dim": 8},
    "zamba2": {"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}
"""Settings of single families."""


def make_tiny_family(name: str) -> Any:
    """Return a tiny model of a `model_type`. Its weights are larger than usual: others are deaf to what came before."""
    kind = CONFIG_MAPPING[name]
    known = kind().to_dict()
    sizes = {key: value for key, value in _SIZES.items() if key in known and not isinstance(known[key], list)}
    kinds = {key: known[key][:LAYERS] for key in _LAYER_KINDS if isinstance(known.get(key), list)}
    config = kind(**{**sizes, **kinds, **_OWN.get(name, {})})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() == 2:
                    weight.mul_(4)
    return model.float().eval()


_NOT_TEXT = "decodes after an image or sound"
_NO_DEFAULT = "its default configuration is not complete"
LEFT_OUT = {
    **dict.fromkeys(("fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "git", "got_ocr2", "mllama"), _NOT_TEXT),
    **dict.fromkeys(
        ("moss_transcribe_diarize", "musicgen", "musicgen_melody", "phi4_multimodal", "whisper"), _NOT_TEXT
    ),
    **dict.fromkeys(
        ("dots3_note", "emu3", "llama4", "qwen3_5", "qwen3_5_moe", "qwen4_exp"),
        f"{_NOT_TEXT}; its text model is listed",
    ),
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), "drafts for another model"),
    **dict.fromkeys(("cohere_compass_text", "dbrx", "dots1", "qwen4_exp_text"), _NO_DEFAULT),
    **dict.fromkeys(
        ("bailing_hybrid", "kimi_linear", "mimo_v2_flash", "zamba", "zamba2"), "sizes depend on each other"
    ),
    **dict.fromkeys(("blenderbot", "plbart", "reformer", "xlstm", "xmod"), "sizes depend on each other"),
    **dict.fromkeys(("blt", "xlm"), "large or bidirectional by default"),
}
"""Families of which no tiny model is made here, with the reason."""
if transformers.__version__.startswith("5.17."):
    LEFT_OUT |= dict.fromkeys(
        ("big_bird", "doge", "megatron-bert", "rembert", "roformer"),
        "its tokens see those that follow in this version, and engines refuse it",
    )

NAMES = sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(LEFT_OUT))
