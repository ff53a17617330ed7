"""From logits to the logprob of the token that was drawn, and the entropy of what it was drawn from.

Shapes: N tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor


def token_logprobs(logits_NV: Tensor, token_ids_N: Tensor, temperature: float) -> Tensor:
    """log π(token) at the sampling temperature, in fp32 whatever the logits are."""
    scaled = logits_NV.float() / temperature
    chosen = scaled.gather(1, token_ids_N[:, None])[:, 0]
    return chosen - scaled.logsumexp(dim=-1)


@torch.no_grad()
def token_entropy(logits_NV: Tensor, temperature: float, chunk_tokens: int = 1024) -> Tensor:
    """Entropy in nats, chunk by chunk: three copies of the logits at once would be the peak of the whole step."""
    chunks = [torch.zeros(0, device=logits_NV.device)]
    for logits in logits_NV.split(chunk_tokens):
        log_p = (logits.float() / temperature).log_softmax(dim=-1)
        chunks.append(-(log_p.exp() * log_p).nan_to_num(0.0).sum(dim=-1))
    return torch.cat(chunks)
