"""Commands about verifiers: test them, score with them, run what they run, look at what they rewarded."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groupwise.tasks.task import Task
    from groupwise.workers import Limits


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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


def _validate(options: argparse.Namespace) -> int:
    import json

    from groupwise.base.harmless import printable
    from groupwise.scoring.validate import validate

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

    from groupwise.base.harmless import printable
    from groupwise.scoring.scorer import load_process_scorer
    from groupwise.scoring.verify import VerifySummary, verify_file

    load_process_scorer(options.process)
    results = verify_file(
        _make_task(options), options.file, workers=options.workers, limits=_limits(options), process=options.process
    )
    summary = VerifySummary()
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

    from groupwise.base.harmless import printable
    from groupwise.config import ConfigError
    from groupwise.sandbox import ProgramLimits, Sandbox

    texts = []
    for path in (options.file, options.stdin):
        try:
            texts.append("" if path is None else path.read_text(encoding="utf-8", errors="surrogateescape"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if options.seconds <= 0 or options.memory_mb <= 0:
        raise ConfigError("sandbox run: --seconds and --memory-mb must be above 0")
    with Sandbox(options.isolation) as sandbox:
        limits = ProgramLimits(seconds=options.seconds, memory_mb=options.memory_mb)
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

    from groupwise.audit import agreement, audit_run, merge_labels, show_agreement, show_audit
    from groupwise.web.label_page import write_page

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
