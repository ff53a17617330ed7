"""The other side of a comparison: work that groupwise hands over, done by TRL, vLLM or transformers.

    python other_library.py WORK.json RESULT.json

A script for the Python of another environment: it imports the standard library and the library that the work names,
and nothing of groupwise, which need not be installed there. Every completion has exactly `new_tokens` tokens.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRL_METHODS = {
    "_tokenize_prompts": "",
    "_generate_and_score_completions": "",
    "_generate": "sample",
    "_calculate_rewards": "score",
    "_get_per_token_logps_and_entropies": "logprobs",
}
"""Methods of GRPOTrainer that are wrapped, with the phase that they are timed as."""


def step_in_trl(work: dict[str, Any]) -> dict[str, Any]:
    """Train `max_steps` steps and return the seconds of each phase of each step."""
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback

    if missing := [name for name in TRL_METHODS if not hasattr(trl.GRPOTrainer, name)]:
        raise NotImplementedError(f"trl {trl.__version__}: GRPOTrainer has no {', '.join(missing)}; install trl 1.16")
    arguments = work["arguments"]
    arguments["model_init_kwargs"] = {"dtype": arguments.pop("dtype")}
    uses_vllm = arguments.get("use_vllm", False)
    endless = {"ignore_eos": True} if uses_vllm else {"min_new_tokens": arguments["max_completion_length"]}
    quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    group, prompts = arguments["num_generations"], work["prompts"]

    def rewards(completions: list[str], **columns: Any) -> list[float]:
        """Different within each group, whatever was sampled, so that every group is learned from."""
        return [float(index % group) for index in range(len(completions))]

    lora = None
    if work["lora"]:
        from peft import LoraConfig

        lora = LoraConfig(task_type="CAUSAL_LM", **work["lora"])
    trainer = trl.GRPOTrainer(
        model=work["model"],
        reward_funcs=rewards,
        args=trl.GRPOConfig(output_dir=work["folder"], generation_kwargs=endless, **quiet, **arguments),
        # A prompt is the number of its token ids, which `_tokenize_prompts` below looks up.
        train_dataset=Dataset.from_dict({"prompt": [str(number) for number in range(len(prompts))]}),
        processing_class=AutoTokenizer.from_pretrained(work["model"]),
        peft_config=lora,
    )
    clock: dict[str, float] = {}
    steps: list[dict[str, float]] = []

    def timed(phase: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            start = now()
            result = method(*args, **named)
            clock[phase] = clock.get(phase, 0.0) + now() - start
            if phase == "sample":
                clock["tokens"] = float(sum(map(len, result[1])))
            return result

        return call

    for name, phase in TRL_METHODS.items():
        if phase:
            setattr(trainer, name, timed(phase, getattr(trainer, name)))
    prepare = trainer._generate_and_score_completions

    def prepare_and_note(*args: Any) -> Any:
        result = prepare(*args)
        # What follows is the update; the logprobs that the loss computes are part of it.
        steps.append({phase: clock.get(phase, 0.0) for phase in ("sample", "score", "logprobs", "tokens")})
        clock["prepared"] = now()
        return result

    trainer._generate_and_score_completions = prepare_and_note
    trainer._tokenize_prompts = lambda rows: ([list(prompts[int(row)]) for row in rows], None, {})

    class Noting(TrainerCallback):
        def on_step_begin(self, *args: Any, **named: Any) -> None:
            clock.clear()
            clock["start"] = now()

        def on_step_end(self, *args: Any, **named: Any) -> None:
            end = now()
            steps[-1] |= {"step": end - clock["start"], "update": end - clock["prepared"]}

    trainer.add_callback(Noting())
    trainer.train()
    return {"version": trl.__version__, "steps": steps, "peak_bytes": peak_bytes()}


def sample_in_vllm(work: dict[str, Any]) -> dict[str, Any]:
    # On a CPU, vLLM leaves a core to its server by default; here there is none.
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
    import vllm

    longest = work["new_tokens"] + max(len(prompt["token_ids"]) for batch in work["batches"] for prompt in batch)
    llm = vllm.LLM(
        model=work["model"],
        skip_tokenizer_init=True,
        generation_config="vllm",
        disable_log_stats=True,
        **{"max_model_len": longest, "max_num_seqs": max(map(num_sequences, work["batches"])), **work["arguments"]},
    )

    def sample(batch: list[dict[str, Any]]) -> int:
        llm.reset_prefix_cache()  # or it would know the prompts from the call before
        fixed = {"max_tokens": work["new_tokens"], "ignore_eos": True, "temperature": 1.0, "detokenize": False}
        params = [vllm.SamplingParams(n=prompt["count"], **fixed) for prompt in batch]
        inputs = [{"prompt_token_ids": prompt["token_ids"]} for prompt in batch]
        outputs = llm.generate(inputs, params, use_tqdm=False)
        return sum(len(completion.token_ids) for output in outputs for completion in output.outputs)

    return {"version": vllm.__version__, "timings": [time_twice(sample, batch) for batch in work["batches"]]}


def sample_in_transformers(work: dict[str, Any]) -> dict[str, Any]:
    """Sample with `generate`: each completion is a row with its own prompt."""
    import torch
    import transformers

    arguments = dict(work["arguments"])
    model = transformers.AutoModelForCausalLM.from_pretrained(work["model"], dtype=arguments.pop("dtype"))
    model.to(work["device"]).eval()
    endless = {"min_new_tokens": work["new_tokens"], "max_new_tokens": work["new_tokens"]}

    @torch.inference_mode()  # type: ignore[untyped-decorator, unused-ignore]
    def sample(batch: list[dict[str, Any]]) -> int:
        rows = [prompt["token_ids"] for prompt in batch for _ in range(prompt["count"])]
        ids = torch.tensor(rows, device=model.device)
        how = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": 0}
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **endless, **how, **arguments)
        return int(out.shape[0] * (out.shape[1] - ids.shape[1]))

    return {"version": transformers.__version__, "timings": [time_twice(sample, batch) for batch in work["batches"]]}


def num_sequences(batch: list[dict[str, Any]]) -> int:
    return sum(int(prompt["count"]) for prompt in batch)


def time_twice(sample: Callable[[Any], int], batch: Any) -> dict[str, float]:
    """Time a call with its set-up, and another without."""
    start = now()
    sample(batch)
    between = now()
    tokens = sample(batch)
    return {"first_s": between - start, "seconds": now() - between, "tokens": tokens}


def now() -> float:
    """Return the time at which all that was started is done."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def peak_bytes() -> int:
    """Return the peak memory of this process: what torch allocated on the GPU, or resident memory without one."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else peak_resident_bytes()


def peak_resident_bytes() -> int:
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss begins with what the parent of the process used
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS


LIBRARIES = {"trl": step_in_trl, "vllm": sample_in_vllm, "transformers": sample_in_transformers}


def main(work_path: str, result_path: str) -> None:
    work = json.loads(Path(work_path).read_text())
    Path(result_path).write_text(json.dumps(LIBRARIES[work["library"]](work)))


if __name__ == "__main__":
    main(*sys.argv[1:])
