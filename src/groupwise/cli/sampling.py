"""Commands that draw from a model, or measure how fast that and learning go."""

from __future__ import annotations

import argparse
from typing import Any

from groupwise.cli.libraries import quiet_libraries
from groupwise.cli.number_lists import parse_numbers


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sample = commands.add_parser("sample", help="several completions of one question, and the best of them")
    sample.add_argument("model", help="a hub id, a folder, a .gguf file, or tiny-qwen3")
    sample.add_argument("question")
    sample.add_argument("--n", type=int, default=4, help="how many; default 4")
    sample.add_argument("--best-of", choices=("none", "majority", "verifier"), default="none")
    sample.add_argument("--task", help="whose verifier judges the completions")
    sample.add_argument("--fields", default="{}", metavar="JSON", help='what the verifier needs, as in {"answer": 18}')
    sample.add_argument("--temperature", type=float, default=1.0)
    sample.add_argument("--max-new-tokens", type=int, default=512)
    sample.add_argument("--seed", type=int, default=0)
    sample.add_argument("--json", action="store_true", help="a JSON line for each completion, and one for the choice")
    sample.set_defaults(command=_sample)

    bench = commands.add_parser("bench", help="measure ourselves")
    bench_commands = bench.add_subparsers(required=True, metavar="WHAT")
    engine = bench_commands.add_parser("engine", help="how fast rollouts are sampled")
    engine.add_argument("--model", default="smollm2-135m", help="qwen2.5-1.5b or smollm2-135m (shapes), or a path")
    engine.add_argument("--sequences", default="64,256", help="rollouts at once, as in 64,256,1024")
    engine.add_argument("--engines", default="native", help="native, reference, generate; as in native,generate")
    engine.add_argument("--prompt-tokens", type=int, default=128)
    engine.add_argument("--new-tokens", type=int, default=256)
    engine.add_argument("--mixed", action="store_true", help="rollouts of different lengths")
    engine.add_argument(
        "--at-once", type=int, default=0, help="so many rollouts decode at once, the others wait; 0 is all"
    )
    engine.add_argument("--json", action="store_true")
    engine.set_defaults(command=_bench_engine)

    step = bench_commands.add_parser("step", help="where the time of a recipe's training steps goes")
    step.add_argument("recipe", help="a TOML file, or the name of one of `groupwise recipes`; its first RL stage")
    step.add_argument("--set", action="append", default=[], metavar="a.b=c", dest="overrides", help="override a key")
    step.add_argument("--steps", type=int, default=12, help="default 12")
    step.add_argument("--warmup", type=int, default=4, help="the first so many of them do not count; default 4")
    step.add_argument("--memory-gib", type=float, help="as if the GPU had so much memory; default all that it has")
    step.add_argument("--json", action="store_true")
    step.set_defaults(command=_bench_step)

    update = bench_commands.add_parser("update", help="how fast the policy learns from given sequences")
    update.add_argument("--model", default="smollm2-135m", help="qwen2.5-1.5b or smollm2-135m (shapes), or a path")
    update.add_argument("--sequences", type=int, default=64)
    update.add_argument("--longest", type=int, default=1024, help="tokens of the longest, with its prompt")
    update.add_argument("--prompt-tokens", type=int, default=128)
    update.add_argument("--group", type=int, default=1, help="so many sequences have one prompt; default 1")
    update.add_argument("--microbatch-tokens", type=int, default=16384)
    update.add_argument(
        "--checkpointing", nargs="?", const=True, default=False, choices=("mlp",),
        help="compute activations again, for less memory: of whole layers, or of their feed-forward parts (mlp)",
    )  # fmt: skip
    update.add_argument("--lora", type=int, metavar="RANK", help="train adapters instead of all weights")
    update.add_argument("--updates", type=int, default=3, help="the first is timed apart; default 3")
    update.add_argument("--peak-tflops", type=float, help="what MFU is a share of; default 790 on a GPU, none on a CPU")
    update.add_argument("--json", action="store_true")
    update.set_defaults(command=_bench_update)

    groups = bench_commands.add_parser("groups", help="what a larger group buys: noise of advantage and gradient by G")
    groups.add_argument("model", help="as `groupwise eval` takes it")
    groups.add_argument("--task", required=True, help="a name of `groupwise tasks`, or module:Class")
    groups.add_argument("--set", action="append", default=[], metavar="key=value", dest="options", help="a task option")
    groups.add_argument("--problems", type=int, default=16, help="of the training split; default 16")
    groups.add_argument("--sizes", default="4,8,16,32,64", help="group sizes; twice the largest is drawn a problem")
    groups.add_argument("--temperature", type=float, default=1.0)
    groups.add_argument("--max-new-tokens", type=int, default=256)
    groups.add_argument("--microbatch-tokens", type=int, default=16384)
    groups.add_argument("--seed", type=int, default=0)
    groups.add_argument("--json", action="store_true")
    groups.set_defaults(command=_bench_groups)


def _sample(options: argparse.Namespace) -> int:
    import json

    from groupwise.base.harmless import printable
    from groupwise.config import ConfigError
    from groupwise.evals.sample import choose, judge, sample
    from groupwise.tasks import make_task
    from groupwise.types import SamplingParams

    try:
        fields = json.loads(options.fields)
    except ValueError as error:
        raise ConfigError(f"--fields {options.fields!r}: not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError(f'--fields {options.fields!r}: expected an object, as in {{"answer": 18}}')
    if options.best_of == "verifier" and options.task is None:
        raise ConfigError("--best-of verifier: name the task whose verifier is to judge, with --task")
    quiet_libraries()
    sampling = SamplingParams(max_new_tokens=options.max_new_tokens, temperature=options.temperature)
    rollouts = sample(options.model, options.question, n=options.n, sampling=sampling, seed=options.seed)
    task = None if options.task is None else make_task(options.task, {})
    sampled = judge(rollouts, options.question, task, fields)
    choice = choose(sampled, options.best_of)
    if options.json:
        for entry in sampled:
            print(json.dumps(entry.to_json()))
        if choice is not None:
            print(json.dumps({"best": choice.index, "why": choice.why}))
        return 0
    for index, entry in enumerate(sampled):
        judged = "" if entry.score is None else f", {entry.score.verdict}"
        print(f"--- {index + 1} of {len(sampled)}: {len(entry.rollout.token_ids)} tokens{judged}")
        print(printable(entry.rollout.text, keep_newlines=True))
    if options.best_of != "none":
        print(f"=== best: {choice.index + 1}; {printable(choice.why)}" if choice else "=== none is best")
    return 0


def _bench_engine(options: argparse.Namespace) -> int:
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


def _bench_step(options: argparse.Namespace) -> int:
    from groupwise.config import find_recipe, load_recipe

    # Read before torch is imported: a typo is answered at once.
    recipe = load_recipe(find_recipe(options.recipe), options.overrides)
    from groupwise.bench.step_speed import bench_step

    quiet_libraries()
    timing = bench_step(recipe, steps=options.steps, warmup_steps=options.warmup, memory_gib=options.memory_gib)
    _print_timing(timing, options)
    return 0


def _bench_update(options: argparse.Namespace) -> int:
    from dataclasses import fields

    from groupwise.bench.update_speed import UpdateWork, bench_update

    quiet_libraries()
    work = UpdateWork(**{field.name: getattr(options, field.name) for field in fields(UpdateWork)})
    timing = bench_update(work)
    _print_timing(timing.to_json() if options.json else timing, options)
    return 0


def _bench_groups(options: argparse.Namespace) -> int:
    from dataclasses import fields

    from groupwise.bench.group_size import GroupsWork, bench_groups

    quiet_libraries()
    sizes = tuple(parse_numbers(options.sizes, "--sizes", "4,8,16", int))
    given = {field.name: getattr(options, field.name) for field in fields(GroupsWork)}
    _print_timing(bench_groups(GroupsWork(**given | {"sizes": sizes, "options": tuple(options.options)})), options)
    return 0


def _print_timing(timing: Any, options: argparse.Namespace) -> None:
    import json

    from groupwise.runs.files import plain

    print(json.dumps(plain(timing), allow_nan=False) if options.json else timing, flush=True)
