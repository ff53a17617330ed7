"""The layers of a model over a pack, recorded as CUDA graphs: one launch per pass, not ten per layer and twenty back.

For a small model, launching a pass takes the CPU longer than running it takes the GPU. So packs are padded to one of a
few sizes, and the passes of each size are recorded as CUDA graphs over tensors at fixed addresses.

    x, angles, tiles ──▶ [ layer, layer, … layer ] ──▶ out          what layers save stays in the graphs' memory
              dx ◀── [ layer, … layer, layer ] ◀── grad             gradients of weights are added to their sums

A recording holds the addresses of weights and sums, so it is valid only while they stay in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from groupwise.data.pack import Pack, Segment
from groupwise.models.memory_limits import RECORDED_SHARE, capacity, grain
from groupwise.models.straight import PackStep, Rotary, StraightLayer

T = TypeVar("T")

MEMORY_SHARE = RECORDED_SHARE
MOST_RECORDINGS = 16
FILLING = 64
"""Padding tokens attend to at most this many other padding tokens."""


class Recorder(Protocol):
    def __call__(self, work: Callable[[], T], trial: Callable[[], object]) -> tuple[Callable[[], None], T]:
        """Return (a function that runs the work again, its result: tensors that each run overwrites).

        Memory that is not returned, or dropped later, is reused by other recordings. `trial` runs first, with the same
        kernels: a kernel cannot be recorded while it is loaded.
        """
        ...

    def begin_anew(self) -> None:
        """Free the memory of all recordings, which were dropped before, and start a new pool."""
        ...


class Room(Protocol):
    """Attention over packs whose tiles are at the addresses that recorded kernels read."""

    def fill(self, pack: Pack) -> bool: ...
    @property
    def step(self) -> PackStep: ...


def filled(pack: Pack, tokens: int) -> Pack:
    """Pad a pack with tokens at the end that nothing learns from, in their own segments."""
    count = len(pack.token_ids)
    starts = range(count, tokens, FILLING)
    extra = [Segment(start, end - start, 0, 0, end) for start in starts for end in [min(start + FILLING, tokens)]]
    positions = torch.arange(tokens - count, device=pack.positions.device) % FILLING
    return replace(
        pack,
        token_ids=torch.nn.functional.pad(pack.token_ids, (0, tokens - count)),
        positions=torch.cat([pack.positions, positions]),
        segments=(*pack.segments, *extra),
    )


class Recording:
    """Forward and backward pass over packs of one size."""

    def __init__(
        self,
        layers: Sequence[StraightLayer],
        like: Tensor,
        rotary: Rotary,
        room: Room,
        record: Recorder,
        *,
        learns: bool,
    ) -> None:
        self.room = room
        self.weights = weight_addresses(layers)
        self._x, self._grad = torch.zeros_like(like), torch.zeros_like(like)
        self._rotary = (torch.zeros_like(rotary[0]), torch.zeros_like(rotary[1]))
        self._passes = 0

        def forward(keeps: bool) -> tuple[Tensor, list[list[Tensor]]]:
            x: Tensor = self._x
            kept: list[list[Tensor]] = []
            for layer in layers:
                x, of_layer = layer.forward(x, self._rotary, room.step)
                if keeps:
                    kept.append(of_layer)
            return x, kept

        def backward() -> Tensor:
            grad = self._grad
            for layer, of_layer in zip(reversed(layers), reversed(kept), strict=True):
                grad, gradients = layer.backward(grad, of_layer, self._rotary, room.step)
                assert gradients.num_handed == 0
            return grad

        self._run_forward, (self._out, kept) = record(lambda: forward(learns), lambda: forward(False))
        if learns:
            self._run_forward()  # fills what backward reads in its trial run
            self._run_backward, self._dx = record(backward, backward)

    def forward(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, int]:
        """Return (the output of the layers, the number of this pass)."""
        self._x.copy_(x)
        for mine, given in zip(self._rotary, rotary, strict=True):
            mine.copy_(given)
        self._run_forward()
        self._passes += 1
        return self._out, self._passes

    def backward(self, grad: Tensor, number: int) -> Tensor:
        # The saved tensors are those of the newest pass.
        if number != self._passes:
            raise RuntimeError("a recorded pass ran before the backward pass of the one before it")
        self._grad.copy_(grad)
        self._run_backward()
        return self._dx


class _RecordedPass(torch.autograd.Function):
    """`weight` is any trained weight: it makes autograd run the backward pass, which fills the sums of all weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, recording: Recording, rotary: Rotary, weight: Tensor | None) -> Tensor:
        out, ctx.number = recording.forward(x, rotary)
        ctx.recording = recording
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # Dropped here, because the output of the pass may outlive the recording.
        recording, ctx.recording = ctx.recording, None
        dx = recording.backward(grad, ctx.number)
        return dx.view_as(dx), None, None, None


Key = tuple[int, bool]
"""(tokens of a pack, whether gradients are wanted)"""


class RecordedLayers:
    def __init__(
        self, layers: Sequence[StraightLayer], make_room: Callable[[int], Room], record: Recorder, memory_bytes: int
    ) -> None:
        self._layers = list(layers)
        self._make_room = make_room
        self._record = record
        self._memory_bytes = memory_bytes
        self._recordings: dict[Key, Recording] = {}
        self._seen: set[bool] = set()

    def forget(self) -> None:
        """Run the next pass without recording it."""
        self._seen.clear()

    @property
    def most_tokens(self) -> int:
        """Size of the largest pack that can be recorded; 0 if none can."""
        tokens = int(MEMORY_SHARE * self._memory_bytes) // (self._layers[0].kept_bytes * len(self._layers))
        return tokens // grain(tokens) * grain(tokens)

    def size_for(self, pack: Pack) -> int | None:
        """Return the size to pad the pack to for a recording; None if it should run unpadded.

        The first pass, which is never recorded, is padded as well: gradients are sums over all tokens, whose last bits
        depend on the number of tokens, and a resumed run has its first pass at another step.
        """
        tokens = capacity(len(pack.token_ids))
        if tokens > self.most_tokens:
            return None
        learns = torch.is_grad_enabled()
        if learns and not all(layer.sums.stays(weight) for layer in self._layers for weight in layer.parameters()):
            return None
        return tokens

    def __call__(self, x: Tensor, rotary: Rotary, pack: Pack) -> Tensor | None:
        """Return [T, S] for a padded pack; None if it should run without a recording.

        That is so for a pack with too many segments and for the first pass of its kind, which compiles kernels and
        shows whether the memory suffices.
        """
        key = self._key(x.shape[0])
        if key[1] not in self._seen:
            self._seen.add(key[1])
            return None
        recording = self._recordings.get(key)
        if recording is not None and recording.weights != weight_addresses(self._layers):
            del self._recordings[key]
            recording = None
        room = self._make_room(x.shape[0]) if recording is None else recording.room
        if not room.fill(pack):
            return None
        if recording is None:
            self._make_way(key)
            recording = Recording(self._layers, x.detach(), rotary, room, self._record, learns=key[1])
            self._recordings[key] = recording
        out: Tensor = _RecordedPass.apply(x, recording, rotary, next(self._weights(), None))
        return out

    def _make_way(self, key: Key) -> None:
        """Drop recordings so that the new one can use their memory.

        A larger recording cannot reuse the pieces that a smaller one left, but a smaller one can reuse those of a
        larger one. So when a larger pack comes, all are dropped, and smaller ones are recorded again when needed.
        """
        learned = [tokens for tokens, learns in self._recordings if learns]
        if key[1] and learned and key[0] > max(learned):
            self._recordings.clear()
            self._record.begin_anew()
        while len(self._recordings) >= MOST_RECORDINGS:
            del self._recordings[next(iter(self._recordings))]

    def _key(self, tokens: int) -> Key:
        return tokens, torch.is_grad_enabled()

    def _weights(self) -> Iterator[Tensor]:
        """Yield the trained weights."""
        return (weight for layer in self._layers for weight in layer.parameters())


def weight_addresses(layers: Sequence[StraightLayer]) -> list[tuple[object, ...]]:
    """Return the addresses that a recording reads from or adds to."""
    return [layer.addresses() for layer in layers]
