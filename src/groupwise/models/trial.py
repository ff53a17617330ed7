"""A trial of a model on random ids, before it is trained: which ways to run it give what its own forward gives.

Contract: it needs no list of architectures, changes no weight and draws nothing from torch's global generator. A model
that cannot be trained and sampled from token by token is refused with a ConfigError that names its class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from groupwise.algo.logprobs import token_logprobs
from groupwise.base.text_layout import first_line
from groupwise.config.build import ConfigError
from groupwise.data.batch import Example, Rectangle, make_microbatches
from groupwise.data.pack import Pack
from groupwise.kernels.seam import attending
from groupwise.models.agreement import gap_between, rounding_gap
from groupwise.models.fused import packed_hidden
from groupwise.models.head import Head, own_logits, padded_hidden

T = TypeVar("T")
_LENGTHS = ((9, 7), (7, 2), (2, 6))
"""Tokens of prompt and completion: much padding, and one row without any."""


class Form(NamedTuple):
    """How the trainer runs a model."""

    has_known_head: bool
    """Logits are what `Head` makes of the last hidden states. Otherwise the model's own forward makes them."""
    is_padded: bool
    """Rows of different lengths share a rectangle. Otherwise each row goes alone, without mask and positions."""


class Unusable(Exception):
    """The code of a model raised an error: it was not written for this use."""


def attempt(work: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Call foreign code. What it raises if it was not written for such a use becomes `Unusable`."""
    try:
        return work(*arguments, **named)
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise Unusable(first_line(error)) from error


@torch.no_grad()
def find_form(model: Any, head: Head) -> Form:
    """Return the fastest form that is right. Call it in eval mode, where two passes over the same ids are equal."""
    ids = _random_ids(model)
    rounding = check_causal(model, ids.to(model.device))
    examples = [
        Example(tuple(row[:start]), tuple(row[start : start + count]))
        for row, (start, count) in zip(ids.tolist(), _LENGTHS, strict=True)
    ]
    try:
        has_known_head = attempt(head.is_right, model)
    except Unusable:
        has_known_head = False

    def logprobs(is_padded: bool) -> Tensor:
        found = []
        for batch in make_microbatches(examples, [1.0] * 3, 3 * 16, model.device, is_padded=is_padded):
            assert isinstance(batch.inputs, Rectangle)
            if has_known_head:
                hidden = padded_hidden(model, batch.inputs)
                found.append(head.logprobs(model, hidden, batch.completion_ids, 1.0)[0])
            else:
                found.append(token_logprobs(own_logits(model, batch.inputs), batch.completion_ids, 1.0))
        return torch.cat(found)

    try:
        gap = float((attempt(logprobs, True) - logprobs(False)).abs().mean())
    except Unusable:
        return Form(has_known_head, is_padded=False)
    # Rounding is measured as well, because it grows with depth. A form that is refused in error is only slower.
    floor = 1e-5 if model.dtype == torch.float32 else 5e-3
    return Form(has_known_head, is_padded=gap <= max(floor, 1.5 * rounding))


@torch.no_grad()
def has_right_packs(model: Any, head: Head) -> bool:
    """Whether a pack gives what each sequence alone gives, so that nothing leaks from one to the next."""
    ids = _random_ids(model).tolist()
    # Two completions of one prompt, and another sequence.
    pairs = [(ids[0][:9], ids[0][9:]), (ids[0][:9], ids[1][:4]), (ids[2][:5], ids[2][5:])]
    examples = [Example(tuple(prompt), tuple(completion)) for prompt, completion in pairs]

    def logprobs(max_tokens: int, **how: bool) -> Tensor:
        found: dict[int, Tensor] = {}
        for batch in make_microbatches(examples, [1.0] * 3, max_tokens, model.device, **how):
            inputs = batch.inputs
            hidden = packed_hidden(model, inputs) if isinstance(inputs, Pack) else padded_hidden(model, inputs)
            rows, _ = head.logprobs(model, hidden, batch.completion_ids, 1.0)
            found |= dict(zip(batch.example_indices, rows.split(batch.lengths), strict=True))
        return torch.cat([found[index] for index in range(3)])

    try:
        alone = attempt(logprobs, 0, is_packed=False, is_padded=False)
        with attending(model):
            packed = attempt(logprobs, 3 * 16, is_packed=True)
    except Unusable:
        return False
    return gap_between(packed, alone).is_within(rounding_gap(model.dtype, model.device))


def _random_ids(model: Any) -> Tensor:
    num_ids = model.get_input_embeddings().weight.shape[0]
    return torch.randint(num_ids, (len(_LENGTHS), 16), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def check_causal(model: Any, ids: Tensor) -> float:
    """Return how much logits change with the tokens that follow, which is rounding. Refuse the model if it is more."""
    half = ids.shape[1] // 2
    try:
        gap = attempt(lambda: logit_gap(_logits(model, ids[:, :half]), _logits(model, ids)[:, :half]))
        if not gap <= largest_rounding(model):
            raise Unusable("what it predicts depends on tokens that follow")
    except Unusable as error:
        raise not_a_decoder(model, error) from error
    return gap


def _logits(model: Any, ids: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits


def logit_gap(logits: Tensor, expected: Tensor) -> float:
    """Return the difference of two distributions in nats, averaged over the vocabulary, at the worst position."""
    difference = logits.float().log_softmax(dim=-1) - expected.float().log_softmax(dim=-1)
    return difference.abs().mean(dim=-1).max().item()


def largest_rounding(model: Any) -> float:
    """Return the largest `logit_gap` that rounding explains."""
    return 1e-3 if model.dtype == torch.float32 else 0.25


def not_a_decoder(model: Any, reason: Unusable) -> ConfigError:
    return ConfigError(
        f"model.path: {type(model).__name__} cannot be sampled from token by token: {reason}; choose a causal language "
        "model (is_decoder = true in its config.json, where there is such a key)"
    )
