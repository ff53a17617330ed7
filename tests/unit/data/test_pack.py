"""Packs: each completion sees its prompt and itself, prompts are there once, and no token is lost."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.data.pack import TokenPair, make_pack, pack_rows

CPU = torch.device("cpu")
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
pairs = st.lists(st.tuples(prompts, st.lists(st.integers(3, 9), max_size=6).map(tuple)), min_size=1, max_size=12)


@given(pairs=pairs, max_tokens=st.integers(1, 40))
def test_each_row_is_in_one_pack_and_packs_hold_what_fits(pairs: list[TokenPair], max_tokens: int) -> None:
    packs = pack_rows(pairs, max_tokens)
    assert sorted(row for rows in packs for row in rows) == list(range(len(pairs)))
    for rows in packs:
        pack = make_pack([pairs[row] for row in rows], CPU)
        assert len(rows) == 1 or len(pack.token_ids) <= max_tokens
        # Rows of one prompt stand together, and so that prompt is there once.
        prompts = [segment for segment in pack.segments if segment.prompt_length == 0]
        assert len(prompts) == len({pairs[row][0] for row in rows})


@given(pairs=pairs)
def test_what_a_token_sees_is_its_own_sequence(pairs: list[TokenPair]) -> None:
    (rows,) = pack_rows(pairs, 10**6)
    chosen = [pairs[row] for row in rows]
    pack = make_pack(chosen, CPU)
    ids = pack.token_ids.tolist()
    assert sum(segment.length for segment in pack.segments) == len(ids) == len(pack.positions)
    sees: dict[int, list[int]] = {}
    for segment in pack.segments:
        before = list(range(segment.prompt_start, segment.prompt_start + segment.prompt_length))
        for token in range(segment.start, segment.start + segment.length):
            sees[token] = before + list(range(segment.start, token + 1))
            assert pack.positions[token] == len(sees[token]) - 1
    place = 0
    for prompt, completion in chosen:
        for index in range(len(completion)):
            # The hidden state that a token is drawn from has seen all before it, in order, and nothing else.
            seen = [ids[token] for token in sees[int(pack.predicts[place])]]
            assert seen == [*prompt, *completion[:index]]
            place += 1
    assert place == len(pack.predicts)


@given(pairs=pairs)
def test_a_tokens_viewers_are_one_stretch(pairs: list[TokenPair]) -> None:
    """What the backward pass over keys relies on."""
    pack = make_pack([pairs[row] for row in pack_rows(pairs, 10**6)[0]], CPU)
    viewers: dict[int, list[int]] = {token: [] for token in range(len(pack.token_ids))}
    for segment in pack.segments:
        for token in range(segment.start, segment.start + segment.length):
            for seen in range(segment.prompt_start, segment.prompt_start + segment.prompt_length):
                viewers[seen].append(token)
            for seen in range(segment.start, token + 1):
                viewers[seen].append(token)
    for segment in pack.segments:
        for token in range(segment.start, segment.start + segment.length):
            assert sorted(viewers[token]) == list(range(token, segment.seen_until))


def test_completions_of_one_prompt_that_are_too_many_for_a_pack() -> None:
    prompt = (1, 2, 3)
    rows = [(prompt, (5,) * 4)] * 5
    # 3 + 2 × 3 tokens: two completions with their prompt.
    assert [len(each) for each in pack_rows(rows, 9)] == [2, 2, 1]
