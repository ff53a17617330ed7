"""A run made up from a seed: 200 steps, 12,800 completions of about 170 tokens, evaluations of 200 problems."""

from __future__ import annotations

import math
import random
from pathlib import Path

from groupwise.base.stats import wilson_interval
from groupwise.runs import RunLog
from groupwise.types import (
    EvalRecord,
    Finish,
    Group,
    Message,
    Problem,
    Prompt,
    Rollout,
    Score,
    ScoredGroup,
    StepRecord,
    Verdict,
)

SFT_STEPS = 40
HOSTILE = (
    "<script>document.title='owned'</script></script>]]><!--<img src=x onerror=\"document.title='owned'\">"
    "\x1b[31mred\x1b]0;title\x07\x00 \u202eback\u202c \ud800 </pre></dialog>&amp;"
)
_TEXT = (
    "we have the numbers so first add them then multiply by two which gives a sum that is close to target now use "
    "the rest and subtract to get there because each number may be used once only this leaves us with"
)
_WORDS = _TEXT.split()
_SIGNS = ("Wait, that is too much.", "Let me check: it fits.", "Alternatively, swap them.", "Let me start over.")
RECIPE = """name = "synthetic"
seed = 0

[model]
path = "Qwen/Qwen2.5-1.5B-Instruct"

[task]
name = "countdown"

[[stages]]
algorithm = "sft"
name = "sft"
steps = 40

[[stages]]
algorithm = "grpo"
name = "grpo"
steps = 160
"""


def write_synthetic_run(
    path: Path, *, num_steps: int = 200, groups_per_step: int = 10, seed: int = 0, hostile: bool = True
) -> Path:
    """Rollouts at the steps after `SFT_STEPS`: at the default sizes 160 × 10 × 8 = 12,800."""
    generator = random.Random(seed)
    log = RunLog(path)
    log.write_recipe(RECIPE)
    log.write_info(
        {"fingerprint": "0123456789abcdef", "verifier": "countdown/1", "versions": {"groupwise": "0.1.0"}}
        | {"machine": {"device": "cuda", "device_name": "a GPU", "num_parameters": 1_543_714_304}}
    )
    log.write_event("started", step=0)
    held_out = [_problem(generator, f"held-out-{number:03d}") for number in range(200)]
    difficulty = [generator.random() for _ in held_out]
    tokens = 0
    for step in range(num_steps + 1):
        skill = 0.06 + 0.55 * max(0, step - SFT_STEPS) / max(1, num_steps - SFT_STEPS)
        stage = "sft" if step <= SFT_STEPS else "grpo"
        if step:
            groups = []
            if stage == "grpo":
                problems = [_problem(generator, f"train-{step}-{number}") for number in range(groups_per_step)]
                groups = [_group(generator, problem, skill, 8, step) for problem in problems]
                tokens += sum(len(rollout.token_ids) for scored in groups for rollout in scored.group.rollouts)
                log.write_rollouts(step, stage, groups)
            metrics = _sft_metrics(generator, step) if stage == "sft" else _rl_metrics(generator, step, groups, skill)
            log.write_step(
                StepRecord(
                    step, stage, step if stage == "sft" else step - SFT_STEPS, metrics | {"tokens/total": tokens}
                )
            )
        if step % 20 == 0:
            answers = [
                _group(generator, problem, float(hardness < skill), 1, step)
                for problem, hardness in zip(held_out, difficulty, strict=True)
            ]
            if hostile:
                answers[0] = _with_text(answers[0], HOSTILE)
                answers[1] = _with_text(answers[1], HOSTILE + "x" * 100_000 + HOSTILE)
            log.write_eval(_record(step, stage, answers), answers)
            perplexity, share = 11.0 + 0.01 * step, 0.9 - 0.0005 * step
            log.write_event("guards", step=step, broken=[], action="warn", perplexity=perplexity, format_share=share)
    log.write_event("finished", step=num_steps)
    log.close()
    return path


def _problem(generator: random.Random, problem_id: str) -> Problem:
    numbers = [generator.randint(1, 99) for _ in range(4)]
    target = generator.randint(10, 99)
    text = f"Using the numbers {numbers}, create an equation that equals {target}. Put it into <answer> tags."
    return Problem(problem_id, (Message("user", text),), str(target), {"level": 4})


def _group(generator: random.Random, problem: Problem, skill: float, size: int, step: int) -> ScoredGroup:
    rollouts, scores = [], []
    for _ in range(size):
        is_correct = generator.random() < skill
        verdict = Verdict.CORRECT if is_correct else generator.choices([Verdict.WRONG, Verdict.UNPARSED], [4, 1])[0]
        words = generator.choices(_WORDS, k=generator.randint(90, 170))
        if generator.random() < 0.1 + skill:
            words.insert(len(words) // 2, generator.choice(_SIGNS))
        answer = "" if verdict is Verdict.UNPARSED else f" <answer>{generator.randint(1, 99)} + 7 * 2</answer>"
        num_tokens = len(words) + 30
        token_ids = tuple(generator.choices(range(150_000), k=num_tokens))
        logprobs = tuple(-generator.random() for _ in range(num_tokens))
        rollouts.append(Rollout(token_ids, logprobs, " ".join(words) + answer, Finish.STOP, step))
        scores.append(Score(float(is_correct), verdict, {"correct": float(is_correct)}, "countdown/1", "an expression"))
    rewards = tuple(score.reward for score in scores)
    has_signal = max(rewards) != min(rewards)
    return ScoredGroup(
        Group(Prompt(problem, (1, 2)), tuple(rollouts)), tuple(scores), rewards, (0.0,) * size, has_signal
    )


def _with_text(scored: ScoredGroup, text: str) -> ScoredGroup:
    rollout = scored.group.rollouts[0]
    changed = Rollout(rollout.token_ids, rollout.rollout_logprobs, text, rollout.finish, rollout.policy_version)
    group = Group(scored.group.prompt, (changed,))
    return ScoredGroup(group, scored.scores, scored.rewards, scored.advantages, scored.has_signal)


def _record(step: int, stage: str, groups: list[ScoredGroup]) -> EvalRecord:
    correct = sum(scored.scores[0].verdict is Verdict.CORRECT for scored in groups)
    low, high = wilson_interval(correct, len(groups))
    unparsed = sum(scored.scores[0].verdict is Verdict.UNPARSED for scored in groups) / len(groups)
    return EvalRecord(
        step=step, stage=stage, pass_at_1=correct / len(groups), low=low, high=high, num_problems=len(groups),
        rollouts_per_problem=1, temperature=0.0, mean_reward=correct / len(groups), mean_tokens=160.0,
        truncated_share=0.0, unparsed_share=unparsed, error_share=0.0, timed_out_share=0.0, seconds=4.0,
    )  # fmt: skip


def _sft_metrics(generator: random.Random, step: int) -> dict[str, float]:
    loss = 0.4 + 2 * math.exp(-step / 10) + 0.05 * generator.random()
    return {"sft/loss": loss, "policy/loss": loss, "policy/grad_norm": 1 + generator.random(), "time/update_s": 1.1}


def _rl_metrics(generator: random.Random, step: int, groups: list[ScoredGroup], skill: float) -> dict[str, float]:
    rewards = [reward for scored in groups for reward in scored.rewards]
    dead = [scored for scored in groups if not scored.has_signal]
    return {
        "reward/mean": sum(rewards) / len(rewards),
        "policy/loss": generator.gauss(0, 1e-4) + 1e-5 * step,
        "policy/grad_norm": math.exp(generator.gauss(-1, 0.4)),
        "policy/entropy_nats": 0.9 - 0.5 * skill + 0.05 * generator.random(),
        "policy/clip_share": 0.01 * generator.random(),
        "policy/approx_kl": 0.0,
        "kl/ref_k3": 0.0004 * step * (1 + 0.2 * generator.random()),
        "groups/count": float(len(groups)),
        "groups/dead_all_wrong": float(sum(scored.rewards[0] == 0 for scored in dead)),
        "groups/dead_all_correct": float(sum(scored.rewards[0] == 1 for scored in dead)),
        "rollouts/count": float(len(rewards)),
        "rollouts/length_mean_tokens": 160 + 20 * generator.random(),
        "rollouts/length_max_tokens": 200.0,
        "memory/peak_bytes": 40e9,
        "time/sample_s": 3 + generator.random(), "time/score_s": 0.2, "time/logprobs_s": 0.5,
        "time/update_s": 2 + 0.5 * generator.random(), "time/step_s": 6.5,
        "time/eval_s": 0.0, "time/checkpoint_s": 0.0,
    }  # fmt: skip
