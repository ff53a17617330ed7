"""The runner on a GPU: kernels for attention, norms and sampling, and one captured graph per number of rows.

Families that decode straight (models/families.py) go through `StraightDecoder`, prefill included, with all large
buffers in memory that `sleep` releases while the graphs stay valid. Other models run their own forward: decode steps in
graphs, unless they keep states, and prefill without.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from groupwise.engines.native.decode import DecodeProgress, Look, Piece, Runner
from groupwise.engines.native.decoder import StraightDecoder, is_straight
from groupwise.engines.native.schedule import BLOCK_TOKENS
from groupwise.engines.native.states import Layout, Shape
from groupwise.engines.sampling import truncate
from groupwise.kernels import attention as kernels
from groupwise.kernels.drawing import draw_and_advance
from groupwise.kernels.output_head import fp32_logits
from groupwise.kernels.seam import AttentionForm, UnsupportedModel, attending
from groupwise.models.device_memory import DeviceMemoryError, ReleasableMemory
from groupwise.models.head import has_plain_head
from groupwise.types import SamplingParams

MAX_GRAPHS = 64
"""Maximum number of graphs; the least recently used one is dropped."""
MAX_PIECES = 128
"""Maximum number of pieces of prompts in one prefill."""


class CudaRunner(Runner):
    looks_ahead = 1
    steps_per_look = 4
    entry_share = 1 / 16
    spare_blocks = 1  # for the padding of a prefill

    def __init__(self, model: Any, layout: Layout, *, prefill_tokens: int, **sizes: int) -> None:
        if any(keys != values for keys, values in layout.attention.values()):
            raise UnsupportedModel("keys and values differ in size, which the kernels for a GPU do not take")
        self._memory = ReleasableMemory(model.device)
        super().__init__(model, layout, prefill_tokens=prefill_tokens, **sizes)
        self._graphs: OrderedDict[tuple[Any, ...], torch.cuda.CUDAGraph] = OrderedDict()
        self._pool = torch.cuda.graph_pool_handle()
        self._reader = torch.cuda.Stream()
        self._straight: StraightDecoder | None = None
        if is_straight(model):
            tokens = max(prefill_tokens, self.slots.num_slots)
            self._straight = StraightDecoder(model, tokens, self.row_tokens, self._memory.tensor)
            self._inputs = PrefillInputs(prefill_tokens, self.slots.tables.shape[1], self.device)
        self._logits: Tensor | None = None
        if has_plain_head(model):
            self._logits = self._memory.tensor((self.slots.num_slots, self._head.weight.shape[0]), torch.float32)

    def _allocate(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        return self._memory.tensor(shape, dtype)

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) + self._memory.num_bytes

    def sleep(self) -> None:
        self._memory.release()

    def wake(self) -> bool:
        try:
            self._memory.restore()
        except DeviceMemoryError as error:
            if not error.is_out_of_memory:
                raise
            return False
        return True

    # -- prefill --

    @torch.inference_mode()
    def prefill(self, pieces: Sequence[Piece]) -> None:
        if self._straight is None:
            super().prefill(pieces)
            return
        for first in range(0, len(pieces), MAX_PIECES):
            some = pieces[first : first + MAX_PIECES]
            count = sum(len(piece.token_ids) for piece in some)
            size = min(self.prefill_tokens, max(64, 1 << (count - 1).bit_length()))
            scratch = self.num_blocks * BLOCK_TOKENS
            self._inputs.fill(some, self.places(some), size, scratch)
            self._graph(("prefill", size), partial(self._prefill_straight, size)).replay()

    def _prefill_straight(self, size: int) -> None:
        assert self._straight is not None
        self._straight(self._inputs.token_ids[:size], StraightPrefill(self, self._inputs, size))

    def _prefill_step(self, pieces: Sequence[Piece]) -> Any:
        return CudaPrefill(self, pieces)

    # -- decode --

    @torch.inference_mode()
    def decode(self, slots: Sequence[int], num_steps: int, sampling: SamplingParams, stops: Tensor) -> None:
        num_rows = min(graph_size(len(slots)), self.slots.num_slots)
        form = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        key = (num_rows, *form, stops.data_ptr())
        if key not in self._graphs:
            self.slots.arrange(())  # a step runs once before it is captured: on no slot
        graph = self._graph(key, lambda: self._step(num_rows, sampling, stops))
        self.slots.arrange(slots)
        for _ in range(num_steps):
            graph.replay()

    def _graph(self, key: tuple[Any, ...], work: Callable[[], None]) -> torch.cuda.CUDAGraph | Uncaptured:
        if self.states:
            return Uncaptured(work)
        if key not in self._graphs:
            if len(self._graphs) >= MAX_GRAPHS:
                torch.cuda.synchronize()
                self._graphs.popitem(last=False)
            self._graphs[key] = self._capture(work)
        self._graphs.move_to_end(key)
        return self._graphs[key]

    def _capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        return graph

    def _step(self, num_rows: int, sampling: SamplingParams, stops: Tensor) -> None:
        if self._straight is None:
            with attending(self.model, CudaDecode(self)):
                logits = self.logits(num_rows)
        else:
            order = self.slots.order[:num_rows]
            logits = self.head(self._straight(self.slots.tokens.index_select(0, order), CudaDecode(self)))
        temperature = sampling.temperature
        is_truncated = bool(temperature and (sampling.top_k or sampling.top_p < 1 or sampling.min_p))
        if is_truncated:
            log_p = (logits / temperature).log_softmax(dim=-1)
            logits = truncate(log_p, sampling.top_k, sampling.top_p, sampling.min_p)
            temperature = 1.0
        draw_and_advance(logits, self.slots, stops, temperature, reports_logits=is_truncated)

    def head(self, hidden: Tensor) -> Tensor:
        if self._logits is None:
            return super().head(hidden)
        return fp32_logits(hidden, self._head.weight, out=self._logits[: hidden.shape[0]])

    # -- results --

    def look(self) -> Look:
        progress = torch.empty(self.slots.progress.shape, dtype=torch.int64, pin_memory=True)
        progress.copy_(self.slots.progress, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return CudaLook(progress, event)

    def drawn(self, slots: Sequence[int]) -> tuple[list[list[int]], list[list[float]]]:
        # On its own stream: the data was written before the preceding look, and steps continue meanwhile.
        with torch.cuda.stream(self._reader):
            return super().drawn(slots)


class Uncaptured:
    """A step of a model with states, whose own kernels may not be captured: it is launched each time."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


def graph_size(num_rows: int) -> int:
    """Return how many rows to run for `num_rows`: few sizes to capture, few idle rows to run."""
    if num_rows <= 8:
        return 1 << (num_rows - 1).bit_length()
    step = 8 if num_rows <= 32 else 16 if num_rows <= 64 else 32 if num_rows <= 256 else 64 if num_rows <= 512 else 128
    return -(-num_rows // step) * step


class CudaLook(Look):
    def __init__(self, progress: Tensor, event: torch.cuda.Event) -> None:
        super().__init__(progress)
        self._event = event

    def read(self) -> DecodeProgress:
        self._event.synchronize()
        return super().read()


class PrefillInputs:
    """Inputs of a captured prefill: tokens, their positions and places, and the tiles of queries."""

    def __init__(self, max_tokens: int, max_blocks: int, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self._tokens = zeros(3, max_tokens)
        self.token_ids, self.positions, self.places = self._tokens
        self._tiles = zeros(4, max_tokens // kernels.QUERY_TILE + MAX_PIECES, dtype=torch.int32)
        self.tables = zeros(MAX_PIECES, max_blocks, dtype=torch.int32)

    def tiles(self, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return (row, start, position, length) of each tile that a prefill of this size may have."""
        count = size // kernels.QUERY_TILE + min(size, MAX_PIECES)
        row, start, position, length = (column[:count] for column in self._tiles)
        return row, start, position, length

    def fill(self, pieces: Sequence[Piece], places: Sequence[int], size: int, scratch: int) -> None:
        """Fill in these pieces, and padding that is written to the place `scratch`."""
        token_ids = [token for piece in pieces for token in piece.token_ids]
        positions = [piece.position + offset for piece in pieces for offset in range(len(piece.token_ids))]
        missing = size - len(token_ids)
        padded = [token_ids + [0] * missing, positions + [0] * missing, [*places, *[scratch] * missing]]
        self._tokens[:, :size].copy_(_pinned(padded, torch.int64), non_blocking=True)
        tiles = query_tiles(pieces)
        width, most = self.tables.shape[1], self._tiles.shape[1]
        columns = [[*column, *[0] * (most - len(column))] for column in zip(*tiles, strict=True)]
        self._tiles.copy_(_pinned(columns, torch.int32), non_blocking=True)
        tables = [[*piece.blocks, *[0] * (width - len(piece.blocks))] for piece in pieces]
        self.tables[: len(tables)].copy_(_pinned(tables, torch.int32), non_blocking=True)


def _pinned(values: Sequence[Any], dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype, pin_memory=True)


def query_tiles(pieces: Sequence[Piece]) -> list[tuple[int, int, int, int]]:
    """Return (piece, start in the pack, position in the prompt, length) of each tile of queries."""
    tiles, start = [], 0
    for row, piece in enumerate(pieces):
        count = len(piece.token_ids)
        for offset in range(0, count, kernels.QUERY_TILE):
            length = min(kernels.QUERY_TILE, count - offset)
            tiles.append((row, start + offset, piece.position + offset, length))
        start += count
    return tiles


class StraightPrefill:
    def __init__(self, runner: CudaRunner, inputs: PrefillInputs, size: int) -> None:
        self._cache = runner.cache
        self._inputs = inputs
        self._size = size

    def attend_straight(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm, rotary: Any, out: Tensor
    ) -> None:
        keys, values = self._cache[layer]
        cos, sin, turned = rotary
        turned = turned.view(query.shape)
        positions, places = self._inputs.positions[: self._size], self._inputs.places[: self._size]
        kernels.rotate_and_store(query, key, value, (keys, values), positions, places, (cos, sin), turned)
        kernels.prefill_attention(
            turned, (keys, values), self._inputs.tables, self._inputs.tiles(self._size),
            scale=form.scale, softcap=form.softcap, window=form.window, out=out,
        )  # fmt: skip


class CudaPrefill:
    """Attention of a prefill for models that run their own forward."""

    def __init__(self, runner: CudaRunner, pieces: Sequence[Piece]) -> None:
        self._cache = runner.cache
        self._places = torch.tensor(runner.places(pieces), device=runner.device)
        width = max(len(piece.blocks) for piece in pieces)
        tables = [[*piece.blocks, *[0] * (width - len(piece.blocks))] for piece in pieces]
        self._tables = torch.tensor(tables, device=runner.device, dtype=torch.int32)
        columns = torch.tensor(query_tiles(pieces), device=runner.device, dtype=torch.int32).t().contiguous()
        self._tiles = (columns[0], columns[1], columns[2], columns[3])

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        keys, values = self._cache[layer]
        keys.flatten(0, 1)[self._places] = key[0].transpose(0, 1)
        values.flatten(0, 1)[self._places] = value[0].transpose(0, 1)
        packed = query[0].transpose(0, 1).contiguous()
        out = kernels.prefill_attention(
            packed, (keys, values), self._tables, self._tiles,
            scale=form.scale, softcap=form.softcap, window=form.window,
        )  # fmt: skip
        return out[None]


class CudaDecode:
    def __init__(self, runner: CudaRunner) -> None:
        self._runner = runner

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        count, heads, _, size = query.shape
        kv_heads = key.shape[1]
        keys, values = self._runner.cache[layer]
        out = kernels.decode_attention(
            query.reshape(count, heads, size), key.reshape(count, kv_heads, size), value.reshape(count, kv_heads, size),
            (keys, values), self._runner.slots, scale=form.scale, softcap=form.softcap, window=form.window,
        )  # fmt: skip
        return out[:, None]

    def attend_straight(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm, rotary: Any, out: Tensor
    ) -> None:
        keys, values = self._runner.cache[layer]
        cos, sin, _ = rotary
        kernels.decode_attention(
            query, key, value, (keys, values), self._runner.slots,
            scale=form.scale, softcap=form.softcap, window=form.window, rotary=(cos, sin), out=out,
        )  # fmt: skip
