"""What is said when a stage cannot fit. (The trying itself needs a GPU: tests/gpu.)"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from groupwise.config import RlStage
from groupwise.training import rehearsal
from groupwise.training.rehearsal import DoesNotFit, rehearse
from tests.factories import tiny_stage


def try_with(monkeypatch: pytest.MonkeyPatch, room: int, max_tokens: int, can_abandon: bool = True) -> list[int]:
    """Rehearse where microbatches of up to `room` tokens fit; which sizes were tried."""
    tried: list[int] = []

    def fits(policy: Any, stage: RlStage, prompt_tokens: int, tokens: int) -> bool:
        tried.append(tokens)
        length = prompt_tokens + stage.sampling.max_new_tokens
        return max(1, tokens // length) * length <= room

    monkeypatch.setattr(rehearsal, "_fits", fits)
    policy: Any = SimpleNamespace(device=torch.device("cuda"), can_abandon=can_abandon)
    rehearse(policy, tiny_stage(sampling={"max_new_tokens": 800}, microbatch_tokens=max_tokens), 200)
    return tried


def test_what_fits_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert try_with(monkeypatch, room=20_000, max_tokens=16_384) == [16_384]


def test_the_error_names_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DoesNotFit) as refused:
        try_with(monkeypatch, room=5_000, max_tokens=16_384)
    message = str(refused.value)
    assert "16 × (200 prompt + 800 new) = 16,000 tokens" in message
    assert "microbatch_tokens = 4,096 fits" in message


def test_the_error_says_when_nothing_would(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DoesNotFit, match=r"Even a single sequence of 1,000 tokens does not.*gradient_checkpointing"):
        try_with(monkeypatch, room=500, max_tokens=4_000)


def test_the_error_says_when_smaller_ones_could_not_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DoesNotFit, match="microbatch_tokens = 2,000, with the same gradient"):
        try_with(monkeypatch, room=500, max_tokens=4_000, can_abandon=False)
    assert try_with(monkeypatch, room=4_000, max_tokens=4_000, can_abandon=False) == [4_000]


def test_on_a_cpu_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "_fits", None)
    policy: Any = SimpleNamespace(device=torch.device("cpu"))
    rehearse(policy, tiny_stage(), 1)
