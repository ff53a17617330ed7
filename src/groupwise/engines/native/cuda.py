"""The runner on a GPU: kernels for attention, norms and drawing, and one captured graph per number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from groupwise.engines.native.runner import Piece, Runner
from groupwise.engines.sampling import truncate
from groupwise.kernels import attention as kernels
from groupwise.kernels.drawing import draw_and_advance
from groupwise.kernels.head import fp32_logits, has_plain_head
from groupwise.kernels.seam import AttentionForm, attending
from groupwise.types import SamplingParams


class CudaRunner(Runner):
    def __init__(self, model: Any, **sizes: int) -> None:
        super().__init__(model, **sizes)
        self._graphs: dict[tuple[Any, ...], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._has_plain_head = has_plain_head(model)

    def _prefill_step(self, pieces: Sequence[Piece], positions: Sequence[int]) -> Any:
        return CudaPrefill(self, pieces)

    def head(self, hidden: Tensor) -> Tensor:
        if not self._has_plain_head:
            return super().head(hidden)
        return fp32_logits(hidden, self._head.weight)

    @torch.inference_mode()
    def decode(self, num_rows: int, num_steps: int, sampling: SamplingParams, stops: Tensor) -> None:
        graph = self._graph(min(graph_size(num_rows), self.num_rows), sampling, stops)
        for _ in range(num_steps):
            graph.replay()

    def _graph(self, num_rows: int, sampling: SamplingParams, stops: Tensor) -> torch.cuda.CUDAGraph:
        form = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        key = (num_rows, *form, stops.data_ptr())
        if key not in self._graphs:
            self._graphs[key] = self._capture(num_rows, sampling, stops)
        return self._graphs[key]

    def _capture(self, num_rows: int, sampling: SamplingParams, stops: Tensor) -> torch.cuda.CUDAGraph:
        # Warming up must not move the rows on: with all of them done, a step changes nothing that lasts.
        is_done = self.rows.is_done.clone()
        self.rows.is_done.fill_(1)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with attending(self.model, CudaDecode(self, num_rows)):
            with torch.cuda.stream(stream):
                self._step(num_rows, sampling, stops)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                self._step(num_rows, sampling, stops)
        self.rows.is_done.copy_(is_done)
        return graph

    def _step(self, num_rows: int, sampling: SamplingParams, stops: Tensor) -> None:
        logits = self.logits(num_rows)
        temperature = sampling.temperature
        if temperature and (sampling.top_k or sampling.top_p < 1 or sampling.min_p):
            logits = truncate(logits / temperature, sampling.top_k, sampling.top_p, sampling.min_p)
            temperature = 1.0
        draw_and_advance(logits, self.rows, stops, temperature)


def graph_size(num_rows: int) -> int:
    """The number of rows to run for `num_rows`: few sizes to capture, few idle rows to run."""
    if num_rows <= 8:
        return 1 << (num_rows - 1).bit_length()
    step = 8 if num_rows <= 32 else 16 if num_rows <= 64 else 32 if num_rows <= 256 else 64 if num_rows <= 512 else 128
    return -(-num_rows // step) * step


class CudaPrefill:
    def __init__(self, runner: CudaRunner, pieces: Sequence[Piece]) -> None:
        self._cache = runner.cache
        self._places = runner.places(pieces)
        width = max(len(piece.blocks) for piece in pieces)
        tables = [[*piece.blocks, *[0] * (width - len(piece.blocks))] for piece in pieces]
        self._tables = torch.tensor(tables, device=runner.device, dtype=torch.int32)
        tiles, start = [], 0
        for row, piece in enumerate(pieces):
            count = len(piece.token_ids)
            for offset in range(0, count, kernels.QUERY_TILE):
                length = min(kernels.QUERY_TILE, count - offset)
                tiles.append((row, start + offset, piece.position + offset, length))
            start += count
        columns = torch.tensor(tiles, device=runner.device, dtype=torch.int32).t().contiguous()
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
    def __init__(self, runner: CudaRunner, num_rows: int) -> None:
        self._runner = runner
        self._num_rows = num_rows

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        runner, rows = self._runner, self._runner.rows
        count, heads, _, size = query.shape
        kv_heads = key.shape[1]
        keys, values = runner.cache[layer]
        out = kernels.decode_attention(
            query.reshape(count, heads, size), key.reshape(count, kv_heads, size), value.reshape(count, kv_heads, size),
            (keys, values), rows.tables, rows.positions, rows.is_done,
            scale=form.scale, softcap=form.softcap, window=form.window,
        )  # fmt: skip
        return out[:, None]
