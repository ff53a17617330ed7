"""The output head of a model: hidden states in, logprobs out, without the logits of all tokens at once."""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.algo.logprobs import CHUNK_BYTES, CPU_CHUNK_BYTES, Rows, chunk_tokens_of, chunked_logprobs, head_logprobs
from groupwise.data.batch import Rectangle
from groupwise.data.pack import Pack
from groupwise.models.families import has_plain_logits, logit_factor, logit_softcap
from groupwise.models.memory_limits import CHUNK_SHARE
from groupwise.models.optimizer import GradientSums
from groupwise.models.placement import device_bytes


def has_plain_head(model: Any) -> bool:
    """Whether the head is a single matrix, in bf16 if on a GPU: no bias, adapter, quantization, scale or soft cap."""
    head = model.get_output_embeddings()
    dtypes = (torch.bfloat16,) if model.device.type == "cuda" else (torch.bfloat16, torch.float32)
    is_matrix = type(head) is nn.Linear and head.bias is None and head.weight.dtype in dtypes
    return is_matrix and has_plain_logits(model.config.get_text_config())


def finish_logits(config: Any, logits: Tensor) -> Tensor:
    """Apply what a configuration does to the product with the head's matrix: a factor and a soft cap."""
    factor, softcap = logit_factor(config), logit_softcap(config)
    logits = logits if factor == 1 else logits * factor
    return torch.tanh(logits / softcap) * softcap if softcap else logits


class Head:
    """The head of a causal language model whose logits are a function of the last hidden states."""

    def __init__(self, model: Any, sums: GradientSums) -> None:
        self._sums = sums
        config = model.config.get_text_config()
        self._chunk_bytes = CPU_CHUNK_BYTES
        if model.device.type == "cuda":
            # Larger chunks make faster products, if there is memory for them.
            share = int(device_bytes(model.device) * CHUNK_SHARE)
            self._chunk_bytes = min(max(CHUNK_BYTES, share), 4 * CHUNK_BYTES)
        self._finish = partial(finish_logits, config)
        self._is_linear = logit_factor(config) == 1 and not logit_softcap(config)

    def logprobs(self, model: Any, hidden: Tensor, token_ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Return (logprobs, entropies) of tokens [N], predicted from hidden states [N, D]."""
        head = model.get_output_embeddings()
        if type(head) is nn.Linear and head.bias is None and self._is_linear:
            size = chunk_tokens_of(head.weight.shape[0], self._chunk_bytes)
            return head_logprobs(
                hidden, head.weight, token_ids, temperature, size, _rows(hidden), self._sums.of(head.weight)
            )
        vocab = model.config.get_text_config().vocab_size
        return chunked_logprobs(lambda part: self._finish(head(part)), hidden, token_ids, temperature, vocab)

    @torch.no_grad()
    def is_right(self, model: Any) -> bool:
        """Whether the model's own forward gives the same logits. Some models do more to them than this class knows."""
        ids = torch.arange(1, 5, device=model.device)[None]
        output = model(input_ids=ids, use_cache=False)
        hidden = getattr(model.get_decoder()(input_ids=ids, use_cache=False), "last_hidden_state", None)
        if hidden is None:  # Llama 4 returns the whole model, whose output are logits.
            return False
        ours = self._finish(model.get_output_embeddings()(hidden)).float()
        tolerance = 1e-4 if model.dtype == torch.float32 else 1e-2
        return torch.allclose(ours, output.logits.float(), rtol=tolerance, atol=tolerance)


def _rows(hidden: Tensor) -> Rows | None:
    if not hidden.is_cuda:
        return None
    from groupwise.kernels.output_head import TritonRows

    return TritonRows()


def padded_hidden(model: Any, inputs: Rectangle) -> Tensor:
    """Return [N, D]: the hidden state that each completion token is predicted from."""
    return predicting(inputs, model.get_decoder()(**_named(inputs)).last_hidden_state)


def predicting(inputs: Rectangle | Pack, states: Tensor) -> Tensor:
    """Return [N, D] of [B, T, D]: what belongs to the positions that completion tokens are predicted from."""
    if isinstance(inputs, Pack):
        return states[0, inputs.predicts]
    columns = inputs.completion_mask.shape[1]
    # The state of column t predicts the token in column t + 1.
    return states[:, -columns - 1 : -1][inputs.completion_mask]


def own_logits(model: Any, inputs: Rectangle) -> Tensor:
    """Return [N, V]: the model's own logits, all at once, for models with an unknown head."""
    columns = inputs.completion_mask.shape[1]
    kept = {"logits_to_keep": columns + 1} if "logits_to_keep" in signature(model.forward).parameters else {}
    logits: Tensor = model(**_named(inputs), **kept).logits
    return logits[:, -columns - 1 : -1][inputs.completion_mask]


def _named(inputs: Rectangle) -> dict[str, Any]:
    named = {"input_ids": inputs.input_ids, "use_cache": False}
    if inputs.attention_mask is not None:
        named |= {"attention_mask": inputs.attention_mask, "position_ids": inputs.position_ids}
    return named
