"""Started on several ranks by test_shards.py: what a sharded policy holds and computes, beside a whole one."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch

from groupwise.config import OptimizerConfig, make_recipe
from groupwise.data.batch import Example, weigh
from groupwise.distributed.shards import local
from groupwise.distributed.world import World, join_world
from groupwise.models.load import LoadedModel
from groupwise.models.policy import Measured, Policy, load_policy
from groupwise.models.tiny import make_tokenizer
from groupwise.training.update import TokenLoss, update_policy
from tests.families import make_tiny_family

# Of 268, 50 or 2 rows no three ranks have the same number, and of 2 one has none.
SIZES = {"hidden_size": 36, "intermediate_size": 50, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1}
WIDE = SIZES | {"hidden_size": 96, "num_layers": 1}
"""A third of its embedding is more than 4,096 weights, as moments in 8 bit want it."""
CASES: dict[str, dict[str, Any]] = {
    "tied": {"path": "tiny-qwen3"},
    "untied": {"path": "tiny-llama", "gradient_checkpointing": True},
    "unknown head": {"path": "tiny-qwen3"},
    "lora": {"path": "tiny-qwen3", "lora": {"rank": 2}},
    "mixture": {"path": "tiny-qwen3"},
    "8bit": {"path": "tiny-llama", "tiny": WIDE | {"context_tokens": 64}},
    "quantized": {"path": "tiny-llama", "lora": {"rank": 2}, "quantization": "8bit"},
}


def policy_of(case: str, world: World) -> Policy:
    model = {"device": "cpu", "ema_decay": 0.9, "tiny": SIZES | {"context_tokens": 64}} | CASES[case]
    stage = {"algorithm": "grpo", "steps": 1, "problems_per_step": 1, "rollouts_per_problem": 2}
    recipe = make_recipe({"name": "t", "model": model, "task": {"name": "countdown"}, "stages": [stage]})
    policy = load_policy(recipe, world)
    if case == "mixture":
        mixture = LoadedModel(make_tiny_family("qwen3_moe"), make_tokenizer(), 64, torch.device("cpu"), torch.float32)
        policy = Policy(mixture, ema_decay=0.9, world=world)
    if case == "unknown head":
        policy._form = policy._find_form()._replace(has_known_head=False)
    moments: Any = "8bit" if case == "8bit" else "fp32"
    optimizer = OptimizerConfig(learning_rate=1e-2, moments=moments)
    policy.begin_stage(optimizer, keep_reference=True, balance_routers=case == "mixture")
    return policy


def examples() -> list[Example]:
    """Seven, of lengths that give two ranks and three ranks different numbers of microbatches."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, 256, (7, 20), generator=generator).tolist()
    return [Example(tuple(row[:5]), tuple(row[5 : 8 + index]), problem_index=0) for index, row in enumerate(drawn)]


def likelihood(measured: Measured, microbatch: Any) -> TokenLoss:
    logprobs, entropies, imbalance = measured
    loss = -logprobs if imbalance is None else imbalance - logprobs
    return TokenLoss(loss, {"entropy": entropies}, {"most": logprobs.detach()})


def learn(policy: Policy, steps: int) -> list[Any]:
    stats = []
    for _ in range(steps):
        update = weigh(examples(), "token_mean")
        made = update_policy(policy, update, likelihood, temperature=1.0, learning_rate=1e-2, max_tokens=40)
        stats.append((made.loss, made.grad_norm, made.num_tokens, made.means))
    return stats


def held_bytes(policy: Policy) -> int:
    """What is split among ranks: the model's weights, moments, reference and average."""
    weights = {name: local(weight.detach()) for name, weight in policy.model.named_parameters()}
    groups = (weights, policy.optimizer.state(), policy._reference, policy._ema)
    tensors = [tensor for group in groups for tensor in group.values() if tensor.dim()]
    # Projections of one input share a storage.
    return sum({part.data_ptr(): part.nbytes() for part in (one.untyped_storage() for one in tensors)}.values())


def check(case: str, world: World) -> dict[str, float]:
    alone, ours = policy_of(case, World()), policy_of(case, world)
    replica = ours.replica()
    expected, made = learn(alone, 3), learn(ours, 3)
    # Moments in 8 bit are cut into other blocks: no weight is off by more than a few steps. The rest is rounding.
    close = {"rtol": 2e-2, "atol": 2e-2} if case == "8bit" else {"rtol": 1e-3, "atol": 1e-5}
    for left, right in zip(expected, made, strict=True):
        torch.testing.assert_close(torch.tensor(right[:3]), torch.tensor(left[:3]), **close)
        assert left[3].keys() == right[3].keys()
    whole, gathered = alone.state(), ours.state()
    assert whole.keys() == gathered.keys()
    if world.rank == 0:
        for group, tensors in whole.items():
            assert tensors.keys() == gathered[group].keys()
            for name, tensor in tensors.items():
                torch.testing.assert_close(gathered[group][name], tensor, **close, msg=f"{case} {group} {name}")
    for score in ("old_logprobs", "ref_logprobs"):
        rows = [torch.cat(getattr(policy, score)(examples(), 0.8, 40)) for policy in (alone, ours)]
        torch.testing.assert_close(rows[1], rows[0], **close)
    check_replica(ours, replica)
    check_restart(case, ours, world)
    return {"alone": held_bytes(alone), "ours": held_bytes(ours)}


def check_replica(policy: Policy, replica: Any) -> None:
    """Tied where the model is, filled with the weights of the moment, of the average too; and empty afterwards."""
    ids = torch.arange(1, 12)[None]
    head, table = replica.model.get_output_embeddings().weight, replica.model.get_input_embeddings().weight
    assert (head is table) == bool(replica.model.config.tie_word_embeddings)
    seen = []
    with torch.no_grad():
        for _ in range(2):
            with replica.filled():
                seen.append(replica.model(input_ids=ids).logits)
                torch.testing.assert_close(seen[-1], policy.model(input_ids=ids).logits)
                policy._shards.forget()
        with policy.averaged(), replica.filled():
            seen.append(replica.model(input_ids=ids).logits)
    assert torch.equal(seen[0], seen[1])
    assert not torch.allclose(seen[0], seen[2])
    assert replica._memory.num_bytes == 0


def check_restart(case: str, policy: Policy, world: World) -> None:
    """Resuming from a checkpoint on the same number of ranks is exact bit for bit."""
    saved = world.gather(copy.deepcopy(policy.state()))[0]
    again = policy_of(case, world)
    again.load_state(saved, policy.version)
    assert learn(again, 2) == learn(policy, 2)
    for left, right in zip(again.weights.values(), policy.weights.values(), strict=True):
        assert torch.equal(left, right)


def check_in_step(world: World) -> None:
    for count in range(1, 8):
        shares = world.gather(list(world.in_step(range(count))))
        assert len({len(share) for share in shares}) == 1
        assert sorted(item for share in shares for item, counts in share if counts) == list(range(count))


def main(out: Path) -> None:
    world = join_world()
    check_in_step(world)
    found = {case: world.gather(check(case, world)) for case in CASES}
    if world.rank == 0:
        out.write_text(json.dumps(found))
    world.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
