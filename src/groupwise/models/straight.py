"""A Llama-like decoder layer as one autograd operation: few launches, little memory, gradients summed in fp32.

    x ─▶ norm ─▶ q k v ─▶ turn ─▶ attention ─▶ o ─▶ + x ─▶ norm ─▶ gate up ─▶ silu × ─▶ down ─▶ +
                                                    x₂

The tests compare it with the modules' own forward under autograd, which computes the same. Here projections that share
an input are one product, and norms and the activation are recomputed in the backward pass rather than saved. The
gradient of a weight is added in fp32, by the product itself, to the sum that the optimizer offers (GradientSums), not
passed on as a bf16 gradient per microbatch. If no sum is offered, autograd gets the gradient.

Saved between the passes: everything that would take a product to recompute, or less (`Keep`).

`ops` computes what lies between the products (kernels/layer_training.py on a GPU).
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from groupwise.kernels.joined import Joined, is_plain, join, join_copies
from groupwise.kernels.seam import AttentionForm, current_step
from groupwise.models.families import UNKNOWN, Family, family_of, has_silu, window_of
from groupwise.models.optimizer import GradientSums

Keep = Literal["all", "attention", "input"]
"""What is saved for the backward pass. `attention`: all but the feed-forward block. `input`: the layer's input only."""
Heads = tuple[Tensor, Tensor, Tensor]
"""Query [T, H, D], key and value [T, K, D]."""
Rotary = tuple[Tensor, Tensor]
"""cos and sin, [T, D]."""


class LayerOps(Protocol):
    """Shapes as in kernels/layer_training.py."""

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...
    def add_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]: ...
    def norm_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, eps: float, around: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def angles(self, embeddings: Rotary) -> Rotary:
        """Return cos and sin [T, D] as `turn_heads` takes them, from those of the model [1, T, D]."""
        ...

    def turn_heads(self, heads: Heads, rotary: Rotary, out: Heads, sign: float) -> None: ...
    def gate(self, joined: Tensor) -> Tensor: ...
    def gate_backward(self, grad: Tensor, joined: Tensor) -> tuple[Tensor, Tensor]: ...
    def project(self, x: Tensor, joined: Joined) -> Tensor: ...
    def add_product(self, total: Tensor, left: Tensor, right: Tensor) -> None: ...
    def split_sums(self) -> AbstractContextManager[None]:
        """Inside, products may split their sums. Elsewhere they may not, so that bits agree with the engine's."""
        ...


@runtime_checkable
class HeadStep(Protocol):
    """Attention over heads that a straight layer made."""

    def forward(self, layer: int, heads: Heads, form: AttentionForm) -> tuple[Tensor, Tensor]: ...


class PackStep(HeadStep, Protocol):
    """Attention within a pack, in two passes."""

    def backward(self, grad: Tensor, heads: Heads, out: Tensor, lse: Tensor, form: AttentionForm) -> Heads: ...


class Gradients:
    """Collects the gradients of weights: into their sums, or to be handed to autograd."""

    def __init__(self, ops: LayerOps, sums: GradientSums) -> None:
        self._ops = ops
        self._sums = sums
        self._handed: dict[int, Tensor] = {}

    def add_product(self, weights: Sequence[Tensor], left: Tensor, right: Tensor) -> None:
        """Add leftᵀ · right, whose rows are those of all weights in order. left [T, N], right [T, M]."""
        joined = self._adjacent_sums(weights)
        if joined is not None:
            self._ops.add_product(joined, left, right)
            return
        for weight, part in zip(weights, left.split([len(weight) for weight in weights], dim=1), strict=True):
            total = self._sums.of(weight)
            if total is not None:
                self._ops.add_product(total, part, right)
            elif weight.requires_grad:
                self._hand(weight, part.t() @ right)

    def add(self, weights: Sequence[Tensor], gradient: Tensor) -> None:
        """Add a gradient [N, …] whose rows are those of all weights in order."""
        for weight, part in zip(weights, gradient.split([len(weight) for weight in weights]), strict=True):
            if weight.requires_grad:
                total = self._sums.of(weight)
                if total is None:
                    self._hand(weight, part.to(weight.dtype))
                else:
                    total.add_(part)

    def _hand(self, weight: Tensor, gradient: Tensor) -> None:
        self._handed[id(weight)] = gradient

    def handed(self, weights: Sequence[Tensor]) -> list[Tensor | None]:
        return [self._handed.get(id(weight)) for weight in weights]

    @property
    def num_handed(self) -> int:
        return len(self._handed)

    def _adjacent_sums(self, weights: Sequence[Tensor]) -> Tensor | None:
        """Return the sums of the weights as one tensor; None where one is missing or they are not adjacent."""
        totals = [total for weight in weights if (total := self._sums.of(weight)) is not None]
        if len(totals) < len(weights) or not all(total.is_contiguous() for total in totals):
            return None
        end = totals[0].data_ptr()
        for total in totals:
            if total.data_ptr() != end:
                return None
            end += total.numel() * total.element_size()
        return totals[0].as_strided((sum(len(total) for total in totals), totals[0].shape[1]), totals[0].stride())


class Product:
    """Linear layers that share an input, with their adapters, as one product."""

    def __init__(self, modules: Sequence[nn.Module], ops: LayerOps) -> None:
        self._modules: list[Any] = list(modules)
        self._ops = ops
        self._known: tuple[tuple[object, ...], Joined] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Drop the cached weights: a deep copy of the model has its own."""
        return self.__dict__ | {"_known": None}

    def parameters(self) -> list[Tensor]:
        return [weight for module in self._modules for weight in module.parameters()]

    def state(self) -> tuple[object, ...]:
        """Return where the weights are and whether adapters are on."""
        return tuple((getattr(module, "disable_adapters", None), _address(module)) for module in self._modules)

    def sizes(self) -> list[int]:
        return [module.out_features for module in self._modules]

    def joined(self) -> Joined:
        """Return the joined weights, cached while they stay in place: joining takes as long as a small product."""
        state = self.state()
        if self._known is not None and self._known[0] == state:
            return self._known[1]
        found = join(self._modules)
        if found is not None:
            self._known = (state, found)
            return found
        return join_copies(self._modules)

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.project(x, self.joined())

    def input_gradient(self, grad: Tensor) -> Tensor:
        """Return the gradient of x [T, M] from that of the outputs [T, N]."""
        joined = self.joined()
        dx = grad @ joined.weight
        if joined.adapter is not None:
            dx.addmm_(self._low_gradient(joined, grad), joined.adapter.down)
        return dx

    def collect(self, grad: Tensor, x: Tensor, gradients: Gradients) -> None:
        """Add the gradients of the weights."""
        joined = self.joined()
        gradients.add_product(joined.parts["weight"], grad, x)
        biases = joined.parts.get("bias", ())
        if any(bias.requires_grad for bias in biases):
            gradients.add(biases, grad.sum(0, dtype=torch.float32))
        adapter = joined.adapter
        if adapter is None:
            return
        low = (x @ adapter.down.t()).mul_(adapter.scaling)
        pairs = zip(grad.split(joined.sizes, dim=1), low.split(adapter.up.shape[1], dim=1), strict=True)
        for up, (part, its_low) in zip(joined.parts["up"], pairs, strict=True):
            gradients.add_product([up], part, its_low)
        gradients.add_product(joined.parts["down"], self._low_gradient(joined, grad), x)

    def _low_gradient(self, joined: Joined, grad: Tensor) -> Tensor:
        """Return the gradient of the adapters' low-rank values, [T, layers × rank]."""
        assert joined.adapter is not None
        parts = zip(grad.split(joined.sizes, dim=1), joined.adapter.up.split(joined.sizes), strict=True)
        slopes = [part @ up for part, up in parts]
        return (slopes[0] if len(slopes) == 1 else torch.cat(slopes, dim=1)).mul_(joined.adapter.scaling)


def _address(module: Any) -> tuple[int, int]:
    """Return the address of a module's weight and its storage: another weight may later reuse the address."""
    weight = getattr(module, "base_layer", module).weight
    return weight.data_ptr(), weight.untyped_storage()._cdata


class StraightLayer:
    def __init__(
        self, layer: Any, ops: LayerOps, keep: Keep, family: Family = UNKNOWN, sums: GradientSums | None = None
    ) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.sums = sums or GradientSums()
        self._family = family
        self.ops, self.keep = ops, keep
        self.size = attention.head_dim
        self.attention = attention
        self.norms = (layer.input_layernorm, layer.post_attention_layernorm)
        self.head_norms = (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None
        self.into_heads = Product((attention.q_proj, attention.k_proj, attention.v_proj), ops)
        self.out_of_heads = Product((attention.o_proj,), ops)
        self.into_mlp = Product((mlp.gate_proj, mlp.up_proj), ops)
        self.out_of_mlp = Product((mlp.down_proj,), ops)
        self._trained: tuple[Tensor, list[Tensor]] | None = None
        self._products = (self.into_heads, self.out_of_heads, self.into_mlp, self.out_of_mlp)

    def parameters(self) -> list[Tensor]:
        """Return the trained parameters."""
        # Cached while the parameters are the same objects, which those of a sharded model are not.
        first = self.norms[0].weight
        if self._trained is None or self._trained[0] is not first:
            self._trained = (first, self._find_trained())
        return self._trained[1]

    def _find_trained(self) -> list[Tensor]:
        norms = [*self.norms, *(self.head_norms or ())]
        weights = [norm.weight for norm in norms] + [weight for one in self._products for weight in one.parameters()]
        return [weight for weight in weights if weight.requires_grad]

    @property
    def kept_bytes(self) -> int:
        """Bytes saved per token for the backward pass."""
        qkv, (out,), gates = (product.sizes() for product in self._products[:3])
        if self.keep == "input":
            return 2 * out
        own_head_norms = sum(qkv[:2]) if self.head_norms is not None else 0
        return 2 * (2 * out + sum(qkv) + qkv[0] + own_head_norms + (sum(gates) if self.keep == "all" else 0))

    def addresses(self) -> tuple[object, ...]:
        """Return where its weights and the sums of their gradients are."""
        sums = [self.sums.of(weight) for weight in self.parameters()]
        products = tuple(product.state() for product in self._products)
        return (*products, *(None if total is None else total.data_ptr() for total in sums))

    # ---- forward ----

    def forward(self, x: Tensor, rotary: Rotary, step: HeadStep) -> tuple[Tensor, list[Tensor]]:
        """Return (the layer's output [T, S], what to save for the backward pass)."""
        raw, heads, out, lse = self._attend(x, rotary, step)
        middle, gates = self._widen(x, out)
        result = middle + self.out_of_mlp(self.ops.gate(gates))
        if self.keep == "input":
            return result, [x]
        return result, [x, *heads, out, lse, middle, *raw, *([gates] if self.keep == "all" else [])]

    def _attend(self, x: Tensor, rotary: Rotary, step: HeadStep) -> tuple[list[Tensor], Heads, Tensor, Tensor]:
        """Return (query and key before their norms, if they have any; heads; output and log-sum-exp of attention)."""
        query, key, value = self._split(self.into_heads(self._normed(0, x)))
        raw: list[Tensor] = []
        if self.head_norms is not None:
            raw = [query.contiguous(), key.contiguous()]
            query, key = (self.ops.norm(part, *norm) for part, norm in zip(raw, self._head_norms(), strict=True))
        heads = _like(query), _like(key), _like(value)
        self.ops.turn_heads((query, key, value), rotary, heads, 1.0)
        return raw, heads, *step.forward(self.attention.layer_idx, heads, self._form())

    def _widen(self, x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return (x after attention, gate and up side by side)."""
        norm = self.norms[1]
        middle, normed = self.ops.add_norm(x, self.out_of_heads(out.flatten(1)), norm.weight, norm.variance_epsilon)
        return middle, self.into_mlp(normed)

    def _normed(self, index: int, x: Tensor) -> Tensor:
        return self.ops.norm(x, self.norms[index].weight, self.norms[index].variance_epsilon)

    def _head_norms(self) -> list[tuple[Tensor, float]]:
        return [(norm.weight, norm.variance_epsilon) for norm in self.head_norms or ()]

    def _split(self, joined: Tensor) -> Heads:
        sizes = self.into_heads.joined().sizes
        query, key, value = (part.unflatten(1, (-1, self.size)) for part in joined.split(sizes, dim=1))
        return query, key, value

    def _form(self) -> AttentionForm:
        return AttentionForm(self.attention.scaling, 0.0, window_of(self._family, self.attention))

    # ---- backward ----

    def backward(
        self, grad: Tensor, kept: Sequence[Tensor], rotary: Rotary, step: PackStep
    ) -> tuple[Tensor, Gradients]:
        x, heads, out, lse, middle, raw, gates = self._restore(kept, rotary, step)
        gradients = Gradients(self.ops, self.sums)
        with self.ops.split_sums():
            rounded = grad.to(gates.dtype)  # The residual stream may be in a wider type than the products.
            dgates, active = self.ops.gate_backward(self.out_of_mlp.input_gradient(rounded), gates)
            self.out_of_mlp.collect(rounded, active, gradients)
            del gates, active
            grad = self._norm_backward(1, self.into_mlp, dgates, middle, grad, gradients)
            del dgates
            rounded = grad.to(out.dtype)
            self.out_of_heads.collect(rounded, out.flatten(1), gradients)
            dout = self.out_of_heads.input_gradient(rounded).view_as(out)
            dheads = step.backward(dout, heads, out, lse, self._form())
            draw = self._turn_back(dheads, raw, rotary, gradients)
            return self._norm_backward(0, self.into_heads, draw, x, grad, gradients), gradients

    def _restore(
        self, kept: Sequence[Tensor], rotary: Rotary, step: PackStep
    ) -> tuple[Tensor, Heads, Tensor, Tensor, Tensor, Sequence[Tensor], Tensor]:
        """Return all that the backward pass reads, recomputed where it was not saved."""
        if self.keep == "input":
            (x,) = kept
            raw, heads, out, lse = self._attend(x, rotary, step)
            middle, gates = self._widen(x, out)
            return x, heads, out, lse, middle, raw, gates
        x, query, key, value, out, lse, middle, *rest = kept
        gates = rest.pop() if self.keep == "all" else self.into_mlp(self._normed(1, middle))
        return x, (query, key, value), out, lse, middle, rest, gates

    def _norm_backward(
        self, index: int, product: Product, grad: Tensor, x: Tensor, around: Tensor, gradients: Gradients
    ) -> Tensor:
        """Return the gradient of x through a product of its norm. `around` is the gradient of the residual path."""
        norm = self.norms[index]
        dx, normed, dweight = self.ops.norm_backward(
            product.input_gradient(grad), x, norm.weight, norm.variance_epsilon, around
        )
        gradients.add([norm.weight], dweight)
        product.collect(grad, normed, gradients)
        return dx

    def _turn_back(self, dheads: Heads, raw: Sequence[Tensor], rotary: Rotary, gradients: Gradients) -> Tensor:
        """Return the gradient of the three projections side by side."""
        tokens = dheads[0].shape[0]
        width = sum(part.shape[1] for part in dheads) * self.size
        joined = torch.empty(tokens, width, device=dheads[0].device, dtype=dheads[0].dtype)
        into = self._split(joined)
        if self.head_norms is None:
            self.ops.turn_heads(dheads, rotary, into, -1.0)
            return joined
        turned = _like(dheads[0]), _like(dheads[1]), into[2]
        self.ops.turn_heads(dheads, rotary, turned, -1.0)
        for norm, grad, x, place in zip(self._head_norms(), turned[:2], raw, into[:2], strict=True):
            dx, _, dweight = self.ops.norm_backward(grad, x, *norm)
            gradients.add([norm[0]], dweight)
            place.copy_(dx)
        return joined


def _like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, device=x.device, dtype=x.dtype)


def run_layer(x: Tensor, layer: StraightLayer, rotary: Rotary, step: HeadStep) -> Tensor:
    """Return the layer's output [T, S], with gradients where they are recorded."""
    if not torch.is_grad_enabled():
        return layer.forward(x, rotary, step)[0]
    out: Tensor = _Layer.apply(x, layer, rotary, step, *layer.parameters())
    return out


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: StraightLayer, rotary: Rotary, step: HeadStep, *weights: Tensor) -> Tensor:
        out, kept = layer.forward(x, rotary, step)
        ctx.save_for_backward(*kept)
        ctx.parts = (layer, rotary, step, weights)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layer, rotary, step, weights = ctx.parts
        dx, gradients = layer.backward(grad.contiguous(), ctx.saved_tensors, rotary, step)
        return (dx, None, None, None, *gradients.handed(weights))


def straighten(model: Any, ops: LayerOps, sums: GradientSums | None = None) -> None:
    """Let the layers of a model run as one operation each over packs, where its family allows it.

    Each such layer gets two attributes, `straight` and `own_forward`, and a `forward` that chooses between them. A
    wrapper module would be more explicit, but would rename the weights in checkpoints and exports.
    """
    family = family_of(model)
    for layer in getattr(model.get_decoder(), "layers", ()) if family is not UNKNOWN else ():
        if type(layer).__name__ != family.layer or not has_silu(layer.mlp) or not _is_plain(layer):
            continue
        # The layer recomputes its activations itself; nothing must do it around the layer.
        keep: Keep = "all"
        if getattr(layer, "recomputes", False):
            keep, layer.recomputes = "input", False
        elif getattr(layer.mlp, "recomputes", False):
            keep, layer.mlp.recomputes = "attention", False
        layer.straight = StraightLayer(layer, ops, keep, family, sums)
        layer.own_forward = layer.forward
        layer.forward = types.MethodType(_forward, layer)


def straight_layers(model: Any) -> list[StraightLayer]:
    """Return all layers of a model if each runs as one operation, else none."""
    layers = list(getattr(model.get_decoder(), "layers", ()))
    found = [layer.straight for layer in layers if hasattr(layer, "straight")]
    return found if len(found) == len(layers) else []


def _is_plain(layer: Any) -> bool:
    attention, mlp = layer.self_attn, layer.mlp
    joined = ((attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj))
    return all(is_plain(modules) for modules in (*joined, (attention.o_proj,), (mlp.down_proj,)))


def _forward(self: Any, hidden_states: Tensor, *rest: Any, position_embeddings: Any = None, **named: Any) -> Any:
    step, straight = current_step(), self.straight
    if rest or not isinstance(step, HeadStep):
        return self.own_forward(hidden_states, *rest, position_embeddings=position_embeddings, **named)
    rotary = straight.ops.angles(position_embeddings)
    return run_layer(hidden_states[0], straight, rotary, step)[None]
