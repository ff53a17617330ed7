"""The layers of a model over a pack, recorded: a pass is one launch, where each layer has ten forward and twenty back.

A small model's pass takes the CPU longer to launch than the GPU to run. So packs are filled up to one of a few sizes,
and the passes of each size are recorded as CUDA graphs, on tensors that stay where they are.

    x, angles, tiles ──▶ [ layer, layer, … layer ] ──▶ out          what layers keep stays in the graphs' own memory
              dx ◀── [ layer, … layer, layer ] ◀── grad             gradients of weights go into their sums

What is recorded reads weights and adds to sums where they were then: a recording holds as long as they stay there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from groupwise.data.pack import Pack, Segment
from groupwise.models.straight import PackStep, Rotary, StraightLayer

T = TypeVar("T")

MEMORY_SHARE = 1 / 8
"""Of the device's memory, for what layers keep of one pack: it is not given back between steps."""
MOST_RECORDINGS = 16
FILLING = 64
"""Tokens that fill a pack up see at most so many of their kind."""


class Recorder(Protocol):
    def __call__(self, work: Callable[[], T], trial: Callable[[], object]) -> tuple[Callable[[], None], T]:
        """(runs the work again, what it returns: tensors that are written anew each time).

        What is not returned, or let go of later, is memory for other recordings. `trial` is run before: the same
        kernels, which cannot be recorded when they are first loaded.
        """
        ...

    def begin_anew(self) -> None:
        """After all recordings were let go of: their memory is given back, and the next begin a pool of their own."""
        ...


class Room(Protocol):
    """Attention over packs whose tiles are put where recorded kernels look for them."""

    def fill(self, pack: Pack) -> bool: ...
    @property
    def step(self) -> PackStep: ...


def capacity(tokens: int) -> int:
    """The size that a pack is filled up to: at most a quarter more, and packs of one step are about equally large."""
    grain = _grain(tokens)
    return -(-tokens // grain) * grain


def _grain(tokens: int) -> int:
    return max(256, 1 << max(0, (tokens - 1).bit_length() - 3))


def filled(pack: Pack, tokens: int) -> Pack:
    """With tokens at the end that nobody learns from, in segments of their own."""
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
    """Both passes over packs of one size."""

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
            self._run_forward()  # so that what is kept is numbers, when backward is tried
            self._run_backward, self._dx = record(backward, backward)

    def forward(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, int]:
        """(what the layers make of x, the number of this pass)."""
        self._x.copy_(x)
        for mine, given in zip(self._rotary, rotary, strict=True):
            mine.copy_(given)
        self._run_forward()
        self._passes += 1
        return self._out, self._passes

    def backward(self, grad: Tensor, number: int) -> Tensor:
        # What layers kept is that of the newest pass.
        if number != self._passes:
            raise RuntimeError("a recorded pass was made before the gradients of the one before were taken")
        self._grad.copy_(grad)
        self._run_backward()
        return self._dx


class _RecordedPass(torch.autograd.Function):
    """`weight`: any that is learned, so that there is a backward pass where x has no gradient. All get theirs in it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, recording: Recording, rotary: Rotary, weight: Tensor | None) -> Tensor:
        out, ctx.number = recording.forward(x, rotary)
        ctx.recording = recording
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # Not held any longer: what comes of the pass may outlive the recording.
        recording, ctx.recording = ctx.recording, None
        dx = recording.backward(grad, ctx.number)
        return dx.view_as(dx), None, None, None


Key = tuple[int, bool]
"""Tokens of a pack, whether gradients are wanted."""


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
        """The next pass is not recorded."""
        self._seen.clear()

    @property
    def most_tokens(self) -> int:
        """Of a pack that can be recorded; 0 where none can."""
        tokens = int(MEMORY_SHARE * self._memory_bytes) // (self._layers[0].kept_bytes * len(self._layers))
        return tokens // _grain(tokens) * _grain(tokens)

    def size_for(self, pack: Pack) -> int | None:
        """What to fill the pack up to, so that it can go through a recording; None where it is better run as it is.

        Also for the pass that is not recorded because it is the first: gradients of weights are sums over all tokens,
        whose last bits depend on how many there are, and a run that is resumed has its first pass elsewhere.
        """
        tokens = capacity(len(pack.token_ids))
        if tokens > self.most_tokens:
            return None
        learns = torch.is_grad_enabled()
        if learns and not all(layer.sums.stays(weight) for layer in self._layers for weight in layer.parameters()):
            return None
        return tokens

    def __call__(self, x: Tensor, rotary: Rotary, pack: Pack) -> Tensor | None:
        """[T, S], of a pack that was filled up; None where it is to be run without a recording.

        It is where it has too many segments, and in the first pass of its kind: kernels are compiled then, and what
        does not fit is found out.
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
        """Packs that grow would each need memory of their own: pieces that a smaller one left are too small for them.

        The other way round they fit. So the largest comes first, and smaller ones are recorded again when needed.
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
        """Those that are learned."""
        return (weight for layer in self._layers for weight in layer.parameters())


def weight_addresses(layers: Sequence[StraightLayer]) -> list[tuple[object, ...]]:
    """Where everything is that a recording reads or adds to."""
    return [layer.addresses() for layer in layers]
