"""The `groupwise` command. Imports happen inside each command, so that --help is instant and nothing loads in vain."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groupwise.tasks.task import Task
    from groupwise.workers import Limits


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0 for success, 1 for a failed run, 2 for input that cannot be used."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except (ValueError, RuntimeError) as error:
        # Our own errors say what happened and what to do; a stranger's deserves its traceback.
        if not type(error).__module__.startswith("groupwise."):
            raise
        print(f"groupwise: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1


def _parser() -> argparse.ArgumentParser:
    from groupwise import __version__

    parser = argparse.ArgumentParser(prog="groupwise", description="Teach a language model to reason, and prove it.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="run a recipe, or resume a run")
    train.add_argument("recipe", nargs="?", help="a TOML file, or the name of one of `groupwise recipes`")
    train.add_argument("--resume", metavar="RUN", type=Path, help="go on with this run directory")
    train.add_argument("--run-dir", type=Path, help="where the run goes; by default runs/NAME-FINGERPRINT")
    train.add_argument("--set", action="append", default=[], metavar="a.b=c", dest="overrides", help="override a key")
    train.add_argument(
        "--accept-verifier", action="store_true", help="resume although the verifier's version has changed"
    )
    train.set_defaults(command=_train)

    demo = commands.add_parser("demo", help="watch a tiny model learn on the CPU, in minutes, with no download")
    demo.add_argument("--seed", type=int, default=0)
    demo.add_argument("--run-dir", type=Path, help="by default a new folder under runs/")
    demo.set_defaults(command=_demo)

    recipes = commands.add_parser("recipes", help="list the recipes, or print one")
    recipes.add_argument("name", nargs="?")
    recipes.set_defaults(command=_recipes)

    tasks = commands.add_parser("tasks", help="list the tasks, or the options of one")
    tasks.add_argument("name", nargs="?")
    tasks.set_defaults(command=_tasks)

    algorithms = commands.add_parser("algorithms", help="list the algorithms and what each chooses")
    algorithms.set_defaults(command=_algorithms)

    _add_verifier_commands(commands)

    _add_engine_commands(commands)

    export = commands.add_parser("export", help="write a run's weights as a plain Hugging Face folder")
    export.add_argument("run", type=Path)
    export.add_argument("out", type=Path)
    export.add_argument("--checkpoint", default="best", help="best (by held-out pass@1), last, or a name; default best")
    export.add_argument("--ema", action="store_true", help="the moving average instead of the weights")
    export.set_defaults(command=_export)

    merge = commands.add_parser("merge", help="average Hugging Face folders, weight by weight")
    merge.add_argument("folders", type=Path, nargs="+")
    merge.add_argument("--weights", type=float, nargs="+", required=True, help="one per folder, summing to 1")
    merge.add_argument("--out", type=Path, default=Path("merged"), help="a new folder; by default ./merged")
    merge.set_defaults(command=_merge)
    return parser


def _add_engine_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    step.add_argument("--json", action="store_true")
    step.set_defaults(command=_bench_step)

    update = bench_commands.add_parser("update", help="how fast the policy learns from given sequences")
    update.add_argument("--model", default="smollm2-135m", help="qwen2.5-1.5b or smollm2-135m (shapes), or a path")
    update.add_argument("--sequences", type=int, default=64)
    update.add_argument("--longest", type=int, default=1024, help="tokens of the longest, with its prompt")
    update.add_argument("--prompt-tokens", type=int, default=128)
    update.add_argument("--microbatch-tokens", type=int, default=16384)
    update.add_argument("--checkpointing", action="store_true", help="compute activations again, for less memory")
    update.add_argument("--lora", type=int, metavar="RANK", help="train adapters instead of all weights")
    update.add_argument("--updates", type=int, default=3, help="the first is timed apart; default 3")
    update.add_argument("--peak-tflops", type=float, help="what MFU is a share of; default 790 on a GPU, none on a CPU")
    update.add_argument("--json", action="store_true")
    update.set_defaults(command=_bench_update)


def _add_verifier_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    validate = commands.add_parser("validate", help="test a task's verifier on gold and on wrong answers")
    validate.add_argument("task", help="a name of `groupwise tasks`, or module:Class")
    _add_verifier_options(validate)
    validate.add_argument("--limit", type=int, default=0, metavar="N", help="only the first N problems of each split")
    validate.set_defaults(command=_validate)

    verify = commands.add_parser("verify", help="score a file of completions with a task's verifier")
    verify.add_argument("task", help="a name of `groupwise tasks`, or module:Class")
    verify.add_argument("file", type=Path, help=".jsonl with `completion` and the verifier's fields, or a problem's id")
    _add_verifier_options(verify)
    verify.add_argument(
        "--process", default="", metavar="NAME", help="score the reasoning too: arithmetic, or your own"
    )
    verify.set_defaults(command=_verify)

    sandbox = commands.add_parser("sandbox", help="run a program as a completion would run")
    sandbox_commands = sandbox.add_subparsers(required=True, metavar="COMMAND")
    run = sandbox_commands.add_parser("run", help="run one Python file in isolation")
    run.add_argument("file", type=Path)
    run.add_argument("--json", action="store_true", help="one JSON object: status, stdout, stderr, seconds ...")
    run.add_argument("--seconds", type=float, default=2.0, help="of CPU time; default 2")
    run.add_argument("--memory-mb", type=int, default=256, help="default 256")
    run.add_argument("--stdin", type=Path, metavar="FILE", help="what the program reads; by default nothing")
    run.add_argument("--isolation", default="auto", help="auto, namespaces or landlock; default auto")
    run.set_defaults(command=_sandbox_run)

    audit = commands.add_parser("audit", help="look for rewards that were not earned; a page of chains to label")
    audit.add_argument("run", type=Path)
    audit.add_argument("--json", action="store_true", help="the findings as JSON")
    audit.add_argument("--held-out", action="store_true", help="of the newest evaluation instead of training")
    audit.add_argument("--sample", type=int, default=30, metavar="N", help="chains on the page; default 30")
    audit.add_argument("--seed", type=int, default=0, help="of the sample")
    audit.add_argument("--labels", type=Path, metavar="FILE", help="keep these labels with the run, and compare")
    audit.set_defaults(command=_audit)


def _add_verifier_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="JSON instead of a summary")
    parser.add_argument("--set", action="append", default=[], metavar="key=value", dest="options", help="a task option")
    parser.add_argument("--workers", type=int, default=2, help="processes that score; default 2")
    parser.add_argument("--seconds", type=float, default=5.0, help="of CPU time for one completion; default 5")
    parser.add_argument("--memory-mb", type=int, default=4096, help="for one completion; default 4096")


def _train(options: argparse.Namespace) -> int:
    from groupwise.config import ConfigError, find_recipe, load_recipe

    if (options.recipe is None) == (options.resume is None):
        raise ConfigError("train: give a recipe, or --resume RUN, and not both")
    if options.resume is not None and (options.overrides or options.run_dir):
        raise ConfigError(
            "train --resume: a run goes on with the recipe and the folder it has; drop --set and --run-dir"
        )
    if options.resume is None and options.accept_verifier:
        raise ConfigError("train --accept-verifier: goes with --resume; a new run takes the verifier that there is")
    if options.resume is None:
        # Read before torch is imported: a typo is answered at once.
        recipe = load_recipe(find_recipe(options.recipe), options.overrides)
    from groupwise import pipeline
    from groupwise.distributed.world import join_world
    from groupwise.runlog.progress import Progress

    _quiet_libraries()
    world = join_world()
    try:
        if options.resume is not None:
            recipe, run_dir = pipeline.recipe_of(options.resume), options.resume
            progress = Progress(recipe.total_steps)
            is_finished = pipeline.resume(run_dir, [progress], world, accept_verifier=options.accept_verifier)
        else:
            run_dir = options.run_dir or pipeline.default_run_dir(recipe)
            is_finished = pipeline.train(recipe, run_dir, [Progress(recipe.total_steps)], world)
    finally:
        world.close()
    if world.rank > 0:
        return 0 if is_finished else 1
    if not is_finished:
        print(f"Stopped and saved. Go on with: groupwise train --resume {run_dir}")
        return 1
    print(f"Finished: {run_dir}")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from groupwise.demo import run_demo

    _quiet_libraries()
    return run_demo(options.seed, options.run_dir)


def _recipes(options: argparse.Namespace) -> int:
    from groupwise.config import RECIPES, find_recipe, load_recipe

    if options.name is not None:
        print(find_recipe(options.name).read_text(encoding="utf-8"), end="")
        return 0
    for path in sorted(RECIPES.glob("*.toml")):
        recipe = load_recipe(path)
        print(f"{path.stem:24} {' → '.join(stage.name for stage in recipe.stages):28} {recipe.description}")
    return 0


def _tasks(options: argparse.Namespace) -> int:
    from groupwise.reference import task_options
    from groupwise.tasks import list_tasks

    if options.name is not None:
        print(task_options(options.name))
        return 0
    for name, summary in list_tasks().items():
        print(f"{name:16} {summary}")
    print("module:Class     your own: a dataclass with `problems`, `score` and `verifier`")
    return 0


def _algorithms(options: argparse.Namespace) -> int:
    from groupwise.config import SUMMARIES

    for name, summary in SUMMARIES.items():
        print(f"{name:16} {summary}")
    return 0


def _validate(options: argparse.Namespace) -> int:
    import json

    from groupwise.runlog.text import printable
    from groupwise.verifiers.validate import validate

    found = validate(_make_task(options), limit=options.limit, workers=options.workers, limits=_limits(options))
    if options.json:
        print(json.dumps(found.to_json()))
        return 0 if found.is_sound else 1
    table = found.to_json()
    print(f"gold answers:  {found.num_gold - table['gold_failed']} of {found.num_gold} are judged correct")
    print(f"wrong answers: {found.num_wrong - table['wrong_failed']} of {found.num_wrong} are judged not correct")
    if found.num_gold < found.num_problems:
        print(
            f"{found.num_problems - found.num_gold} of {found.num_problems} problems have no gold answer to test with"
        )
    for failure in found.failures[:50]:
        score = failure.score
        told = f"{failure.split} {failure.problem_id}: {failure.kind}: {score.verdict} {score.reward:g}: {score.detail}"
        print(printable(told)[:400])
    if len(found.failures) > 50:
        print(f"... and {len(found.failures) - 50} more; --json tells all")
    return 0 if found.is_sound else 1


def _verify(options: argparse.Namespace) -> int:
    import json

    from groupwise.runlog.text import printable
    from groupwise.verifiers.scorer import load_process_scorer
    from groupwise.verifiers.verify import Summary, verify_file

    load_process_scorer(options.process)
    results = verify_file(
        _make_task(options), options.file, workers=options.workers, limits=_limits(options), process=options.process
    )
    summary = Summary()
    for result in results:
        summary.add(result)
        if options.json:
            print(json.dumps(result.to_json()), flush=True)
        elif result.score.is_error:
            print(printable(f"row {result.row}: {result.score.verdict}: {result.score.detail}"), file=sys.stderr)
    if not options.json:
        print(summary)
    return 2 if summary.num_unread else 0


def _make_task(options: argparse.Namespace) -> Task:
    from groupwise.config import apply_override
    from groupwise.tasks import make_task

    table: dict[str, Any] = {}
    for option in options.options:
        apply_override(table, option)
    return make_task(options.task, table)


def _limits(options: argparse.Namespace) -> Limits:
    from groupwise.config import VerifierConfig
    from groupwise.workers import Limits

    # Through the recipe's own check of the values.
    config = VerifierConfig(
        workers=options.workers, seconds=options.seconds, memory_mb=options.memory_mb,
        wall_seconds=max(60.0, 2 * options.seconds),
    )  # fmt: skip
    return Limits(config.seconds, config.wall_seconds, config.memory_mb)


def _sandbox_run(options: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict

    from groupwise.config import ConfigError
    from groupwise.runlog.text import printable
    from groupwise.sandbox import Limits, Sandbox

    texts = []
    for path in (options.file, options.stdin):
        try:
            texts.append("" if path is None else path.read_text(encoding="utf-8", errors="surrogateescape"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if options.seconds <= 0 or options.memory_mb <= 0:
        raise ConfigError("sandbox run: --seconds and --memory-mb must be above 0")
    with Sandbox(options.isolation) as sandbox:
        limits = Limits(seconds=options.seconds, memory_mb=options.memory_mb)
        outcome = sandbox.run(texts[0], stdin=texts[1], limits=limits)
    if options.json:
        print(json.dumps(asdict(outcome)))
        return 0
    print(printable(outcome.stdout, keep_newlines=True), end="")
    print(printable(outcome.stderr, keep_newlines=True), end="", file=sys.stderr)
    print(f"[{outcome.status}, {outcome.seconds:.3f} s] {printable(outcome.detail)}", file=sys.stderr)
    return 0


def _audit(options: argparse.Namespace) -> int:
    import json

    from rich.console import Console

    from groupwise.audit import agreement, audit_run, merge_labels, show_agreement, show_audit, write_page

    console = Console()
    if options.labels is not None:
        num_new = merge_labels(options.run, options.labels)
        found = agreement(options.run)
        if options.json:
            print(json.dumps({"new_labels": num_new} | found.to_json()))
        else:
            print(f"{num_new} new labels")
            show_agreement(found, console)
        return 0
    audit = audit_run(
        options.run, sample=options.sample, seed=options.seed, source="held_out" if options.held_out else "train"
    )
    page = write_page(audit, options.run)
    if options.json:
        print(json.dumps(audit.to_json() | {"page": str(page)}))
    else:
        show_audit(audit, console)
        print(f"{len(audit.chains)} chains to label: {page}")
    return 0


def _sample(options: argparse.Namespace) -> int:
    import json

    from groupwise.config import ConfigError
    from groupwise.runlog.text import printable
    from groupwise.sample import choose, judge, sample
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
    _quiet_libraries()
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
    from groupwise.bench.engine import TABLE_HEADING, bench_engine
    from groupwise.config import ConfigError

    _quiet_libraries()
    try:
        counts = [int(text) for text in options.sequences.split(",")]
    except ValueError:
        raise ConfigError(f"--sequences {options.sequences!r}: expected numbers, as in 64,256") from None
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
    from groupwise.bench.step import bench_step

    _quiet_libraries()
    _print_timing(bench_step(recipe, steps=options.steps, warmup_steps=options.warmup), options)
    return 0


def _bench_update(options: argparse.Namespace) -> int:
    from dataclasses import fields

    from groupwise.bench.update import UpdateWork, bench_update

    _quiet_libraries()
    work = UpdateWork(**{field.name: getattr(options, field.name) for field in fields(UpdateWork)})
    _print_timing(bench_update(work), options)
    return 0


def _print_timing(timing: Any, options: argparse.Namespace) -> None:
    import json

    print(json.dumps(timing.to_json()) if options.json else timing, flush=True)


def _export(options: argparse.Namespace) -> int:
    from groupwise.models.export import export_run

    export_run(options.run, options.out, checkpoint=options.checkpoint, use_ema=options.ema)
    print(f"Wrote {options.out}")
    return 0


def _merge(options: argparse.Namespace) -> int:
    from groupwise.models.merge import merge_folders

    merge_folders(options.folders, options.weights, options.out)
    print(f"Wrote {options.out}")
    return 0


def _quiet_libraries() -> None:
    """Our progress display is the one that is shown; loading bars of others would break it up."""
    from transformers.utils import logging

    logging.disable_progress_bar()


if __name__ == "__main__":
    sys.exit(main())
