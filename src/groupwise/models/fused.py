"""Fused norms, rotary embedding, activation and attention for a model in bf16 on a GPU.

Training and sampling use the same fused forms, so their logprobs agree: a token goes through the same arithmetic in a
decode batch and in a packed training batch. (Matrix products give the same bits for 1 to 8,192 rows as long as K is not
split, so splitting is switched off here.)

A form is used only where it reproduces the model's own code on a random input. `fuse` changes state outside of its
argument, because transformers offers no other way in: it replaces `forward` of single modules, wraps
`apply_rotary_pos_emb` in the modeling module that the model's class is from, which all models of that class share, and
sets two options of torch's matrix products for the whole process.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from groupwise.data.pack import Pack
from groupwise.kernels.joined import lay_side_by_side
from groupwise.kernels.plain_layer import PlainOps
from groupwise.kernels.plain_packs import PlainPackedStep
from groupwise.kernels.seam import AttentionForm, attend_with
from groupwise.models.families import fits_packed_attention, has_silu
from groupwise.models.head import has_plain_head, predicting
from groupwise.models.optimizer import GradientSums
from groupwise.models.placement import device_bytes
from groupwise.models.recorded import RecordedLayers, filled
from groupwise.models.straight import Heads, PackStep, run_layer, straight_layers, straighten

T = TypeVar("T")


def fuse(model: Any, sums: GradientSums | None = None) -> bool:
    """Put fused forms into a model, permanently. Return whether it can train on packed sequences."""
    if model.device.type == "cpu":
        return _fuse_plainly(model, sums)
    if model.dtype != torch.bfloat16:
        return False
    from groupwise.kernels.layer_training import TritonOps

    torch.backends.cuda.preferred_blas_library("cublaslt")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    with torch.no_grad():
        for module in model.modules():
            forward = _fast_norm(module) or _fast_mlp(module) or _unsplit_linear(module)
            if forward is not None:
                # A bound method, not a closure: a deep copy of the model binds it to its own module.
                module.forward = types.MethodType(forward, module)
        _join_projections(model)
    for place in _rotary_places(model):
        if not isinstance(place.apply_rotary_pos_emb, partial):
            place.apply_rotary_pos_emb = partial(_fast_rotary, place.apply_rotary_pos_emb)
    is_packed = has_plain_head(model) and fits_packed_attention(model.config.get_text_config())
    if is_packed:  # Elsewhere a straight layer is of no use, and its own forward would not be recomputed any more.
        straighten(model, TritonOps(), sums)
    return is_packed


def _fuse_plainly(model: Any, sums: GradientSums | None) -> bool:
    is_packed = has_plain_head(model) and fits_packed_attention(model.config.get_text_config())
    if is_packed:
        with torch.no_grad():
            _join_projections(model)
        straighten(model, PlainOps(), sums)
    # Elsewhere a type with few digits would round between the products as well, otherwise than the engine does.
    return is_packed and (model.dtype == torch.float32 or bool(straight_layers(model)))


def _join_projections(model: Any) -> None:
    for module in model.modules():
        for names in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            if all(hasattr(module, name) for name in names):
                lay_side_by_side([getattr(module, name) for name in names])


_norm_forms: dict[type, bool | None] = {}
"""Class → whether its weight is an offset from 1; None if our kernel computes something else."""
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

    has_parts = all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj"))
    if not has_parts or not has_silu(module):
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
    """Return a forward that pads a product with a long sum and few rows (see LONG_SUM in kernels/products.py)."""
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
    """Attention within a pack: a token sees the prompt it continues and the earlier tokens of its segment."""

    def __init__(self, tiles: Any) -> None:
        self._tiles = tiles

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        from groupwise.kernels.packed import packed_attention

        q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
        return packed_attention(q, k, v, self._tiles, scale=form.scale, window=form.window)[None]

    def forward(self, layer: int, heads: Heads, form: AttentionForm) -> tuple[Tensor, Tensor]:
        from groupwise.kernels.packed import attend_packed

        return attend_packed(*heads, self._tiles, form.scale, form.window)

    def backward(self, grad: Tensor, heads: Heads, out: Tensor, lse: Tensor, form: AttentionForm) -> Heads:
        from groupwise.kernels.packed import attend_packed_backward

        return attend_packed_backward(grad, *heads, out, lse, self._tiles, form.scale, form.window)


def step_over(pack: Pack) -> PackStep:
    if not pack.token_ids.is_cuda:
        return PlainPackedStep(pack.segments)
    from groupwise.kernels.packed import PackedTiles

    return PackedStep(PackedTiles(pack.segments, pack.positions))


class StepRoom:
    """A step over any pack of a given size, whose tiles keep their address."""

    def __init__(self, tokens: int, device: torch.device) -> None:
        from groupwise.kernels.packed import TileRoom

        self._tiles = TileRoom(tokens, device)
        self.step = PackedStep(self._tiles)

    def fill(self, pack: Pack) -> bool:
        return self._tiles.fill(pack.segments, pack.positions)


def packed_hidden(model: Any, pack: Pack) -> Tensor:
    """Return [N, D]: the hidden state that each completion token is predicted from.

    Call it inside `attending(model)`.
    """
    attend_with(step_over(pack))
    output = model.get_decoder()(input_ids=pack.token_ids[None], position_ids=pack.positions[None], use_cache=False)
    return predicting(pack, output.last_hidden_state)


class PackedDecoder:
    """`packed_hidden` for an unsharded model whose layers are all straight; passes are recorded where that pays."""

    def __init__(self, model: Any) -> None:
        self._decoder = model.get_decoder()
        self._layers = straight_layers(model)
        self.recorder = GraphRecorder()
        self._recorded = RecordedLayers(
            self._layers,
            lambda tokens: StepRoom(tokens, model.device),
            self.recorder,
            device_bytes(model.device),
        )

    @property
    def most_tokens(self) -> int:
        return self._recorded.most_tokens

    def forget(self) -> None:
        """Call this after a pass that may have run out of memory: the next one is not recorded."""
        self._recorded.forget()

    def __call__(self, pack: Pack) -> Tensor:
        size = self._recorded.size_for(pack)
        if size is not None:
            pack = filled(pack, size)
        x = self._decoder.embed_tokens(pack.token_ids)
        cos, sin = self._decoder.rotary_emb(x[None], pack.positions[None])
        rotary = cos[0].contiguous(), sin[0].contiguous()
        hidden = None if size is None else self._recorded(x, rotary, pack)
        self.recorder.settle()
        if hidden is None:
            step, hidden = step_over(pack), x
            for layer in self._layers:
                hidden = run_layer(hidden, layer, rotary, step)
        result: Tensor = self._decoder.norm(hidden)[pack.predicts]
        return result


class GraphRecorder:
    """Records work as CUDA graphs. All share one memory pool, because no two run at the same time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._unused_bytes: int | None = 0
        self._peak_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Memory that recordings use but torch counts as free."""
        if self._unused_bytes is None:
            ours = [part for part in torch.cuda.memory_snapshot() if tuple(part["segment_pool_id"]) == self._pool]
            self._unused_bytes = sum(part["total_size"] - part["allocated_size"] for part in ours)
        return self._unused_bytes

    def take_peak_bytes(self) -> int:
        """Return the peak memory of tensors and recordings since the last call."""
        peak = max(self._peak_bytes, torch.cuda.max_memory_allocated() + self.num_bytes)
        self._peak_bytes = 0
        torch.cuda.reset_peak_memory_stats()
        return peak

    @torch.no_grad()
    def __call__(self, work: Callable[[], T], trial: Callable[[], object]) -> tuple[Callable[[], None], T]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            trial()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = self.take_peak_bytes()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = work()
        self._peak_bytes = before
        self._unused_bytes = None
        self.settle()
        self._unused_bytes = None  # more is unused once the caller drops what it does not need
        return graph.replay, result

    def begin_anew(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._unused_bytes = 0
        torch.cuda.empty_cache()

    def settle(self) -> None:
        """Call this once a recording is made.

        What torch counted as allocated belongs to the pool and would count twice.
        """
        if self._unused_bytes is None:
            self._peak_bytes = max(self._peak_bytes, torch.cuda.memory_allocated() + self.num_bytes)
            torch.cuda.reset_peak_memory_stats()
