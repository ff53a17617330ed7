"""Benchmark groupwise on this machine.

Examples:
  groupwise bench engine --sequences 64,256,1024
  groupwise bench step gsm8k
  groupwise bench step gsm8k --against trl
"""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any, TypeVar

from groupwise.base.json_values import plain
from groupwise.cli.arguments import (
    GIB,
    RECIPE,
    SEEDS,
    TASK,
    Argument,
    Options,
    argument,
    json_option,
    parse_numbers,
    set_option,
    takes,
    task_option,
)
from groupwise.cli.printing import print_json, say
from groupwise.config import ConfigError, find_recipe, load_recipe
from groupwise.config.recipe import parse_override

SHAPE = "a shape (qwen2.5-1.5b, smollm2-135m), or a model path"


Work = TypeVar("Work")


def against_options(*libraries: str) -> tuple[Argument, ...]:
    """Return the arguments of a comparison with other libraries."""
    return (
        argument("--against", "do the same work in another library and compare", choices=libraries),
        argument("--against-python", "Python of an environment that has the library", metavar="PATH"),
        set_option("argument for the library, such as dtype=bfloat16; repeatable", "key=value", "--against-set"),
    )


def check_against(options: Options) -> None:
    """Refuse options that have no meaning with, or without, another library."""
    if options.against is None:
        for given, name in ((options.against_python, "--against-python"), (options.against_set, "--against-set")):
            if given:
                raise ConfigError(f"{name} is for the library of --against, which is not given; add --against")
        return
    for key in ("mixed", "at_once", "memory_gib"):
        if getattr(options, key, None):
            raise ConfigError(f"--{key.replace('_', '-')} changes groupwise alone; remove it, or --against")
    if "," in getattr(options, "engines", ""):
        raise ConfigError(f"--engines {options.engines!r}: with --against, name one engine, such as native")


def _other(options: Options) -> Any:
    from groupwise.bench.side_by_side import Other

    python = options.against_python or sys.executable
    settings = dict(parse_override(setting, "--against-set") for setting in options.against_set)
    return Other(options.against, python, settings)


def _tell(text: str) -> None:
    say(text, to=sys.stderr)


@takes(
    argument("--model", SHAPE, default="smollm2-135m"),
    argument("--sequences", "numbers of rollouts to sample together", default="64,256"),
    argument("--engines", "native, reference; comma-separated", default="native"),
    argument("--prompt-tokens", "tokens per prompt", default=128, within="[1, 1e7]"),
    argument("--new-tokens", "tokens per completion", default=256, within="[1, 1e7]"),
    argument("--mixed", "sample completions of different lengths", default=False),
    argument("--at-once", "rollouts decoded at once, while others wait; 0: all", default=0, within="[0, 1e6]"),
    *against_options("vllm", "transformers"),
    json_option(),
)
def run_engine(options: Options) -> None:
    """Measure how fast rollouts are sampled.

    Examples:
      groupwise bench engine --model qwen2.5-1.5b --sequences 64,256
      groupwise bench engine --against vllm --against-python ~/vllm/bin/python
    """
    check_against(options)
    from groupwise.bench.engine_speed import TABLE_HEADING, bench_engine

    counts = parse_numbers(options.sequences, "--sequences", "64,256", int, "[1, 1e6]")
    if options.against:
        from groupwise.bench.engine_against import compare_engines

        lengths = {"prompt_tokens": options.prompt_tokens, "new_tokens": options.new_tokens}
        given = options.model, options.engines, counts, _other(options), lengths
        _print_timing(compare_engines(*given, _tell), options)
        return
    if not options.json:
        print(TABLE_HEADING)
    work = {key: getattr(options, key) for key in ("prompt_tokens", "new_tokens", "mixed", "at_once")}
    for name in options.engines.split(","):
        for timing in bench_engine(options.model, name, counts, **work):
            _print_timing(timing, options)


@takes(
    argument("recipe", f"{RECIPE}; its first RL stage is measured"),
    set_option(),
    argument("--steps", "number of steps", default=12, within="[1, 1e7]"),
    argument("--warmup", "number of first steps that do not count", default=4, within="[0, 1e7]"),
    argument("--memory-gib", "pretend the GPU has this much memory", type=float, within=GIB),
    *against_options("trl"),
    json_option(),
)
def run_step(options: Options) -> None:
    """Measure where the time of a recipe's training steps goes.

    Examples:
      groupwise bench step gsm8k --steps 8
      groupwise bench step gsm8k --json > step.json
      groupwise bench step gsm8k --against trl --steps 3 --warmup 1
    """
    check_against(options)
    # Read before torch is imported, so that a typo is reported at once.
    recipe = load_recipe(find_recipe(options.recipe), options.settings)
    if options.against:
        from groupwise.bench.step_against import compare_steps

        counts = {"steps": options.steps, "warmup_steps": options.warmup}
        _print_timing(compare_steps(recipe, _other(options), **counts, tell=_tell), options)
        return
    from groupwise.bench.step_speed import bench_step

    timing = bench_step(recipe, steps=options.steps, warmup_steps=options.warmup, memory_gib=options.memory_gib)
    _print_timing(timing, options)


@takes(
    argument("--model", SHAPE, default="smollm2-135m"),
    argument("--sequences", "number of sequences", default=64, within="[1, 1e6]"),
    argument("--longest", "tokens of the longest sequence, with its prompt", default=1024, within="[2, 1e7]"),
    argument("--prompt-tokens", "tokens per prompt", default=128, within="[1, 1e7]"),
    argument("--group", "number of sequences that share a prompt", default=1, within="[1, 1e6]"),
    argument("--microbatch-tokens", "tokens per microbatch", default=16384, within="[1, 1e8]"),
    argument(
        "--checkpointing",
        "recompute activations to save memory: of whole layers, or of their feed-forward parts (mlp)",
        default=False,
        nargs="?",
        const=True,
        choices=("mlp",),
        action="store",
    ),
    argument("--lora", "train adapters instead of all weights", type=int, metavar="RANK", within="[1, 65536]"),
    argument("--updates", "number of updates; the first is timed separately", default=3, within="[2, 1e6]"),
    argument(
        "--peak-tflops", "peak speed, for the MFU (default: 790 on a GPU, none on a CPU)", type=float, within="(0, 1e9]"
    ),
    json_option(),
)
def run_update(options: Options) -> None:
    """Measure how fast the policy learns from given sequences.

    Examples:
      groupwise bench update --model qwen2.5-1.5b --lora 16
    """
    from groupwise.bench.update_speed import UpdateWork, bench_update

    _print_timing(bench_update(_work(UpdateWork, options)), options)


@takes(
    argument("model", "a model, as for `groupwise eval`"),
    argument("--task", TASK, required=True),
    task_option(),
    argument("--problems", "number of training problems", default=16, within="[2, 1e6]"),
    argument("--sizes", "group sizes; twice the largest is sampled", default="4,8,16,32,64"),
    argument("--temperature", "sampling temperature", default=1.0, within="(0, 100]"),
    argument("--max-new-tokens", "tokens per completion", default=256, within="[1, 1e7]"),
    argument("--microbatch-tokens", "tokens per microbatch", default=16384, within="[1, 1e8]"),
    argument("--seed", "sampling seed", default=0, within=SEEDS),
    json_option(),
)
def run_groups(options: Options) -> None:
    """Measure what a larger group buys: the noise of advantages and gradients by group size.

    Examples:
      groupwise bench groups Qwen/Qwen2.5-0.5B-Instruct --task gsm8k --sizes 4,8,16
    """
    from groupwise.bench.group_size import GroupsWork, bench_groups

    options.sizes = tuple(parse_numbers(options.sizes, "--sizes", "4,8,16", int, "[2, 1e5]"))
    options.options = tuple(options.settings)
    _print_timing(bench_groups(_work(GroupsWork, options)), options)


COMMANDS = {"engine": run_engine, "step": run_step, "update": run_update, "groups": run_groups}


def _work(kind: type[Work], options: Options) -> Work:
    """Make a dataclass whose fields are named after the options."""
    return kind(**{field.name: getattr(options, field.name) for field in fields(kind)})  # type: ignore[arg-type]


def _print_timing(timing: Any, options: Options) -> None:
    if options.json:
        print_json(plain(timing.to_json() if hasattr(timing, "to_json") else timing))
    else:
        print(timing, flush=True)
