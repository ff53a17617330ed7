"""`groupwise bench groups`: the measured noise is what theory says where theory knows, and the model is left alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from groupwise.bench import group_size as bench
from groupwise.bench.group_noise import Noise, bought, common_signal, measure_noise, signal_to_noise, slope
from groupwise.bench.group_size import SKETCH, GroupsWork, Sketcher
from groupwise.cli import main
from groupwise.evals.subject import open_subject
from groupwise.models import placement
from groupwise.types import Finish, Group, Message, Problem, Prompt, Rollout, Score, ScoredGroup, Verdict

TASK = "tests.integration.toy_task:EvenLetters"


def made_up(num_problems: int, num_rollouts: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards of 0 and 1, half and half, and gradients that have nothing to do with them."""
    generator = torch.Generator().manual_seed(3)
    rewards = torch.randint(0, 2, (num_problems, num_rollouts), generator=generator).double()
    return rewards, torch.randn(num_problems, num_rollouts, width, generator=generator).double()


@pytest.mark.parametrize("size", [2, 4, 8])
def test_noise_is_what_can_be_worked_out(size: int) -> None:
    """A = r − mean: given r, its variance is that of the G − 1 others over G²; and a gradient is the sum of G."""
    rewards, gradients = made_up(num_problems=120, num_rollouts=16, width=4)
    noise = measure_noise(rewards, gradients, size, "group_mean")
    spread = 0.25
    assert float(noise.advantage_variance.mean()) == pytest.approx(spread * (size - 1) / size**2, rel=0.12)
    assert float(noise.gradient_variance.mean()) == pytest.approx(4 * spread * (size - 1) / size**2, rel=0.15)
    assert float(noise.signal.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(noise.dead_share.mean()) == pytest.approx(2 * 0.5**size, abs=0.03)


def test_a_gradient_that_goes_with_the_reward_is_signal() -> None:
    rewards, _ = made_up(num_problems=100, num_rollouts=16, width=1)
    # Each rollout's gradient is its own reward: the expected gradient of a group is that of (r − mean)·r.
    noise = measure_noise(rewards, rewards[:, :, None], 8, "group_mean")
    assert float(noise.signal.mean()) == pytest.approx((0.25 * 7 / 8) ** 2, rel=0.15)


def test_what_problems_have_in_common_and_what_they_do_not() -> None:
    """Gradients r (c + d): c is all problems', d each one's own. Groups of 8 have 0.25 · 7/8 of it in the mean."""
    rewards, _ = made_up(num_problems=200, num_rollouts=16, width=1)
    own = torch.randn(200, 1, 6, generator=torch.Generator().manual_seed(4)).double()
    common = torch.full((6,), 0.5, dtype=torch.float64)
    noise = measure_noise(rewards, rewards[:, :, None] * (common + own), 8, "group_mean")
    found, low, high = common_signal(noise.gradients)
    shrunk = (0.25 * 7 / 8) ** 2
    assert found == pytest.approx(shrunk * 6 * 0.25, rel=0.25)
    assert low < found < high < 2 * found
    # What is left of the problems' signal is what they differ by.
    assert float(noise.signal.mean()) - found == pytest.approx(shrunk * 6, rel=0.15)


def test_the_interval_of_what_is_in_common_holds_it() -> None:
    hits = 0
    for seed in range(200):
        own = torch.randn(24, 6, generator=torch.Generator().manual_seed(seed)).double()
        _, low, high = common_signal(0.5 + own)
        hits += low < 6 * 0.25 < high
    assert 0.88 <= hits / 200 <= 0.98  # a jackknife over few problems is a little short


def test_nothing_in_common_is_seen_as_that() -> None:
    gradients = torch.randn(40, 50, generator=torch.Generator().manual_seed(0)).double()
    found, low, high = common_signal(gradients)
    assert low < 0 < high
    assert abs(found) < 0.05 * float(gradients.square().sum(dim=1).mean())
    assert math.isnan(common_signal(gradients[:2])[1])


def test_groups_that_cannot_be_told_apart_have_no_noise() -> None:
    noise = measure_noise(torch.ones(2, 8), torch.randn(2, 8, 3), 4, "group_mean_std")
    assert noise.gradient_variance.tolist() == noise.advantage_variance.tolist() == [0.0, 0.0]
    assert noise.dead_share.tolist() == [1.0, 1.0]
    assert all(math.isnan(value) for value in slope([noise, noise], "gradient_variance"))
    with pytest.raises(ValueError, match="groups of 5 need at least 10 rollouts"):
        measure_noise(torch.ones(2, 8), torch.ones(2, 8, 3), 5, "group_mean")


def test_the_slope_of_one_over_g_is_minus_one() -> None:
    base = torch.rand(12, generator=torch.Generator().manual_seed(0)).double() + 0.5
    noises = [Noise(size, base / size, base / size**2, base, base, base[:, None]) for size in (4, 8, 16)]
    assert slope(noises, "advantage_variance") == pytest.approx((-1.0, -1.0, -1.0))
    assert slope(noises, "gradient_variance")[0] == pytest.approx(-2.0)


def test_what_a_larger_group_buys_has_an_interval_over_problems() -> None:
    """Gradients r + noise, less the mean: signal to noise goes with G − 1, so that 4 to 8 buys 7/3."""
    rewards, noise = made_up(num_problems=60, num_rollouts=32, width=3)
    gradients = rewards[:, :, None] + 3 * noise
    small, large = (measure_noise(rewards, gradients, size, "group_mean") for size in (4, 8))
    value, low, high = bought(small, large)
    assert low < value < high
    assert low < 7 / 3 < high
    assert high - low < 1.5
    for one in (small, large):
        ratio, low, high = signal_to_noise(one)
        assert ratio == pytest.approx(float(one.signal.sum() / one.gradient_variance.sum()))
        assert 0 < low < ratio < high
    assert value == pytest.approx(signal_to_noise(large)[0] / signal_to_noise(small)[0])
    # The same factor with each problem: nothing to be unsure of.
    twice = replace(small, signal=2 * small.signal)
    assert bought(small, twice) == pytest.approx((2.0, 2.0, 2.0))
    silent = replace(small, signal=torch.zeros_like(small.signal))
    assert all(math.isnan(figure) for figure in bought(silent, small))
    assert signal_to_noise(replace(silent, gradient_variance=silent.signal)) == (0.0, 0.0, 0.0)


def test_the_interval_of_signal_to_noise_holds_it() -> None:
    """Problems whose variances are drawn, and whose signal is a fifth of them in the mean."""
    hits = 0
    for seed in range(200):
        dice = torch.Generator().manual_seed(seed)
        variance = 0.5 + torch.rand(40, generator=dice).double()
        signal = variance * (0.2 + 0.3 * torch.randn(40, generator=dice).double())
        found = Noise(4, variance, variance, signal, variance, variance[:, None])
        _, low, high = signal_to_noise(found, seed)
        hits += low < 0.2 < high
    assert 0.88 <= hits / 200 <= 0.99


@pytest.mark.parametrize("bundle_bytes", [1 << 28, 10_000])
def test_a_sketch_keeps_inner_products(bundle_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "EXCHANGE_BYTES", bundle_bytes)
    generator = torch.Generator().manual_seed(1)
    left = {"a": torch.randn(300, 100, generator=generator), "b": torch.randn(7, generator=generator)}
    right = {name: tensor + torch.randn(tensor.shape, generator=generator) for name, tensor in left.items()}
    exact = sum(float((left[name] * right[name]).sum()) for name in left)
    lengths = math.prod(math.sqrt(sum(float((t * t).sum()) for t in side.values())) for side in (left, right))
    sketch, before = Sketcher(5), {name: tensor.clone() for name, tensor in left.items()}
    assert abs(float(sketch(left) @ sketch(right)) - exact) < 5 * lengths / math.sqrt(SKETCH)
    assert torch.equal(sketch(left), Sketcher(5)(left))
    assert not torch.allclose(sketch(left), Sketcher(6)(left))
    assert all(torch.equal(left[name], before[name]) for name in left)


def test_gradients_are_of_each_rollout_by_itself() -> None:
    policy = open_subject("tiny-qwen3").policy
    before = [weight.detach().clone() for weight in policy.model.parameters()]
    completions = [(40, 41, 42), (50,), (60, 61)]
    rollouts = tuple(Rollout(ids, (-1.0,) * len(ids), "", Finish.STOP, 0) for ids in completions)
    group = Group(Prompt(Problem("p", (Message("user", "?"),), ""), (5, 6)), rollouts)
    zeros = (0.0,) * 3
    scored = ScoredGroup(group, (Score(0.0, Verdict.WRONG),) * 3, zeros, zeros, has_signal=False)
    seen: list[list[torch.Tensor]] = []

    def keep(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        seen.append([tensor.clone() for tensor in tensors.values()])
        return torch.zeros(0)

    list(bench._gradients(policy, scored, GroupsWork(model="x", task=TASK, temperature=0.8), keep))
    for ids, gradients in zip(completions, seen, strict=True):
        policy.model.zero_grad()
        logits = policy.model(torch.tensor([(5, 6, *ids)])).logits[0, 1:-1]
        logprobs = torch.log_softmax(logits / 0.8, dim=-1)
        logprobs.gather(1, torch.tensor(ids)[:, None]).mean().backward()
        plain = [weight.grad for weight in policy.model.parameters() if weight.grad is not None]
        for one, other in zip(gradients, plain, strict=True):
            # Of the largest entry: small ones are sums of large ones that cancel.
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * float(other.abs().max()))
    assert all(torch.equal(one, other) for one, other in zip(before, policy.model.parameters(), strict=True))


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["bench", "groups", "tiny-qwen3", "--task", TASK, "--problems", "2", "--max-new-tokens", "3"]
    assert main([*asked, "--sizes", "2,4", "--json"]) == 0
    table = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)  # null, where there is no number
    assert {row["size"] for row in table["sizes"]} == {2, 4}
    assert set(table["slopes"]) == {"group_mean_std", "group_mean"}
    assert [list(row["bought"]) for row in table["sizes"]] == [[], ["group_mean_std", "group_mean"]]
    for row in table["sizes"]:
        for rule, (ratio, _, _) in row["step_signal_to_noise"].items():
            per_s = row["step_signal_to_noise_per_s"][rule]
            assert per_s * (row["sample_s"] + row["learn_s"]) == pytest.approx(2 * ratio)
    assert main([*asked, "--sizes", "2,4"]) == 0
    assert "group_mean, 2 to 4: unknown: at 2 the signal is statistically indistinguishable" in capsys.readouterr().out
    assert main([*asked, "--sizes", "4"]) == 2
    assert "--sizes 4: give at least two" in capsys.readouterr().err
    assert main([*asked, "--problems", "1"]) == 2
    assert "--problems = 1: must be from 2" in capsys.readouterr().err


def test_rewards_that_are_all_the_same_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["bench", "groups", "tiny-qwen3", "--task", "countdown", "--problems", "2", "--max-new-tokens", "3"]
    assert main([*asked, "--sizes", "2,4"]) == 2
    assert "all have the same reward (pass@1 0.0 %)" in capsys.readouterr().err
