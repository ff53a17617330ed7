"""Our own forms of norms, rotary embedding, activation and attention in a model, for bf16 on a GPU.

They are there for training and for sampling alike, so that the two agree: a token goes through the same arithmetic,
whether it is one of a batch that decodes or one of a packed batch that is learned from. (The matrix products between
them gave the same bits for 1 to 8,192 rows as long as K is not split, which is switched off here.)

A form is used only where it gives what the model's own code gives on a random input; a model that we do not know keeps
its own code.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.data.batch import Microbatch
from groupwise.kernels.joined import lay_side_by_side
from groupwise.kernels.seam import AttentionForm, attend_with


def fuse(model: Any) -> bool:
    """Put our forms into a model, for good. Whether it can learn from packed sequences, with our attention."""
    if model.device.type != "cuda" or model.dtype != torch.bfloat16:
        return False
    from groupwise.kernels.head import has_plain_head

    torch.backends.cuda.preferred_blas_library("cublaslt")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    with torch.no_grad():
        for module in model.modules():
            forward = _fast_norm(module) or _fast_mlp(module) or _unsplit_linear(module)
            if forward is not None:
                # A bound method and not a closure: a deep copy of the model binds it to its own module.
                module.forward = types.MethodType(forward, module)
        for module in model.modules():
            for names in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
                if all(hasattr(module, name) for name in names):
                    lay_side_by_side([getattr(module, name) for name in names])
    for place in _rotary_places(model):
        if not isinstance(place.apply_rotary_pos_emb, partial):
            place.apply_rotary_pos_emb = partial(_fast_rotary, place.apply_rotary_pos_emb)
    config = model.config.get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    has_softcap = bool(getattr(config, "attn_logit_softcapping", None))
    return has_plain_head(model) and not has_softcap and head_dim % 8 == 0 and head_dim <= 256


_norm_forms: dict[type, bool | None] = {}
"""Class → whether its weight is an offset from 1; None where our kernel does not do what it does."""
_mlp_forms: dict[type, bool] = {}


def _fast_norm(module: Any) -> Callable[[Any, Tensor], Tensor] | None:
    from groupwise.kernels.pointwise import rms_norm

    cls, weight = type(module), getattr(module, "weight", None)
    name = "variance_epsilon" if hasattr(module, "variance_epsilon") else "eps"
    if not cls.__name__.endswith("RMSNorm") or not hasattr(module, name) or weight is None or weight.dim() != 1:
        return None
    if cls not in _norm_forms:
        x = torch.randn(4, weight.shape[0], device=weight.device, dtype=weight.dtype)
        eps = getattr(module, name)
        _norm_forms[cls] = next(
            (form for form in (False, True) if _is_same(rms_norm(x, weight, eps, form), module(x))), None
        )
    one_plus = _norm_forms[cls]
    if one_plus is None:
        return None
    return lambda self, x: rms_norm(x, self.weight, getattr(self, name), one_plus)


def _fast_mlp(module: Any) -> Callable[[Any, Tensor], Tensor] | None:
    from groupwise.kernels.pointwise import silu_mul

    activation = getattr(module, "act_fn", None)
    has_parts = all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj"))
    if not has_parts or not (isinstance(activation, nn.SiLU) or type(activation).__name__ == "SiLUActivation"):
        return None

    def forward(self: Any, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(silu_mul(self.gate_proj(x), self.up_proj(x)))
        return result

    cls = type(module)
    if cls not in _mlp_forms:
        weight = next(module.gate_proj.parameters())
        x = torch.randn(4, 1, module.gate_proj.in_features, device=weight.device, dtype=torch.bfloat16)
        _mlp_forms[cls] = _is_same(forward(module, x), module(x))
    return forward if _mlp_forms[cls] else None


def _unsplit_linear(module: Any) -> Callable[[Any, Tensor], Tensor] | None:
    """A product with a long sum, padded where it has few rows."""
    from groupwise.kernels.products import LONG_SUM, MIN_ROWS

    if type(module) is not nn.Linear or module.in_features < LONG_SUM or module.weight.dtype != torch.bfloat16:
        return None

    def forward(self: Any, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        missing = MIN_ROWS - flat.shape[0]
        if missing <= 0:
            return nn.functional.linear(x, self.weight, self.bias)
        padded = nn.functional.linear(nn.functional.pad(flat, (0, 0, 0, missing)), self.weight, self.bias)
        return padded[: flat.shape[0]].view(*x.shape[:-1], -1)

    return forward


def _rotary_places(model: Any) -> list[Any]:
    names = {type(module).__module__ for module in model.modules() if hasattr(module, "layer_idx")}
    return [sys.modules[name] for name in sorted(names) if hasattr(sys.modules[name], "apply_rotary_pos_emb")]


def _fast_rotary(
    original: Callable[..., tuple[Tensor, Tensor]],
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    *rest: Any,
    **named: Any,
) -> tuple[Tensor, Tensor]:
    is_ours = q.is_cuda and q.dtype == torch.bfloat16 and q.dim() == 4 and q.stride(3) == k.stride(3) == 1
    shape = (q.shape[0], q.shape[2], q.shape[3])
    if rest or named or not is_ours or cos.shape != shape or cos.dtype != q.dtype:
        return original(q, k, cos, sin, *rest, **named)
    from groupwise.kernels.pointwise import rotate

    return rotate(q, k, cos, sin)


def _is_same(ours: Tensor, theirs: Tensor) -> bool:
    return ours.dtype == theirs.dtype and torch.allclose(ours.float(), theirs.float(), rtol=8e-3, atol=1e-6)


class PackedStep:
    """Sequences back to back, each seeing itself alone."""

    def __init__(self, lengths: list[int], device: torch.device) -> None:
        from groupwise.kernels.attention import packed_tiles

        self._longest = max(lengths)
        ends = torch.tensor([0, *lengths]).cumsum(0)
        self._starts = ends.to(device=device, dtype=torch.int32)
        self._tiles = packed_tiles(lengths, device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        from groupwise.kernels.attention import packed_attention

        q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
        out = packed_attention(q, k, v, self._starts, self._longest, self._tiles, scale=form.scale, window=form.window)
        return out[None]


def packed_hidden(model: Any, microbatch: Microbatch) -> Tensor:
    """[N, D]: the hidden states that each completion token was (or would be) drawn from. Inside `attending(model)`."""
    is_token = microbatch.attention_mask.bool()
    attend_with(PackedStep(is_token.sum(dim=1).tolist(), is_token.device))
    hidden: Tensor = model.get_decoder()(
        input_ids=microbatch.input_ids[is_token][None],
        position_ids=microbatch.position_ids[is_token][None],
        use_cache=False,
    ).last_hidden_state[0]
    predicts = torch.zeros_like(is_token)
    columns = microbatch.completion_mask.shape[1]
    # The hidden state of column t predicts the token in column t + 1.
    predicts[:, -columns - 1 : -1] = microbatch.completion_mask
    return hidden[predicts[is_token]]
