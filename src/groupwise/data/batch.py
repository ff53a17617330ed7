"""The data of a step: examples, updates with token weights and one denominator, and microbatches for the model.

Shapes: B rows, T tokens, N completion tokens of a microbatch back to back, row by row.

The model reads a pack (data/pack.py) or, if it cannot, a rectangle: prompts padded on the left, completions on the
right, so all completions start in the same column and the model computes logits for the completion columns only.

    ┌───────────┬────────────────┐
    │  · · p p p│ c c c c · ·    │     p prompt   c completion   · padding
    │  p p p p p│ c c · · · ·    │
    └───────────┴────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import Any, overload

import torch
from torch import Tensor

from groupwise.base.seeds import shuffled
from groupwise.data.pack import Pack, fill, make_pack, pack_rows, send, whole_numbers
from groupwise.runs.records import group_from_json, group_to_json
from groupwise.types import ScoredGroup, UpdateStats


@dataclass(frozen=True, slots=True)
class Example:
    """One completion to train on, with everything the loss needs. Tensors are [T] on the CPU."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    problem_index: int = 0
    """Index of its problem in the step. The rollouts of a problem go into the same update."""
    rollout_index: int = 0
    """Index among that problem's rollouts."""
    advantages: Tensor | None = None
    rollout_logprobs: Tensor | None = None
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    learned_tokens: Tensor | None = None
    """1 for tokens that the surrogate counts, 0 for others. None: it counts all."""
    pulled_tokens: Tensor | None = None
    """The same for the pull."""
    is_learned: bool = True
    """False: it counts in the denominator but adds nothing (a zero-variance group), so the model skips it."""

    @property
    def member(self) -> tuple[int, int]:
        """(problem_index, rollout_index), which identify a rollout of the step."""
        return self.problem_index, self.rollout_index


@dataclass(slots=True)
class StepBatch:
    groups: tuple[ScoredGroup, ...]
    examples: list[Example]
    metrics: dict[str, float]
    """Metrics of sampling and scoring."""
    num_tokens: int
    """Number of tokens that were sampled for it."""
    updates: list[UpdateStats] = field(default_factory=list)
    """Updates done so far."""


@dataclass(frozen=True, slots=True)
class Update:
    """The examples of one optimizer update."""

    examples: tuple[Example, ...]
    """Only examples with something to learn."""
    token_weights: tuple[float, ...]
    """Weight of each token of the example at the same index."""
    denominator: float
    """Divides the weighted sum. Counts all examples of the update, whether they are learned from or not."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    input_ids: Tensor
    """[B, T]"""
    attention_mask: Tensor | None
    """[B, T]. None: there is no padding, and the model finds the positions by itself."""
    position_ids: Tensor | None
    """[B, T], or None like the mask."""
    completion_mask: Tensor
    """[B, columns of completion] bool."""

    @property
    def shape(self) -> torch.Size:
        return self.input_ids.shape


@dataclass(frozen=True, slots=True)
class Microbatch:
    inputs: Rectangle | Pack
    completion_ids: Tensor
    """[N]"""
    lengths: tuple[int, ...]
    """Number of completion tokens of each row."""
    weights: Tensor
    """[N]"""
    sequence: Tensor
    """[N] long: row of each token."""
    advantages: Tensor | None
    """[N], like the next five."""
    rollout_logprobs: Tensor | None
    old_logprobs: Tensor | None
    ref_logprobs: Tensor | None
    learned_tokens: Tensor | None
    pulled_tokens: Tensor | None
    example_indices: tuple[int, ...]
    """Index of each row in the list that the microbatches were made from."""

    @property
    def num_sequences(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        return self.completion_ids.shape[0]


class Microbatches(Sequence[Microbatch]):
    """Microbatches that are made on access, while the GPU is busy with the previous one."""

    def __init__(self, batches: Sequence[Sequence[int]], make: Callable[[Sequence[int]], Microbatch]) -> None:
        self._batches = batches
        """Rows of each microbatch."""
        self._make = make

    def __len__(self) -> int:
        return len(self._batches)

    @overload
    def __getitem__(self, index: int) -> Microbatch: ...
    @overload
    def __getitem__(self, index: slice) -> Microbatches: ...
    def __getitem__(self, index: int | slice) -> Microbatch | Microbatches:
        if isinstance(index, slice):
            return Microbatches(self._batches[index], self._make)
        return self._make(self._batches[index])


def deal_problems(num_problems: int, num_updates: int, key: Sequence[object]) -> list[list[int]]:
    """Distribute the problems of a step over its updates, in an order that `key` determines."""
    order = shuffled(num_problems, *key)
    size, extra = divmod(num_problems, num_updates)
    bounds = [index * size + min(index, extra) for index in range(num_updates + 1)]
    return [order[start:stop] for start, stop in pairwise(bounds)]


def weigh(examples: Sequence[Example], rule: str, constant_length: int = 0) -> Update:
    """Return per-token weights and the denominator, which turn a sum over tokens into the algorithm's mean."""
    learned = [example for example in examples if example.is_learned and example.completion_ids]
    per_token = [1.0 / len(example.completion_ids) if rule == "sequence_mean" else 1.0 for example in learned]
    if rule == "token_mean":
        denominator = sum(len(example.completion_ids) for example in examples)
    elif rule == "constant":
        denominator = len(examples) * constant_length
    else:
        denominator = len(examples)
    return Update(tuple(learned), tuple(per_token), float(max(denominator, 1)))


def make_microbatches(
    examples: Sequence[Example],
    token_weights: Sequence[float],
    max_tokens: int,
    device: torch.device,
    *,
    is_packed: bool = False,
    is_padded: bool = True,
) -> Microbatches:
    """Make rectangles or packs of at most `max_tokens` cells or tokens, with at least one row each.

    With neither packs nor padding, each row goes alone. The largest comes first, so that memory runs out early if it
    does.
    """
    if is_packed:
        batches = pack_rows([(example.prompt_ids, example.completion_ids) for example in examples], max_tokens)
    else:
        batches = _rectangle_rows(examples, max_tokens if is_padded else 0)

    def make(rows: Sequence[int]) -> Microbatch:
        chosen = [examples[row] for row in rows]
        lengths = torch.tensor([len(example.completion_ids) for example in chosen])
        weights = torch.tensor([token_weights[row] for row in rows])
        if is_packed:
            inputs: Rectangle | Pack = make_pack([(one.prompt_ids, one.completion_ids) for one in chosen], device)
        else:
            inputs = _pad(chosen, device, is_padded=is_padded)
        return Microbatch(
            inputs=inputs,
            completion_ids=send(whole_numbers(example.completion_ids for example in chosen), device),
            lengths=tuple(lengths.tolist()),
            weights=send(weights.repeat_interleave(lengths), device),
            sequence=send(torch.arange(len(chosen)).repeat_interleave(lengths), device),
            advantages=_join([example.advantages for example in chosen], device),
            rollout_logprobs=_join([example.rollout_logprobs for example in chosen], device),
            old_logprobs=_join([example.old_logprobs for example in chosen], device),
            ref_logprobs=_join([example.ref_logprobs for example in chosen], device),
            learned_tokens=_join([example.learned_tokens for example in chosen], device),
            pulled_tokens=_join([example.pulled_tokens for example in chosen], device),
            example_indices=tuple(rows),
        )

    return Microbatches(batches, make)


def _rectangle_rows(examples: Sequence[Example], max_tokens: int) -> list[list[int]]:
    lengths = [(len(example.prompt_ids), len(example.completion_ids)) for example in examples]

    def num_cells(rows: Sequence[int]) -> int:
        return len(rows) * (max(lengths[row][0] for row in rows) + max(lengths[row][1] for row in rows))

    order = sorted(range(len(examples)), key=lambda row: (-sum(lengths[row]), row))
    return fill(order, num_cells, max_tokens)


def _pad(examples: Sequence[Example], device: torch.device, *, is_padded: bool) -> Rectangle:
    prompt_columns = max(len(example.prompt_ids) for example in examples)
    columns = max(len(example.completion_ids) for example in examples)
    input_ids = torch.zeros(len(examples), prompt_columns + columns, dtype=torch.long)
    attention_mask = torch.zeros_like(input_ids)
    completion_mask = torch.zeros(len(examples), columns, dtype=torch.bool)
    for row, example in enumerate(examples):
        start, stop = prompt_columns - len(example.prompt_ids), prompt_columns + len(example.completion_ids)
        input_ids[row, start:stop] = torch.tensor(example.prompt_ids + example.completion_ids)
        attention_mask[row, start:stop] = 1
        completion_mask[row, : len(example.completion_ids)] = True
    return Rectangle(
        input_ids=send(input_ids, device),
        attention_mask=send(attention_mask, device) if is_padded else None,
        position_ids=send((attention_mask.cumsum(dim=1) - 1).clamp(min=0), device) if is_padded else None,
        completion_mask=send(completion_mask, device),
    )


def _join(tensors: Sequence[Tensor | None], device: torch.device) -> Tensor | None:
    present = [tensor for tensor in tensors if tensor is not None]
    return send(torch.cat(present).float(), device) if len(present) == len(tensors) else None


def batch_to_json(batch: StepBatch) -> dict[str, Any]:
    """Convert to JSON values. Floats survive: JSON writes a float32 as a double that reads back unchanged."""
    return {
        "groups": [group_to_json(scored) for scored in batch.groups],
        "examples": [_example_to_json(example) for example in batch.examples],
        "metrics": batch.metrics,
        "num_tokens": batch.num_tokens,
        "updates": [asdict(stats) for stats in batch.updates],
    }


def batch_from_json(table: Mapping[str, Any]) -> StepBatch:
    return StepBatch(
        groups=tuple(group_from_json(entry) for entry in table["groups"]),
        examples=[_example_from_json(entry) for entry in table["examples"]],
        metrics=dict(table["metrics"]),
        num_tokens=table["num_tokens"],
        updates=[UpdateStats(**entry) for entry in table["updates"]],
    )


def _example_to_json(example: Example) -> dict[str, Any]:
    values = {spec.name: getattr(example, spec.name) for spec in fields(example)}
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in values.items()}


def _example_from_json(entry: Mapping[str, Any]) -> Example:
    values = dict(entry)
    for name, value in entry.items():
        if name.endswith("_ids"):
            values[name] = tuple(value)
        elif isinstance(value, list):
            values[name] = torch.tensor(value, dtype=torch.float32)
    return Example(**values)
