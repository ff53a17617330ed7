"""Benchmark groupwise on this machine.

Examples:
  groupwise bench engine --sequences 64,256,1024
  groupwise bench step gsm8k
"""

from __future__ import annotations

import argparse
from typing import Any

from groupwise.cli.arguments import (
    RECIPE,
    TASK,
    add_command,
    add_json,
    add_overrides,
    add_task_options,
    parse_numbers,
)
from groupwise.cli.printing import print_json

SHAPE = "a shape (qwen2.5-1.5b, smollm2-135m), or a model path"


def add_options(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="WHAT")
    engine = add_command(commands, "engine", run_engine.__doc__, run_engine)
    engine.add_argument("--model", default="smollm2-135m", help=SHAPE)
    engine.add_argument("--sequences", default="64,256", help="numbers of rollouts to sample together")
    engine.add_argument("--engines", default="native", help="native, reference, generate; comma-separated")
    engine.add_argument("--prompt-tokens", type=int, default=128, help="tokens per prompt")
    engine.add_argument("--new-tokens", type=int, default=256, help="tokens per completion")
    engine.add_argument("--mixed", action="store_true", help="sample completions of different lengths")
    engine.add_argument("--at-once", type=int, default=0, help="rollouts decoded at once, while others wait; 0: all")

    step = add_command(commands, "step", run_step.__doc__, run_step)
    step.add_argument("recipe", help=f"{RECIPE}; its first RL stage is measured")
    add_overrides(step)
    step.add_argument("--steps", type=int, default=12, help="number of steps")
    step.add_argument("--warmup", type=int, default=4, help="number of first steps that do not count")
    step.add_argument("--memory-gib", type=float, help="pretend the GPU has this much memory")

    update = add_command(commands, "update", run_update.__doc__, run_update)
    update.add_argument("--model", default="smollm2-135m", help=SHAPE)
    update.add_argument("--sequences", type=int, default=64, help="number of sequences")
    update.add_argument("--longest", type=int, default=1024, help="tokens of the longest sequence, with its prompt")
    update.add_argument("--prompt-tokens", type=int, default=128, help="tokens per prompt")
    update.add_argument("--group", type=int, default=1, help="number of sequences that share a prompt")
    update.add_argument("--microbatch-tokens", type=int, default=16384, help="tokens per microbatch")
    update.add_argument(
        "--checkpointing", nargs="?", const=True, default=False, choices=("mlp",),
        help="recompute activations to save memory: of whole layers, or of their feed-forward parts (mlp)",
    )  # fmt: skip
    update.add_argument("--lora", type=int, metavar="RANK", help="train adapters instead of all weights")
    update.add_argument("--updates", type=int, default=3, help="number of updates; the first is timed separately")
    update.add_argument(
        "--peak-tflops", type=float, help="peak speed, for the MFU (default: 790 on a GPU, none on a CPU)"
    )

    groups = add_command(commands, "groups", run_groups.__doc__, run_groups)
    groups.add_argument("model", help="a model, as for `groupwise eval`")
    groups.add_argument("--task", required=True, help=TASK)
    add_task_options(groups)
    groups.add_argument("--problems", type=int, default=16, help="number of training problems")
    groups.add_argument("--sizes", default="4,8,16,32,64", help="group sizes; twice the largest is sampled")
    groups.add_argument("--temperature", type=float, default=1.0, help="sampling temperature")
    groups.add_argument("--max-new-tokens", type=int, default=256, help="tokens per completion")
    groups.add_argument("--microbatch-tokens", type=int, default=16384, help="tokens per microbatch")
    groups.add_argument("--seed", type=int, default=0, help="sampling seed")
    for command in (engine, step, update, groups):
        add_json(command)


def run_engine(options: argparse.Namespace) -> int:
    """Measure how fast rollouts are sampled.

    Examples:
      groupwise bench engine --model qwen2.5-1.5b --sequences 64,256
    """
    from groupwise.api.watchers import quiet_libraries
    from groupwise.bench.engine_speed import TABLE_HEADING, bench_engine

    quiet_libraries()
    counts = parse_numbers(options.sequences, "--sequences", "64,256", int)
    if not options.json:
        print(TABLE_HEADING)
    for name in options.engines.split(","):
        work = {key: getattr(options, key) for key in ("prompt_tokens", "new_tokens", "mixed", "at_once")}
        for timing in bench_engine(options.model, name, counts, **work):
            _print_timing(timing, options)
    return 0


def run_step(options: argparse.Namespace) -> int:
    """Measure where the time of a recipe's training steps goes.

    Examples:
      groupwise bench step gsm8k --steps 8
      groupwise bench step gsm8k --json > step.json
    """
    from groupwise.api.watchers import quiet_libraries
    from groupwise.config import find_recipe, load_recipe

    # Read before torch is imported, so that a typo is reported at once.
    recipe = load_recipe(find_recipe(options.recipe), options.overrides)
    from groupwise.bench.step_speed import bench_step

    quiet_libraries()
    timing = bench_step(recipe, steps=options.steps, warmup_steps=options.warmup, memory_gib=options.memory_gib)
    _print_timing(timing, options)
    return 0


def run_update(options: argparse.Namespace) -> int:
    """Measure how fast the policy learns from given sequences.

    Examples:
      groupwise bench update --model qwen2.5-1.5b --lora 16
    """
    from dataclasses import fields

    from groupwise.api.watchers import quiet_libraries
    from groupwise.bench.update_speed import UpdateWork, bench_update

    quiet_libraries()
    work = UpdateWork(**{field.name: getattr(options, field.name) for field in fields(UpdateWork)})
    _print_timing(bench_update(work), options)
    return 0


def run_groups(options: argparse.Namespace) -> int:
    """Measure what a larger group buys: the noise of advantages and gradients by group size.

    Examples:
      groupwise bench groups Qwen/Qwen2.5-0.5B-Instruct --task gsm8k --sizes 4,8,16
    """
    from dataclasses import fields

    from groupwise.api.watchers import quiet_libraries
    from groupwise.bench.group_size import GroupsWork, bench_groups

    quiet_libraries()
    sizes = tuple(parse_numbers(options.sizes, "--sizes", "4,8,16", int))
    given = {field.name: getattr(options, field.name) for field in fields(GroupsWork)}
    _print_timing(bench_groups(GroupsWork(**given | {"sizes": sizes, "options": tuple(options.options)})), options)
    return 0


def _print_timing(timing: Any, options: argparse.Namespace) -> None:
    from groupwise.runs.files import plain

    if options.json:
        print_json(plain(timing.to_json() if hasattr(timing, "to_json") else timing))
    else:
        print(timing, flush=True)
