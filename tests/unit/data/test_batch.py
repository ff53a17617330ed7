from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.data.batch import Example, deal_problems, make_microbatches, weigh

CPU = torch.device("cpu")
sizes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=12)


def example(number: int, prompt: int, completion: int, problem: int = 0, is_learned: bool = True) -> Example:
    """Token ids and logprobs that name the example and the place: 1000 · number + place."""
    start = 1000 * (number + 1)
    place = torch.arange(completion).float()
    return Example(
        prompt_ids=tuple(range(start + 500, start + 500 + prompt)),
        completion_ids=tuple(range(start, start + completion)),
        problem_index=problem,
        advantages=number + place / 100,
        rollout_logprobs=-place,
        old_logprobs=-place - 1,
        ref_logprobs=-place - 2,
        is_learned=is_learned,
    )


@given(sizes=sizes, max_tokens=st.integers(1, 120))
def test_microbatches_hold_each_example_once_and_fit(sizes: list[tuple[int, int]], max_tokens: int) -> None:
    examples = [example(number, *size) for number, size in enumerate(sizes)]
    batches = make_microbatches(examples, [number + 0.5 for number in range(len(sizes))], max_tokens, CPU)
    assert sorted(index for batch in batches for index in batch.example_indices) == list(range(len(sizes)))
    lengths = [prompt + completion for prompt, completion in sizes]
    order = [index for batch in batches for index in batch.example_indices]
    assert [lengths[index] for index in order] == sorted(lengths, reverse=True)
    for batch in batches:
        assert batch.num_sequences == 1 or batch.inputs.input_ids.numel() <= max_tokens


@given(sizes=sizes, max_tokens=st.integers(1, 200))
def test_rows_hold_what_the_examples_hold(sizes: list[tuple[int, int]], max_tokens: int) -> None:
    examples = [example(number, *size) for number, size in enumerate(sizes)]
    for batch in make_microbatches(examples, [number + 0.5 for number in range(len(sizes))], max_tokens, CPU):
        columns = batch.inputs.completion_mask.shape[1]
        for row, index in enumerate(batch.example_indices):
            one = examples[index]
            ids = one.prompt_ids + one.completion_ids
            is_there = batch.inputs.attention_mask[row].bool()
            assert batch.inputs.input_ids[row][is_there].tolist() == list(ids)
            assert batch.inputs.position_ids[row][is_there].tolist() == list(range(len(ids)))
            # Every completion starts in the same column.
            mask = batch.inputs.completion_mask[row]
            assert batch.inputs.input_ids[row][-columns:][mask].tolist() == list(one.completion_ids)
            is_mine = batch.sequence == row
            assert batch.completion_ids[is_mine].tolist() == list(one.completion_ids)
            assert (batch.weights[is_mine] == index + 0.5).all()
            for name in ("advantages", "rollout_logprobs", "old_logprobs", "ref_logprobs"):
                assert torch.equal(getattr(batch, name)[is_mine], getattr(one, name))
        assert batch.num_tokens == sum(len(examples[index].completion_ids) for index in batch.example_indices)


def test_everything_fits_in_one_microbatch_when_there_is_room() -> None:
    examples = [example(number, 3, 4) for number in range(5)]
    assert len(make_microbatches(examples, [1.0] * 5, 35, CPU)) == 1
    assert len(make_microbatches(examples, [1.0] * 5, 34, CPU)) == 2
    assert len(make_microbatches(examples, [1.0] * 5, 1, CPU)) == 5
    assert len(make_microbatches([], [], 100, CPU)) == 0


def test_a_share_of_microbatches_is_made_of_the_same_rows() -> None:
    examples = [example(number, 3, number + 1) for number in range(6)]
    batches = make_microbatches(examples, [1.0] * 6, 1, CPU)
    assert [batch.example_indices for batch in batches[1::2]] == [batches[1].example_indices, (2,), (0,)]
    assert [batch.example_indices for batch in batches] == [(5,), (4,), (3,), (2,), (1,), (0,)]


def test_what_is_not_known_is_none() -> None:
    batch = make_microbatches([Example((1,), (2, 3))], [1.0], 100, CPU)[0]
    assert (batch.advantages, batch.rollout_logprobs, batch.old_logprobs, batch.ref_logprobs) == (None,) * 4


@pytest.mark.parametrize(
    ("rule", "weights", "denominator"),
    [
        ("sequence_mean", (1 / 2, 1 / 4), 3.0),
        ("token_mean", (1.0, 1.0), 9.0),
        ("sequence_sum", (1.0, 1.0), 3.0),
        ("constant", (1.0, 1.0), 30.0),
    ],
)
def test_weights_by_rule(rule: str, weights: tuple[float, ...], denominator: float) -> None:
    """Completions of 2, 4 and 3 tokens; the last is of a dead group: in the denominator only."""
    examples = [example(0, 1, 2), example(1, 1, 4), example(2, 1, 3, is_learned=False)]
    update = weigh(examples, rule, constant_length=10)
    assert update.examples == tuple(examples[:2])
    assert update.token_weights == weights
    assert update.denominator == denominator


def test_a_completion_without_tokens_counts_and_is_not_learned_from() -> None:
    update = weigh([example(0, 1, 2), Example((1,), ())], "sequence_mean")
    assert (len(update.examples), update.denominator) == (1, 2.0)


def test_an_update_of_nothing() -> None:
    update = weigh([], "token_mean")
    assert (update.examples, update.denominator) == ((), 1.0)


@given(
    num_problems=st.integers(1, 10),
    num_updates=st.integers(1, 4),
    key=st.integers(0, 5),
)
def test_updates_deal_out_each_problem_once(num_problems: int, num_updates: int, key: int) -> None:
    dealt = deal_problems(num_problems, num_updates, (key,))
    assert len(dealt) == num_updates
    assert sorted(index for row in dealt for index in row) == list(range(num_problems))
    counts = [len(row) for row in dealt]
    assert max(counts) - min(counts) <= 1


def test_the_deal_depends_on_the_key_alone() -> None:
    assert deal_problems(8, 4, (0, "epoch", 0)) == deal_problems(8, 4, (0, "epoch", 0))
    assert deal_problems(8, 4, (0, "epoch", 0)) != deal_problems(8, 4, (0, "epoch", 1))


def test_where_sequences_are_packed_only_tokens_count() -> None:
    examples = [Example((1,) * prompt, (2,) * new) for prompt, new in ((1, 31), (30, 2), (2, 3), (3, 3))]
    assert [batch.num_sequences for batch in make_microbatches(examples, [1.0] * 4, 71, CPU)] == [1, 2, 1]
    # 31 + 31 + 4 + 5: the last token of each predicts nothing.
    for max_tokens, rows in ((71, [4]), (70, [2, 2])):
        packed = make_microbatches(examples, [1.0] * 4, max_tokens, CPU, is_packed=True)
        assert [batch.num_sequences for batch in packed] == rows
