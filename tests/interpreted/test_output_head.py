"""Logprobs, entropies and their gradient, row by row, against torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from groupwise.algo.logprobs import TorchRows
from tests.interpreted.interpreter import INTERPRETED, runs

pytestmark = INTERPRETED


@runs("output_head._measure", "output_head._slope")
@pytest.mark.parametrize("vocab", [1, 9, 4096, 4097, 2 * 4096 + 5])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_rows_of_logits(vocab: int, temperature: float, fenced: Callable[[Tensor], Tensor]) -> None:
    """The last token is chosen, too, and logits of −inf are in one row; in the last, a whole tile of them."""
    from groupwise.kernels.output_head import TritonRows

    logits = torch.randn(5, vocab) * 4
    logits[2, 3:] = -float("inf")
    logits[4, :4096] = -float("inf") if vocab > 4096 else 0.0
    logits = fenced(logits)
    ids = torch.tensor([0, vocab - 1, min(2, vocab - 1), vocab // 2, vocab - 1])
    grad = torch.randn(5)
    mine, theirs = (rows.measure(logits.clone(), ids, temperature) for rows in (TritonRows(), TorchRows()))
    assert torch.equal(TritonRows().measure(logits, ids, temperature)[0], mine[0])
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    slope = TritonRows().slope(logits, ids, theirs[1], grad, temperature, torch.float32)
    plain = TorchRows().slope(logits.clone(), ids, theirs[1], grad, temperature, torch.float32)
    torch.testing.assert_close(slope, plain, rtol=1e-4, atol=1e-6)


@runs("output_head._measure", "output_head._slope")
def test_no_rows() -> None:
    from groupwise.kernels.output_head import TritonRows

    logits, none = torch.empty(0, 9), torch.empty(0)
    assert [len(each) for each in TritonRows().measure(logits, none.long(), 1.0)] == [0, 0, 0]
    assert TritonRows().slope(logits, none.long(), none, none, 1.0, torch.float32).shape == (0, 9)
