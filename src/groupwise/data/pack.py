"""Packs: completions back to back, preceded by the prompt that they continue, which is stored only once.

    ┌─────────┬──────────┬──────┬────────────┬───────┬─────────┐
    │ p p p p │ a a a a a│ b b  │ c c c c c c│ q q q │ d d d d │     a, b and c continue p, d continues q
    └─────────┴──────────┴──────┴────────────┴───────┴─────────┘

A token sees the prompt that it continues and the earlier tokens of its own segment. The last token of a completion
predicts nothing that is trained on, so it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from operator import itemgetter

import numpy
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Segment:
    """The tokens of one prompt or completion."""

    start: int
    length: int
    prompt_start: int
    prompt_length: int
    """Length of the prompt that it continues; 0 for a prompt."""
    seen_until: int
    """End of the tokens that see these: for a prompt, the end of the last completion that continues it."""


@dataclass(frozen=True, slots=True)
class Pack:
    token_ids: Tensor
    """[T]"""
    positions: Tensor
    """[T]"""
    predicts: Tensor
    """[N] place of the hidden state that each completion token is predicted from."""
    segments: tuple[Segment, ...]

    @property
    def shape(self) -> torch.Size:
        """[1, T], as the model gets it."""
        return self.token_ids[None].shape


TokenPair = tuple[tuple[int, ...], tuple[int, ...]]
"""Prompt and completion."""


def pack_rows(pairs: Sequence[TokenPair], max_tokens: int) -> list[list[int]]:
    """Assign rows to packs of at most `max_tokens` tokens, with completions of one prompt together.

    Packs have similar sizes, because a small last one would not fill the GPU. The largest comes first, so that memory
    runs out early if it does.
    """
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for row in sorted(range(len(pairs)), key=lambda row: (-len(pairs[row][1]), row)):
        by_prompt.setdefault(pairs[row][0], []).append(row)
    size = partial(_num_tokens, pairs)
    # Completions of one prompt that are too many for one pack are split.
    bundles = [part for rows in by_prompt.values() for part in fill(rows, size, max_tokens)]
    bundles.sort(key=lambda bundle: (-size(bundle), bundle[0]))
    sizes = list(map(size, bundles))
    count = max(1, -(-sum(sizes) // max_tokens))
    while (packs := _deal(sizes, count, max_tokens)) is None:
        count += 1
    return [[row for index in pack for row in bundles[index]] for pack in packs if pack]


def _deal(sizes: Sequence[int], count: int, max_tokens: int) -> list[list[int]] | None:
    """Distribute sizes over `count` packs of similar size, largest first; None if one would be too large."""
    packs: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for index, size in enumerate(sizes):
        place = min(range(count), key=loads.__getitem__)
        if packs[place] and loads[place] + size > max_tokens:
            return None
        packs[place].append(index)
        loads[place] += size
    return [packs[place] for place in sorted(range(count), key=lambda place: -loads[place])]


def fill(rows: Iterable[int], size: Callable[[Sequence[int]], int], max_size: int) -> list[list[int]]:
    """Cut rows, in their order, into runs of at most `max_size`, with at least one row each."""
    runs: list[list[int]] = []
    for row in rows:
        if not runs or size([*runs[-1], row]) > max_size:
            runs.append([])
        runs[-1].append(row)
    return runs


def _num_tokens(pairs: Sequence[TokenPair], rows: Sequence[int]) -> int:
    """Return the number of tokens of completions of one prompt."""
    return len(pairs[rows[0]][0]) + sum(max(0, len(pairs[row][1]) - 1) for row in rows)


def make_pack(pairs: Sequence[TokenPair], device: torch.device) -> Pack:
    """Make a pack of completions, where those of one prompt are adjacent."""
    segments: list[Segment] = []
    pieces: list[tuple[int, ...]] = []
    predicts: list[range] = []
    end = 0
    for prompt, continued in groupby(pairs, key=itemgetter(0)):
        prompt_start, prompt_end = end, end + len(prompt)
        pieces.append(prompt)
        end = prompt_end
        members: list[Segment] = []
        for _, whole in continued:
            completion = whole[:-1]
            if whole:
                # The prompt's last token predicts the first of each completion.
                predicts += [range(prompt_end - 1, prompt_end), range(end, end + len(completion))]
            if completion:
                members.append(Segment(end, len(completion), prompt_start, len(prompt), end + len(completion)))
                pieces.append(completion)
                end += len(completion)
        segments += [Segment(prompt_start, len(prompt), 0, 0, end), *members]
    positions = [range(part.prompt_length, part.prompt_length + part.length) for part in segments]
    return Pack(
        token_ids=send(whole_numbers(pieces), device),
        positions=send(whole_numbers(positions), device),
        predicts=send(whole_numbers(predicts), device),
        segments=tuple(segments),
    )


def whole_numbers(pieces: Iterable[Iterable[int]]) -> Tensor:
    """Return all pieces back to back, [N] int64. (`torch.tensor` takes ten times as long.)"""
    return torch.from_numpy(numpy.fromiter(chain.from_iterable(pieces), dtype=numpy.int64))


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without blocking: from pinned memory, the copy is queued."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
