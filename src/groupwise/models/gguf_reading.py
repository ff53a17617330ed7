"""Fast reading of GGUF files: inside `read_quickly`, one reader serves all of transformers.

transformers reads a file three times (configuration, tokenizer, weights), each time the vocabulary entry by entry
through numpy's memmap, where every access makes an object. gguf dequantizes sixteen rows at a time. Here the file is
read once, as a plain array over the same mapping, and tensors are dequantized in large pieces on all cores by gguf's
own functions. The result is the same bit for bit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy

PIECE_BLOCKS = 1 << 14
"""Blocks (of 32 or 256 weights) dequantized at once: large enough for numpy, small enough for many cores."""
TIED_DISTANCE = 0.15
"""Share of the norm. Q5_0 and Q8_0 of one matrix differ by 0.04 (Qwen2.5-Coder-0.5B), two matrices by about 1."""
TIED_ROWS = 256
"""Rows of a head that are compared if the weights are not read."""


def has_tied_head(path: str) -> bool:
    """Whether a file's output head is its embedding: missing, or equal in its first rows but for the quantization."""
    import gguf

    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    if "output.weight" not in tensors:
        return True
    head, embedding = (
        dequantize(tensors[name].data[:TIED_ROWS], tensors[name].tensor_type)
        for name in ("output.weight", "token_embd.weight")
    )
    return bool(numpy.linalg.norm(embedding - head) <= TIED_DISTANCE * numpy.linalg.norm(head))


@contextmanager
def read_quickly() -> Iterator[None]:
    """Replace what transformers imports from gguf. Not thread-safe."""
    import gguf

    class PlainReader(gguf.GGUFReader):
        @property
        def data(self) -> Any:
            return self._plain

        @data.setter
        def data(self, mapped: Any) -> None:
            self._plain = numpy.asarray(mapped)

    before = gguf.GGUFReader, gguf.dequantize
    gguf.GGUFReader, gguf.dequantize = cache(PlainReader), dequantize
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.dequantize = before


def dequantize(data: Any, kind: Any) -> Any:
    """Do what gguf.dequantize does, faster."""
    from gguf import GGML_QUANT_SIZES, quants

    blocks_of = getattr(getattr(quants, kind.name, None), "dequantize_blocks", None)
    block_weights, block_bytes = GGML_QUANT_SIZES[kind]
    if blocks_of is None or block_weights == 1:  # not quantized, or gguf has no function for its blocks
        return quants.dequantize(data, kind)
    blocks = numpy.asarray(data).reshape(-1, block_bytes)
    out = numpy.empty((len(blocks), block_weights), dtype=numpy.float32)

    def fill(start: int) -> None:
        piece = slice(start, start + PIECE_BLOCKS)
        out[piece] = blocks_of(blocks[piece])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(fill, range(0, len(blocks), PIECE_BLOCKS)):
            pass
    return out.reshape(*data.shape[:-1], -1)
