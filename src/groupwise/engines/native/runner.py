"""Runs the model for the engine: prefills prompts into the cache, and decodes one token for each of the first n rows.

    prefill:  packed tokens of several prompts, in chunks ──▶ keys and values in the prompts' blocks
    decode:   tokens[:n] ──model, attention over the cache──▶ logits ──draw──▶ tokens[:n], counts, is_done, out_*

On a GPU a decode step is one CUDA graph per n, captured when it is first needed; on a CPU it is the same code without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from groupwise.engines.native.attention import gather, may_see, plain_attention
from groupwise.engines.native.rows import Rows
from groupwise.engines.sampling import draw_tokens
from groupwise.kernels.seam import AttentionForm, attending
from groupwise.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Piece:
    """Some consecutive tokens of a prompt, to be prefilled."""

    token_ids: Sequence[int]
    position: int
    """Of the first of them."""
    blocks: Sequence[int]
    """All blocks of the prompt, in order."""


class Runner:
    """Holds the cache and the rows. `num_rows` rows of up to `row_tokens` tokens, `max_new_tokens` of them drawn."""

    def __init__(
        self, model: Any, *, num_blocks: int, block_tokens: int, num_rows: int, row_tokens: int, max_new_tokens: int
    ) -> None:
        self.model = model
        self.device = model.device
        self.block_tokens = block_tokens
        self.num_rows = num_rows
        self.row_tokens = row_tokens
        self.max_new_tokens = max_new_tokens
        self._decoder = model.get_decoder()
        self._head = model.get_output_embeddings()
        config = model.config.get_text_config()
        heads, size = cache_shape(config)
        self._softcap = getattr(config, "final_logit_softcapping", None)
        shape = (config.num_hidden_layers, 2, num_blocks, block_tokens, heads, size)
        self.num_blocks = num_blocks
        self.cache = torch.zeros(shape, device=self.device, dtype=model.dtype)
        self.rows = Rows.make(num_rows, -(-row_tokens // block_tokens), max_new_tokens, self.device)

    @staticmethod
    def block_bytes(model: Any, block_tokens: int) -> int:
        config = model.config.get_text_config()
        heads, size = cache_shape(config)
        bytes_each = torch.finfo(model.dtype).bits // 8
        return int(config.num_hidden_layers * 2 * block_tokens * heads * size * bytes_each)

    def fits(self, num_rows: int, row_tokens: int, max_new_tokens: int) -> bool:
        has_rows = num_rows <= self.num_rows and row_tokens <= self.row_tokens
        return has_rows and max_new_tokens <= self.max_new_tokens

    # -- prefill --

    @torch.inference_mode()
    def prefill(self, pieces: Sequence[Piece]) -> None:
        """The pieces' keys and values, and nothing else: the first token is drawn by a decode step."""
        tokens = [token for piece in pieces for token in piece.token_ids]
        positions = [piece.position + offset for piece in pieces for offset in range(len(piece.token_ids))]
        ids = torch.tensor([tokens], device=self.device)
        with attending(self.model, self._prefill_step(pieces, positions)):
            self._decoder(input_ids=ids, position_ids=torch.tensor([positions], device=self.device), use_cache=False)

    def _prefill_step(self, pieces: Sequence[Piece], positions: Sequence[int]) -> PlainPrefill:
        return PlainPrefill(self, pieces)

    def places(self, pieces: Sequence[Piece]) -> Tensor:
        """Where in the flattened blocks each packed token goes."""
        size = self.block_tokens
        found = [
            piece.blocks[position // size] * size + position % size
            for piece in pieces
            for position in range(piece.position, piece.position + len(piece.token_ids))
        ]
        return torch.tensor(found, device=self.device)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        if sources:
            pairs = torch.tensor([sources, targets], device=self.device)
            self.cache[:, :, pairs[1]] = self.cache[:, :, pairs[0]]

    # -- decode --

    @torch.inference_mode()
    def decode(self, num_rows: int, num_steps: int, sampling: SamplingParams, stops: Tensor) -> None:
        for _ in range(num_steps):
            self._decode_once(num_rows, sampling, stops)

    def _decode_once(self, num_rows: int, sampling: SamplingParams, stops: Tensor) -> None:
        rows = self.rows
        with attending(self.model, PlainDecode(self, num_rows)):
            logits = self.logits(num_rows)
        tokens, logprobs = draw_tokens(logits, sampling, rows.seeds[:num_rows], rows.counts[:num_rows])
        going = torch.nonzero(rows.is_done[:num_rows] == 0)[:, 0]
        tokens, logprobs, counts = tokens[going], logprobs[going], rows.counts[going]
        rows.out_tokens[going, counts] = tokens
        rows.out_logprobs[going, counts] = logprobs
        rows.counts[going] += 1
        rows.positions[going] += 1
        rows.tokens[going] = tokens
        is_last = (rows.counts[going] >= rows.limits[going]).int() * 2
        rows.is_done[going] = torch.where(torch.isin(tokens, stops), torch.ones_like(is_last), is_last)

    def logits(self, num_rows: int) -> Tensor:
        """[B, V] in fp32 for the next token of each of the first rows."""
        hidden = self._decoder(
            input_ids=self.rows.tokens[:num_rows, None],
            position_ids=self.rows.positions[:num_rows, None],
            use_cache=False,
        ).last_hidden_state[:, 0]
        return self.head(hidden)

    def head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._head(hidden).float()
        if self._softcap:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits


def cache_shape(config: Any) -> tuple[int, int]:
    """(key-value heads, head size)."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return heads, getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


class PlainPrefill:
    def __init__(self, runner: Runner, pieces: Sequence[Piece]) -> None:
        self._runner = runner
        self._pieces = pieces
        self._places = runner.places(pieces)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        keys, values = self._runner.cache[layer]
        keys.flatten(0, 1)[self._places] = key[0].transpose(0, 1)
        values.flatten(0, 1)[self._places] = value[0].transpose(0, 1)
        out, start = [], 0
        for piece in self._pieces:
            count, end = len(piece.token_ids), piece.position + len(piece.token_ids)
            table = torch.tensor([piece.blocks], device=query.device)
            seen_keys, seen_values = gather((keys, values), table, end)
            positions = torch.arange(piece.position, end, device=query.device)[:, None]
            seen = may_see(positions, torch.arange(end, device=query.device)[None], form.window)
            part = query[:, :, start : start + count]
            out.append(plain_attention(part, seen_keys, seen_values, seen[None, None], form))
            start += count
        return torch.cat(out, dim=2).transpose(1, 2)


class PlainDecode:
    def __init__(self, runner: Runner, num_rows: int) -> None:
        rows = runner.rows
        self._cache = runner.cache
        self._positions = rows.positions[:num_rows]
        self._tables = rows.tables[:num_rows]
        self._is_going = rows.is_done[:num_rows] == 0
        self._length = int(self._positions.max()) + 1
        size = runner.block_tokens
        blocks = self._tables.gather(1, (self._positions // size)[:, None])[:, 0]
        self._places = (blocks.long() * size + self._positions % size)[self._is_going]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        keys, values = self._cache[layer]
        keys.flatten(0, 1)[self._places] = key[self._is_going, :, 0]
        values.flatten(0, 1)[self._places] = value[self._is_going, :, 0]
        seen_keys, seen_values = gather((keys, values), self._tables, self._length)
        index = torch.arange(self._length, device=query.device)
        seen = may_see(self._positions[:, None], index[None], form.window)
        return plain_attention(query, seen_keys, seen_values, seen[:, None, None], form).transpose(1, 2)
