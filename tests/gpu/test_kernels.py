"""Kernels that do the same work give the same bits: the engine's logprobs are the learner's because of that alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from groupwise.data.pack import Segment
from tests.plain_kernels import attend, columns, pack_of, seen_in_pack

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def unsplit() -> None:
    torch.manual_seed(0)
    torch.backends.cuda.preferred_blas_library("cublaslt")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)


def noise(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device="cuda") * scale).to(BF16)


@pytest.mark.parametrize("size", [64, 576, 896, 1536, 2048, 4096])
def test_the_norm_of_a_sum(size: int) -> None:
    from groupwise.kernels.pointwise import add_norm, rms_norm

    x, y, weight = noise(500, size), noise(500, size), noise(size)
    total, out = x.clone(), torch.empty_like(x)
    add_norm(total, y, weight, 1e-6, out)
    assert torch.equal(total, x + y)
    assert torch.equal(out, rms_norm(x + y, weight, 1e-6, False))
    add_norm(total, None, weight, 1e-6, out)
    assert torch.equal(out, rms_norm(total, weight, 1e-6, False))


@pytest.mark.parametrize(("heads", "size"), [(4, 64), (3, 80), (2, 128)])
def test_the_norm_of_heads_that_stand_apart(heads: int, size: int) -> None:
    from groupwise.kernels.pointwise import head_norm, rms_norm

    wide, weight = noise(200, 5 * heads * size), noise(size)
    x = wide[:, heads * size : 2 * heads * size].view(200, heads, size)
    assert torch.equal(head_norm(x, weight, 1e-6), rms_norm(x, weight, 1e-6, False))


@pytest.mark.parametrize("rows", [1, 7, 64, 65, 128, 129, 300])
@pytest.mark.parametrize(("outputs", "inputs"), [(2048, 1536), (1536, 8960), (960, 576), (8960, 1536), (100, 48)])
def test_products(rows: int, outputs: int, inputs: int) -> None:
    from groupwise.kernels.products import product

    x, weight, bias = noise(rows, inputs), noise(outputs, inputs, scale=0.1), noise(outputs)
    padded = F.pad(x, (0, 0, 0, 700 - rows))  # as in a batch that is learned from
    for b in (None, bias):
        out = torch.empty(rows, outputs, device="cuda", dtype=BF16)
        product(x, weight, b, out)
        assert torch.equal(out, F.linear(padded, weight, b)[:rows]), b is None


@pytest.mark.parametrize("rows", [3, 64, 128])
@pytest.mark.parametrize(("outputs", "inputs"), [(8960, 1536), (1536, 576), (100, 48)])
def test_gated_products(rows: int, outputs: int, inputs: int) -> None:
    from groupwise.kernels.pointwise import silu_mul, silu_mul_joined
    from groupwise.kernels.products import gated

    x, weight = noise(rows, inputs), noise(2 * outputs, inputs, scale=0.1)
    out = torch.empty(rows, outputs, device="cuda", dtype=BF16)
    gated(x, weight[:outputs], weight[outputs:], out)
    both = F.linear(x, weight)
    expected = silu_mul(both[:, :outputs], both[:, outputs:])
    assert torch.equal(out, expected)
    silu_mul_joined(both, out)
    assert torch.equal(out, expected)


@dataclass
class FewSlots:
    order: Tensor
    tables: Tensor
    positions: Tensor
    is_done: Tensor


def whole(length: int) -> Any:
    """One sequence as a pack."""
    from groupwise.kernels.packed import PackedTiles

    return PackedTiles([Segment(0, length, 0, 0, length)], torch.arange(length, device="cuda"))


ATTENTION = [(12, 2, 128, 0), (9, 3, 64, 0), (4, 4, 80, 0), (8, 1, 256, 0), (4, 2, 64, 100)]


@pytest.mark.parametrize(("heads", "kv_heads", "size", "window"), ATTENTION)
@pytest.mark.parametrize("length", [70, 700])
@pytest.mark.parametrize("is_split", [False, True])
def test_attention(heads: int, kv_heads: int, size: int, window: int, length: int, is_split: bool) -> None:
    """A sequence whose attention is far from flat: packed, prefilled, and each of its positions as a row of its own."""
    from groupwise.kernels import attention
    from groupwise.kernels.packed import attend_packed
    from groupwise.kernels.pointwise import rotate

    joined = noise(length, (heads + 2 * kv_heads) * size, scale=2.0)
    query, key, value = (
        part.view(length, -1, size) for part in joined.split([heads * size, kv_heads * size, kv_heads * size], dim=1)
    )
    cos, sin = noise(length, size), noise(length, size)
    turned = [x.transpose(0, 1)[None] for x in (query, key)]
    q, k = (x[0].transpose(0, 1).contiguous() for x in rotate(*turned, cos[None], sin[None]))
    options = {"scale": size**-0.5, "window": window}
    packed, _ = attend_packed(q, k, value.contiguous(), whole(length), **options)
    starts = range(0, length, attention.QUERY_TILE)
    tiles = [(0, start, start, min(attention.QUERY_TILE, length - start)) for start in starts]

    blocks = -(-length // 16)
    order = torch.randperm(blocks, device="cuda").to(torch.int32)
    cache = torch.full((2, blocks, 16, kv_heads, size), float("nan"), device="cuda", dtype=BF16)
    positions = torch.arange(length, device="cuda")
    places = order[positions // 16].long() * 16 + positions % 16
    out = torch.empty_like(q)
    attention.rotate_and_store(query, key, value, (cache[0], cache[1]), positions, places, (cos, sin), out)
    assert torch.equal(out, q)
    assert torch.equal(cache[0].flatten(0, 1)[places], k)
    prefilled = attention.prefill_attention(
        q, (cache[0], cache[1]), order[None].repeat(2, 1), columns(tiles, "cuda"), softcap=0.0, **options
    )
    assert torch.equal(prefilled, packed)

    slots = FewSlots(
        order=torch.arange(length, device="cuda").flip(0),
        tables=order[None].repeat(length, 1).contiguous(),
        positions=positions,
        is_done=torch.zeros(length, device="cuda", dtype=torch.int64),
    )
    rows = slots.order[: 100 // kv_heads] if is_split else slots.order
    slots.order = rows
    assert (len(rows) * kv_heads < attention.SPLIT_BELOW) == (is_split or length * kv_heads < attention.SPLIT_BELOW)
    decoded = attention.decode_attention(
        joined[rows].split([heads * size, kv_heads * size, kv_heads * size], dim=1)[0].view(-1, heads, size),
        key[rows], value[rows], (cache[0], cache[1]), slots, softcap=0.0, rotary=(cos, sin), **options,
    )  # fmt: skip
    different = (decoded != packed[rows]).flatten(1).any(1).sum().item()
    assert different == 0, f"{different} of {len(rows)} rows"


def test_memory_comes_back_at_the_same_address() -> None:
    from groupwise.models.device_memory import ReleasableMemory

    memory = ReleasableMemory(torch.device("cuda"))
    tensor = memory.tensor((3, 1 << 20), torch.float32)
    tensor.fill_(7)
    address = tensor.data_ptr()
    free = torch.cuda.mem_get_info()[0]
    memory.release()
    assert torch.cuda.mem_get_info()[0] - free == memory.num_bytes
    memory.restore()
    assert torch.cuda.mem_get_info()[0] == free
    tensor.fill_(8)
    assert tensor.data_ptr() == address
    assert bool((tensor == 8).all())


@pytest.mark.parametrize(("heads", "kv_heads", "size", "window"), ATTENTION)
def test_attention_within_a_pack_and_its_gradients(heads: int, kv_heads: int, size: int, window: int) -> None:
    from groupwise.kernels.packed import PackedTiles, packed_attention

    pack = pack_of((130, [1, 2, 90, 300]), (1, [64, 65]), (64, [1]), (3, [129]), device="cuda")
    tokens = len(pack.token_ids)
    leaves = [noise(tokens, count, size, scale=1.5).requires_grad_() for count in (heads, kv_heads, kv_heads)]
    grad = noise(tokens, heads, size)
    tiles = PackedTiles(pack.segments, pack.positions)
    out = packed_attention(*leaves, tiles, scale=size**-0.5, window=window)
    mine = torch.autograd.grad(out, leaves, grad)
    again = torch.autograd.grad(packed_attention(*leaves, tiles, scale=size**-0.5, window=window), leaves, grad)
    assert all(torch.equal(one, other) for one, other in zip(mine, again, strict=True))
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    truth = attend(*wide, seen_in_pack(pack, window), size**-0.5)
    theirs = torch.autograd.grad(truth, wide, grad.double())
    for one, other in zip((out, *mine), (truth, *theirs), strict=True):
        assert (one.double() - other).norm() < 0.01 * other.norm()


def test_heads_are_turned_as_one_by_one() -> None:
    from groupwise.kernels.layer_training import turn_heads
    from groupwise.kernels.pointwise import rotate

    for heads, kv_heads, size in ((12, 2, 128), (9, 3, 64), (4, 4, 80)):
        joined = noise(70, (heads + 2 * kv_heads) * size)
        parts = joined.split([heads * size, kv_heads * size, kv_heads * size], dim=1)
        query, key, value = (part.unflatten(1, (-1, size)) for part in parts)
        cos, sin = noise(70, size), noise(70, size)
        out = tuple(torch.empty_like(part).contiguous() for part in (query, key, value))
        turn_heads((query, key, value), (cos, sin), out, 1.0)
        turned = rotate(*(x.transpose(0, 1)[None] for x in (query, key)), cos[None], sin[None])
        for mine, theirs in zip(out, (*(x[0].transpose(0, 1) for x in turned), value), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("size", [576, 1536, 64])
@pytest.mark.parametrize("has_around", [False, True])
def test_the_gradient_of_a_norm(size: int, has_around: bool) -> None:
    from groupwise.kernels.layer_training import norm, norm_backward
    from groupwise.kernels.pointwise import rms_norm

    x, weight, grad = noise(3000, size).requires_grad_(), noise(size).requires_grad_(), noise(3000, size)
    around = noise(3000, size) if has_around else None
    out = rms_norm(x, weight, 1e-6, False)
    assert torch.equal(norm(x.detach(), weight, 1e-6), out)
    dx, dweight = torch.autograd.grad(out, (x, weight), grad)
    mine, again, mine_weight = norm_backward(grad, x.detach(), weight.detach(), 1e-6, around)
    assert torch.equal(again, out)
    expected = dx.float() + (0 if around is None else around.float())
    assert (mine.float() - expected).abs().max() < 0.02 * expected.abs().max()
    assert torch.allclose(mine_weight.to(BF16).float(), dweight.float(), rtol=0.02, atol=0.5)


def test_the_gradient_of_the_gate() -> None:
    from groupwise.kernels.layer_training import gate, gate_backward
    from groupwise.kernels.pointwise import silu_mul

    joined, grad = noise(50, 2 * 1536), noise(50, 1536)
    parts = [part.contiguous().requires_grad_() for part in joined.chunk(2, dim=1)]
    out = silu_mul(*parts)
    assert torch.equal(gate(joined), out)
    djoined, again = gate_backward(grad, joined)
    assert torch.equal(again, out)
    theirs = torch.cat(torch.autograd.grad(out, parts, grad), dim=1).float()
    assert (djoined.float() - theirs).norm() < 1e-3 * theirs.norm()


def test_products_add_up_in_fp32() -> None:
    from groupwise.kernels.layer_training import add_product

    left, right = noise(5000, 96), noise(5000, 64)
    total = torch.full((96, 64), 1e4, device="cuda")
    add_product(total, left, right)
    expected = 1e4 + left.double().t() @ right.double()
    assert (total.double() - expected).abs().max() < 0.02


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_rows_of_logits(temperature: float) -> None:
    from groupwise.algo.logprobs import TorchRows
    from groupwise.kernels.output_head import TritonRows

    logits = torch.randn(33, 50000, device="cuda") * 4
    logits[2, 10:] = -float("inf")
    ids, grad = torch.arange(33, device="cuda") % 9, torch.randn(33, device="cuda")
    mine, theirs = (rows.measure(logits.clone(), ids, temperature) for rows in (TritonRows(), TorchRows()))
    for one, other in zip(mine, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)
    slopes = [
        rows.slope(logits.clone(), ids, theirs[1], grad, temperature, torch.float32)
        for rows in (TritonRows(), TorchRows())
    ]
    assert torch.allclose(*slopes, rtol=1e-4, atol=1e-6)
