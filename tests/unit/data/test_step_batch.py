from __future__ import annotations

import dataclasses
import json
import struct

import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.data.batch import Example, StepBatch, batch_from_json, batch_to_json
from groupwise.types import (
    Finish,
    Group,
    Message,
    Problem,
    Prompt,
    Rollout,
    Score,
    ScoredGroup,
    UpdateStats,
    Verdict,
)


def round_trip(batch: StepBatch) -> StepBatch:
    return batch_from_json(json.loads(json.dumps(batch_to_json(batch))))


def assert_same_example(one: Example, other: Example) -> None:
    for spec in dataclasses.fields(Example):
        before, after = getattr(one, spec.name), getattr(other, spec.name)
        if isinstance(before, torch.Tensor):
            assert after.dtype == torch.float32
            assert torch.equal(before.view(torch.int32), after.view(torch.int32)), spec.name
        else:
            assert before == after
            assert type(before) is type(after)


def scored_group() -> ScoredGroup:
    problem = Problem("p1", (Message("user", "1 + 1 = ?"),), "2", {"level": 1, "numbers": [1, 1]})
    rollouts = (
        Rollout((1, 2), (-0.1, -1 / 3), "2 🎲 \ud800", Finish.STOP, 4),
        Rollout((), (), "", Finish.LENGTH, 4),
    )
    scores = (Score(1.1, Verdict.CORRECT, {"answer": 1.0}, "v/1", "2"), Score(0.0, Verdict.ERROR, {}, "v/1", "died"))
    return ScoredGroup(Group(Prompt(problem, (7, 8)), rollouts), scores, (1.1, 0.0), (0.1 + 0.2, 0.0), True)


def test_a_batch_in_flight_survives() -> None:
    values = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    examples = [
        Example((7, 8), (1, 2, 3), 1, 2, *values.unbind(), is_learned=False),
        Example((7,), (1,), 0, rollout_logprobs=torch.tensor([-0.1])),
    ]
    updates = [UpdateStats(0.1 + 0.2, 1e-300, True, 1e-6, 4, {"policy/ratio_mean": 1 / 3})]
    batch = StepBatch((scored_group(),), examples, {"reward/mean": 0.1, "time/sample_s": 2.0}, 17, updates)
    after = round_trip(batch)
    assert after.groups == batch.groups
    assert (after.metrics, after.num_tokens, after.updates) == (batch.metrics, batch.num_tokens, batch.updates)
    for one, other in zip(batch.examples, after.examples, strict=True):
        assert_same_example(one, other)


@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=30))
def test_every_finite_float32_survives_bit_for_bit(bits: list[int]) -> None:
    tensor = torch.tensor([struct.unpack("<f", struct.pack("<I", value))[0] for value in bits])
    tensor = tensor[tensor.isfinite()]
    examples = [Example((1,), tuple(range(len(tensor))), advantages=tensor)]
    after = round_trip(StepBatch((), examples, {}, 0)).examples[0]
    assert_same_example(examples[0], after)


def test_a_skipped_update_survives() -> None:
    """Its gradient norm is NaN or inf, and its loss may be."""
    updates = [UpdateStats(float("inf"), float("nan"), False, 1e-6, 3)]
    after = round_trip(StepBatch((), [], {}, 0, updates)).updates[0]
    assert after.loss == float("inf")
    assert after.grad_norm != after.grad_norm
    assert not after.is_finite


def test_a_batch_of_nothing_survives() -> None:
    assert round_trip(StepBatch((), [], {}, 0)) == StepBatch((), [], {}, 0)
