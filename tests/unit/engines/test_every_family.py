"""The reference engine samples from every decoder family of transformers, or refuses the model by name."""

from __future__ import annotations

import pytest
import torch

from groupwise.config.build import ConfigError
from groupwise.engines.engine import Request
from groupwise.engines.reference import ReferenceEngine
from groupwise.models.tiny import make_tokenizer
from groupwise.types import Problem, Prompt, SamplingParams
from tests.families import NAMES, make_tiny_family

REFUSED = ("cpmant", "prophetnet", "xlnet")
"""What these predict depends on tokens that follow."""
BOUNDS = {"mamba": 1e-4, "falcon_mamba": 1e-4}
"""A step of the recurrence multiplies in another order than the scan over the sequence. Elsewhere 1e-5."""
STOPS = tuple(range(0, 256, 8))  # Frequent, so that rows leave the batch at different times.


def request(num_tokens: int, num_rollouts: int) -> Request:
    ids = torch.randint(3, 250, (num_tokens,), generator=torch.Generator().manual_seed(num_tokens)).tolist()
    seeds = range(100 * num_tokens, 100 * num_tokens + num_rollouts)
    return Request(Prompt(Problem(str(num_tokens), (), ""), tuple(ids)), tuple(seeds))


@pytest.mark.parametrize("name", NAMES)
def test_logprobs_are_those_of_a_pass_over_each_sequence_alone(name: str) -> None:
    model = make_tiny_family(name)
    engine = ReferenceEngine(model, make_tokenizer(), STOPS, 4)
    requests = [request(9, 3), request(4, 2), request(14, 1)]
    if name in REFUSED:
        with pytest.raises(ConfigError, match=rf"model.path: {type(model).__name__} cannot be sampled from"):
            list(engine.generate(requests, SamplingParams(max_new_tokens=8), 0))
        return
    for index, group in engine.generate(requests, SamplingParams(max_new_tokens=8), 0):
        assert len(group.rollouts) == len(requests[index].seeds)
        for rollout in group.rollouts:
            ids = torch.tensor([[*group.prompt.token_ids, *rollout.token_ids]])
            with torch.inference_mode():
                logprobs = model(input_ids=ids, use_cache=False).logits[0].log_softmax(dim=-1)
            count = len(rollout.token_ids)
            expected = logprobs[-count - 1 : -1].gather(1, ids[0, -count:, None])[:, 0].tolist()
            assert list(rollout.rollout_logprobs) == pytest.approx(expected, abs=BOUNDS.get(name, 1e-5))
