"""The trial of bf16 on a CPU: `python -m groupwise.engines.bf16_trial FOLDER RESULT THREADS`.

FOLDER has the configuration of a model. Two layers of its shapes, with random weights, are timed and sampled from.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from groupwise.data.batch import Example
from groupwise.engines.engine import Request
from groupwise.engines.native.native_engine import NativeEngine
from groupwise.models import cpu
from groupwise.models.load import LoadedModel
from groupwise.models.policy import Policy
from groupwise.models.tiny import make_tokenizer
from groupwise.types import Problem, Prompt, SamplingParams

LAYERS, VOCABULARY = 2, 8192
PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 4, 4, 40, 12
ROWS = (64, 1024)
"""Rows of the products that are timed: those of a step of decoding and of a pack."""
TRIES = 5


def main() -> None:
    folder, result, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    cpu.prepare()
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    config.num_hidden_layers, config.vocab_size = LAYERS, min(VOCABULARY, config.vocab_size)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:LAYERS]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    speedup = products_s(model, torch.float32) / products_s(model, torch.bfloat16)
    answer = {"speedup": speedup, "gap": gap_of(model.to(torch.bfloat16))}
    Path(result).write_text(json.dumps(answer), encoding="utf-8")


@torch.no_grad()
def products_s(model: Any, dtype: torch.dtype) -> float:
    """Return the seconds of a layer's products, forward and back."""
    weights = [part.weight.to(dtype) for part in model.get_decoder().layers[0].modules() if isinstance(part, nn.Linear)]
    pairs = [(torch.randn(rows, weight.shape[1]).to(dtype), weight) for rows in ROWS for weight in weights]

    def run() -> float:
        start = time.perf_counter()
        for x, weight in pairs:
            y = nn.functional.linear(x, weight)
            if len(x) > ROWS[0]:
                y.t() @ x, y @ weight
        return time.perf_counter() - start

    return min(run() for _ in range(TRIES))


@torch.no_grad()
def gap_of(model: Any) -> float:
    """Return the mean difference between the logprobs of engine and learner, in nats."""
    tokenizer = make_tokenizer()
    policy = Policy(LoadedModel(model, tokenizer, 4096, torch.device("cpu"), model.dtype), ema_decay=0.0)
    dice = torch.Generator().manual_seed(0)
    requests = []
    for index in range(PROMPTS):
        ids = torch.randint(model.config.vocab_size, (PROMPT_TOKENS + index,), generator=dice).tolist()
        requests.append(Request(Prompt(Problem(str(index), (), ""), tuple(ids)), tuple(range(index, index + GROUP))))
    engine = NativeEngine(policy.model, tokenizer, (), PROMPTS * GROUP)
    pairs = [
        (Example(group.prompt.token_ids, rollout.token_ids), rollout.rollout_logprobs)
        for _, group in engine.generate(requests, SamplingParams(max_new_tokens=NEW_TOKENS), 0)
        for rollout in group.rollouts
    ]
    ours = torch.cat([logprobs for logprobs, _ in policy.measure([example for example, _ in pairs], 1.0, 2048)])
    theirs = torch.tensor([logprob for _, logprobs in pairs for logprob in logprobs])
    return float((ours - theirs).abs().mean())


if __name__ == "__main__":
    main()
