"""The straight layer against the modules' own forward with autograd, in fp32, with plain torch between the products."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from groupwise.config import LoraConfig, ModelConfig
from groupwise.data.batch import Example, Microbatch, make_microbatches
from groupwise.data.pack import Pack
from groupwise.kernels.seam import AttentionForm, attend_with, attending
from groupwise.models.head import padded_hidden
from groupwise.models.load import load_model, recompute_activations
from groupwise.models.lora import add_lora, trainable_parameters
from groupwise.models.optimizer import GradientSums
from groupwise.models.straight import straighten
from tests.plain_kernels import PlainOps, seen_in_pack

SMALL = {"hidden_size": 32, "intermediate_size": 96, "num_layers": 3, "num_heads": 4, "num_kv_heads": 2}
CPU = torch.device("cpu")


class PlainStep:
    """Attention within a pack by a mask over all pairs of tokens."""

    def __init__(self, pack: Pack) -> None:
        self.seen = seen_in_pack(pack)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        raise AssertionError("the layers are to run straight")

    def forward(self, layer: int, heads: Any, form: AttentionForm) -> tuple[Tensor, Tensor]:
        query, key, value = (part.transpose(0, 1) for part in heads)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=self.seen, scale=form.scale, enable_gqa=True)
        return out.transpose(0, 1).contiguous(), torch.zeros(0)

    def backward(self, grad: Tensor, heads: Any, out: Tensor, lse: Tensor, form: AttentionForm) -> Any:
        with torch.enable_grad():
            leaves = [part.detach().requires_grad_() for part in heads]
            again, _ = self.forward(0, leaves, form)
        return torch.autograd.grad(again, leaves, grad)


def make(name: str, keep: Any = False, *, lora: bool = False) -> Any:
    config = ModelConfig(path=name, device="cpu", tiny=SMALL)
    model = load_model(config, seed=1).model
    if lora:
        add_lora(model, LoraConfig(rank=4), seed=2)
    with torch.no_grad():
        for weight in model.parameters():  # far from where they begin: norms of 1, biases and adapters of 0
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)) * 0.1)
    recompute_activations(model, keep)
    return model


def examples() -> list[Example]:
    first, second = (1, 2, 3, 4, 5), (9, 8)
    completions = [(6, 7, 1), (2,), (3, 3, 3, 3, 3, 3), ()]
    return [Example(first, each) for each in completions] + [Example(second, each) for each in completions[:2]]


def packed_hidden(model: Any, pack: Pack) -> Tensor:
    attend_with(PlainStep(pack))
    out: Tensor = model.get_decoder()(
        input_ids=pack.token_ids[None], position_ids=pack.positions[None], use_cache=False
    ).last_hidden_state[0]
    return out[pack.predicts]


def by_example(microbatch: Microbatch, hidden: Tensor) -> dict[int, Tensor]:
    pieces = hidden.split(list(microbatch.lengths))
    return dict(zip(microbatch.example_indices, pieces, strict=True))


def learn(model: Any, *, is_packed: bool, sums: GradientSums | None = None) -> tuple[list[Tensor], dict[str, Tensor]]:
    """(hidden states by example, gradients by name), of a loss that weighs each state differently."""
    (microbatch,) = make_microbatches(examples(), [1.0] * 6, 10**6, CPU, is_packed=is_packed)
    if is_packed:
        with attending(model):
            found = by_example(microbatch, packed_hidden(model, microbatch.inputs))
    else:
        found = by_example(microbatch, padded_hidden(model, microbatch.inputs))
    hidden = [found[index] for index in range(6)]
    noise = torch.randn(sum(map(len, hidden)), 32, generator=torch.Generator().manual_seed(5))
    (torch.cat(hidden) * noise).sum().backward()
    weights = trainable_parameters(model)
    offered = sums or GradientSums()
    gradients: dict[str, Any] = {
        name: weight.grad if (total := offered.of(weight)) is None else total for name, weight in weights.items()
    }
    return [part.detach() for part in hidden], gradients


def assert_same(mine: tuple[Any, Any], theirs: tuple[Any, Any]) -> None:
    for one, other in zip(mine[0], theirs[0], strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert mine[1].keys() == theirs[1].keys()
    for name, gradient in theirs[1].items():
        if gradient is None:  # the head, which is not part of this
            continue
        assert torch.allclose(mine[1][name], gradient, rtol=5e-4, atol=1e-4), name


@pytest.mark.parametrize("keep", [False, "mlp", True])
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-llama"])
def test_a_straight_layer_learns_what_its_modules_learn(name: str, keep: Any, lora: bool) -> None:
    theirs = learn(make(name, lora=lora), is_packed=False)
    model = make(name, keep, lora=lora)
    straighten(model, PlainOps())
    assert_same(learn(model, is_packed=True), theirs)


@pytest.mark.parametrize("is_adjacent", [False, True])
@pytest.mark.parametrize("lora", [False, True])
def test_gradients_go_into_the_sums_that_are_offered(lora: bool, is_adjacent: bool) -> None:
    model, sums = make("tiny-qwen3", lora=lora), GradientSums()
    straighten(model, PlainOps(), sums)
    plain = learn(model, is_packed=True)
    model.zero_grad()
    inside = {id(weight) for layer in model.get_decoder().layers for weight in layer.straight.parameters()}
    trained = [weight for weight in model.parameters() if id(weight) in inside]
    buffer = torch.ones(sum(weight.numel() for weight in trained))
    # In the order of the modules q, k and v stand side by side, and so do gate and up.
    places = zip(trained, buffer.split([weight.numel() for weight in trained]), strict=True)
    parts = [(place if is_adjacent else place.clone()).view_as(weight) for weight, place in places]
    sums.offer(trained, parts, stay=True)
    summed = learn(model, is_packed=True, sums=sums)
    for name, weight in trainable_parameters(model).items():
        if id(weight) in inside:
            assert weight.grad is None
            assert torch.allclose(summed[1][name] - 1, plain[1][name], atol=1e-4), name


def test_a_deep_copy_has_weights_of_its_own() -> None:
    model = make("tiny-qwen3")
    straighten(model, PlainOps())
    before = learn(model, is_packed=True)[0]
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    for one, other in zip(learn(copied, is_packed=True)[0], before, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("keep", ["mlp", True])
def test_less_is_kept(keep: Any) -> None:
    def kept_bytes(which: Any) -> int:
        model = make("tiny-llama", which)
        straighten(model, PlainOps())
        weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        sizes: dict[int, int] = {}

        def keep_it(tensor: Tensor) -> Tensor:
            if tensor.untyped_storage().data_ptr() not in weights:
                sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        (microbatch,) = make_microbatches(examples(), [1.0] * 6, 10**6, CPU, is_packed=True)
        with attending(model), torch.autograd.graph.saved_tensors_hooks(keep_it, lambda tensor: tensor):
            hidden = packed_hidden(model, microbatch.inputs)
        assert hidden.requires_grad
        return sum(sizes.values())

    assert kept_bytes(keep) < 0.75 * kept_bytes(False)
