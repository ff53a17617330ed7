"""Tokens are compared over the whole step, and what is chosen survives microbatches, updates and checkpoints."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from groupwise.data.batch import Example, StepBatch, batch_from_json, batch_to_json, make_microbatches
from groupwise.training.token_choice import choose_tokens
from tests.factories import tiny_stage

LOGPROBS = ([-1.0, -3.0], [-0.5], [-2.0, -0.1, -4.0])
ENTROPIES = ([0.5, 2.0], [0.1], [1.5, 0.3, 1.0])
ADVANTAGES = (2.0, -1.0, -1.0)
POLICY: Any = SimpleNamespace(
    measure=lambda examples, temperature, max_tokens: [(torch.zeros(len(row)), torch.tensor(row)) for row in ENTROPIES]
)


def make_examples() -> list[Example]:
    return [
        Example(
            prompt_ids=(1,),
            completion_ids=tuple(range(len(row))),
            problem_index=index,
            advantages=torch.full((len(row),), advantage),
            old_logprobs=torch.tensor(row),
        )
        for index, (row, advantage) in enumerate(zip(LOGPROBS, ADVANTAGES, strict=True))
    ]


def chosen(**entropy: float) -> list[Example]:
    stage = tiny_stage("grpo", loss={"pull": 0.5}, entropy=entropy)
    return choose_tokens(stage, POLICY, make_examples(), key=("rl", 3))


def lists(tensors: list[Any]) -> list[Any]:
    return [None if tensor is None else tensor.tolist() for tensor in tensors]


def test_nothing_is_chosen_unless_asked() -> None:
    policy: Any = None
    assert choose_tokens(tiny_stage("grpo"), policy, [], key=()) == []
    for example in choose_tokens(tiny_stage("grpo"), policy, make_examples(), key=()):
        assert example.learned_tokens is None
        assert example.pulled_tokens is None


def test_entropies_are_compared_over_the_step() -> None:
    """Half of six tokens: 2.0, 1.5 and 1.0 nats."""
    examples = chosen(top_share=0.5)
    assert lists([example.learned_tokens for example in examples]) == [[0, 1], [0], [1, 0, 1]]
    assert lists([example.pulled_tokens for example in examples]) == [None] * 3


def test_covariances_are_those_of_the_step() -> None:
    """Means: logprobs −10.6 / 6 = −1.77, advantages 0. Covariances 1.53 −2.47 −1.27 0.23 −1.67 2.23."""
    assert lists([one.pulled_tokens for one in chosen(pull_share=0.4)]) == [[1, 0], [0], [0, 0, 1]]
    both = chosen(top_share=0.5, covariance_share=0.9, covariance_low=2.0, covariance_high=3.0)
    assert lists([one.learned_tokens for one in both]) == [[0, 1], [0], [1, 0, 0]]


def test_choices_reach_the_microbatches_in_their_order() -> None:
    examples = chosen(top_share=0.5, pull_share=0.4)
    for max_tokens in (1, 6, 100):
        found = {}
        for batch in make_microbatches(examples, [1.0] * 3, max_tokens, torch.device("cpu")):
            assert batch.learned_tokens is not None
            assert batch.pulled_tokens is not None
            rows = zip(
                batch.example_indices,
                batch.learned_tokens.split(list(batch.lengths)),
                batch.pulled_tokens.split(list(batch.lengths)),
                strict=True,
            )
            found |= {index: (learned.tolist(), pulled.tolist()) for index, learned, pulled in rows}
        assert found == {0: ([0, 1], [1, 0]), 1: ([0], [0]), 2: ([1, 0, 1], [0, 0, 1])}


def test_choices_survive_a_checkpoint() -> None:
    batch = StepBatch((), chosen(top_share=0.5), {}, 6)
    table = batch_to_json(batch)
    again = batch_from_json(table)
    assert lists([one.learned_tokens for one in again.examples]) == [[0, 1], [0], [1, 0, 1]]
    assert again.examples[0].pulled_tokens is None
    for entry in table["examples"]:  # as written by a version that had no choices
        del entry["learned_tokens"], entry["pulled_tokens"]
    assert batch_from_json(table).examples[2].learned_tokens is None
