"""A Llama-like decoder as one straight pass over its own weights: eight launches per layer instead of fifteen.

The modules' own forward would also work, but each small kernel costs as much as a product of 64 rows. So projections
that share an input are one product, the norm adds the residual, and attention does the rotation. Arithmetic and
rounding are those of the modules with the fused forms of `models.fused`: the same bits.

Projections that are not a matrix with or without an adapter (quantized weights, for example) are called as modules.

Shapes: T tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from groupwise.kernels.joined import join
from groupwise.kernels.seam import AttentionForm
from groupwise.models.families import UNKNOWN, family_of, has_rotary_by_position, has_silu, window_of

Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]


class StraightStep(Protocol):
    def attend_straight(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm, rotary: Any, out: Tensor
    ) -> None:
        """Compute `out` [T, H, D] from query [T, H, D], key and value [T, K, D], which are not rotated yet."""
        ...


def is_straight(model: Any) -> bool:
    """Whether `StraightDecoder` can run this model."""
    if family_of(model) is UNKNOWN or model.dtype != torch.bfloat16:
        return False
    decoder = model.get_decoder()
    return has_rotary_by_position(decoder) and has_silu(decoder.layers[0].mlp)


class StraightDecoder:
    def __init__(self, model: Any, max_tokens: int, max_positions: int, allocate: Allocate) -> None:
        from groupwise.kernels.products import MIN_ROWS

        self._family = family_of(model)
        self._decoder = model.get_decoder()
        max_tokens = max(max_tokens, MIN_ROWS)
        config = model.config.get_text_config()
        attention = self._decoder.layers[0].self_attn
        self._head_size = attention.head_dim
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        size, width = config.hidden_size, config.intermediate_size
        inner = self._heads * self._head_size
        # Not torch's memory, so the buffers can be released while the graphs that use them stay valid.
        self._residual, self._normed, self._delta = (allocate((max_tokens, size), model.dtype) for _ in range(3))
        self._projected = allocate((max_tokens, inner + 2 * self._kv_heads * self._head_size), model.dtype)
        self._attended, self._query = (allocate((max_tokens, inner), model.dtype) for _ in range(2))
        self._gates = allocate((max_tokens, 2 * width), model.dtype)
        self._active = allocate((max_tokens, width), model.dtype)
        with torch.no_grad():
            places = torch.arange(max_positions, device=model.device)[None]
            cos, sin = self._decoder.rotary_emb(self._decoder.embed_tokens.weight[:1, None], places)
        self._rotary = (cos[0].contiguous(), sin[0].contiguous())

    def __call__(self, token_ids: Tensor, step: StraightStep) -> Tensor:
        """Return the last hidden states [T, D] of tokens [T]. The next call overwrites them."""
        from groupwise.kernels.pointwise import add_norm

        count = token_ids.shape[0]
        residual, normed = self._residual[:count], self._normed[:count]
        torch.index_select(self._decoder.embed_tokens.weight, 0, token_ids, out=residual)
        delta = None
        for index, layer in enumerate(self._decoder.layers):
            norm = layer.input_layernorm
            add_norm(residual, delta, norm.weight, norm.variance_epsilon, normed)
            delta = self._attend(index, layer.self_attn, normed, step)
            norm = layer.post_attention_layernorm
            add_norm(residual, delta, norm.weight, norm.variance_epsilon, normed)
            delta = self._transform(layer.mlp, normed)
        norm = self._decoder.norm
        add_norm(residual, delta, norm.weight, norm.variance_epsilon, normed)
        return normed

    def _attend(self, index: int, attention: Any, x: Tensor, step: StraightStep) -> Tensor:
        from groupwise.kernels.pointwise import head_norm

        count, size = x.shape[0], self._head_size
        modules = (attention.q_proj, attention.k_proj, attention.v_proj)
        query, key, value = (part.view(count, -1, size) for part in project(modules, x, self._projected[:count]))
        if hasattr(attention, "q_norm"):
            query = head_norm(query, attention.q_norm.weight, attention.q_norm.variance_epsilon)
            key = head_norm(key, attention.k_norm.weight, attention.k_norm.variance_epsilon)
        attended = self._attended[:count]
        form = AttentionForm(attention.scaling, 0.0, window_of(self._family, attention))
        out = attended.view(count, self._heads, size)
        step.attend_straight(index, query, key, value, form, (*self._rotary, self._query[:count]), out)
        return project((attention.o_proj,), attended, self._delta[:count])[0]

    def _transform(self, mlp: Any, x: Tensor) -> Tensor:
        from groupwise.kernels.pointwise import silu_mul, silu_mul_joined
        from groupwise.kernels.products import apply_joined, gated, is_ours, padded_rows

        count = x.shape[0]
        active = self._active[:count]
        joined = join((mlp.gate_proj, mlp.up_proj))
        if joined is None:
            active.copy_(silu_mul(mlp.gate_proj(x), mlp.up_proj(x)))
        elif joined.adapter is None and joined.bias is None and is_ours(count, mlp.gate_proj.weight):
            gate, up = joined.weight.split(joined.sizes)
            gated(x, gate, up, active)
        else:
            apply_joined(x, joined, self._gates[:count])
            silu_mul_joined(self._gates[:count], active)
        down = join((mlp.down_proj,))
        rows = count if down is None else padded_rows(count, down.weight)
        return project((mlp.down_proj,), self._active[:rows], self._delta[:rows])[0][:count]


def project(modules: Sequence[nn.Module], x: Tensor, out: Tensor) -> Sequence[Tensor]:
    """Return the output of each module. Matrices that are adjacent in memory are one product, into `out`."""
    from groupwise.kernels.products import apply_joined

    joined = join(modules)
    if joined is None:
        return [module(x) for module in modules]
    apply_joined(x, joined, out)
    return out.split(joined.sizes, dim=1)
