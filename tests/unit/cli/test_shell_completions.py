"""Completions: the bash script is asked what bash would ask it; the others are read."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from groupwise.cli import main, make_parser
from groupwise.cli.completions import SHELLS, places

BASH = shutil.which("bash")


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completions", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.skipif(BASH is None, reason="no bash")
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["tr"], ["train"]),
        (["bench", "st"], ["step"]),
        (["bench", "step", "gsm8k", "--mem"], ["--memory-gib"]),
        (["train", "gsm"], ["gsm8k", "gsm8k-cold-start", "gsm8k-lora-24gb"]),
        (["plan", "--measure", "demo", "--aga"], ["--against"]),
        (["completions", "z"], ["zsh"]),
        (["--ver"], ["--version"]),
        (["train", "no-such-thing"], []),
    ],
)
def test_bash_completes(typed: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = " ".join(f"'{word}'" for word in ["groupwise", *typed])
    ask = f'COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _groupwise; printf "%s\\n" "${{COMPREPLY[@]}}"'
    program = f"{script('bash', capsys)}\n{ask}"
    done = subprocess.run([BASH or "", "-u", "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stderr == ""
    assert done.stdout.split() == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_all_commands_and_options_are_there(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    found = list(places(make_parser()))
    assert {"train", "plan", "new", "bench step", "sandbox run"} <= {place.key for place in found}
    for place in found:
        for name in [*place.commands, *place.options]:
            assert name.removeprefix("--") in text


def test_fish_knows_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    lines = script("fish", capsys).splitlines()
    (step,) = [line for line in lines if "-l memory-gib" in line and "bench" in line]
    assert "-n '__fish_seen_subcommand_from bench; and __fish_seen_subcommand_from step'" in step


def test_zsh_takes_it_for_a_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert script("zsh", capsys).startswith("#compdef groupwise\n")
