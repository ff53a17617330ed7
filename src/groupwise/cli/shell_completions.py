"""Completions for shells, generated from the parser: commands, options, choices, and the recipes and sweeps that ship.

bash: groupwise completions bash > ~/.local/share/bash-completion/completions/groupwise
zsh:  groupwise completions zsh > FOLDER_OF_FPATH/_groupwise
fish: groupwise completions fish > ~/.config/fish/completions/groupwise.fish
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True)
class Place:
    """A command, and what may come behind it."""

    path: tuple[str, ...]
    """Empty for groupwise itself."""
    commands: dict[str, str]
    """With what each does."""
    options: dict[str, str]
    words: tuple[str, ...]
    """That an argument may be."""

    @property
    def key(self) -> str:
        return " ".join(self.path)


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    completions = commands.add_parser("completions", help="a script that completes commands in a shell")
    completions.add_argument("shell", choices=SHELLS)
    completions.set_defaults(command=_completions)


def _completions(options: argparse.Namespace) -> int:
    from groupwise.cli import _parser

    found = list(places(_parser()))
    print({"bash": bash_script, "zsh": zsh_script, "fish": fish_script}[options.shell](found), end="")
    return 0


def places(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Place]:
    """All commands, each before those inside it."""
    from groupwise.config import RECIPES
    from groupwise.sweeps.spec import SWEEPS

    commands: dict[str, str] = {}
    inner: dict[str, argparse.ArgumentParser] = {}
    options: dict[str, str] = {}
    words: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands |= {choice.dest: choice.help or "" for choice in action._choices_actions}
            inner |= action.choices
        elif action.option_strings:
            options |= {name: action.help or "" for name in action.option_strings if name.startswith("--")}
        elif action.dest == "recipe":
            words += sorted(recipe.stem for recipe in RECIPES.glob("*.toml"))
        elif action.dest == "sweep":
            words += sorted(sweep.stem for sweep in SWEEPS.glob("*.toml"))
        elif action.choices is not None:
            words += [str(choice) for choice in action.choices]
    yield Place(path, commands, options, tuple(words))
    for name, command in inner.items():
        yield from places(command, (*path, name))


def bash_script(found: list[Place]) -> str:
    """The command is what the words so far lead to; files complete everywhere else."""
    cases = "\n".join(
        f'        "{place.key}") words="{" ".join([*place.commands, *place.words, *place.options])}" ;;'
        for place in found
    )
    known = " ".join(f'["{place.key}"]=1' for place in found if place.path)
    return f"""# groupwise completions bash
_groupwise() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" path="" words="" index next
    local -A known=({known})
    for ((index = 1; index < COMP_CWORD; index++)); do
        next="${{path:+$path }}${{COMP_WORDS[index]}}"
        [[ -n "${{known[$next]:-}}" ]] && path="$next"
    done
    case "$path" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _groupwise groupwise
"""


def zsh_script(found: list[Place]) -> str:
    """zsh runs bash's completions."""
    return f"#compdef groupwise\nautoload -U +X bashcompinit && bashcompinit\n{bash_script(found)}"


def fish_script(found: list[Place]) -> str:
    lines = ["# groupwise completions fish"]
    for place in found:
        here = _fish_condition(place)
        for name, meaning in place.commands.items():
            lines.append(f"complete -c groupwise -n '{here}' -f -a {name} -d {_fish_quoted(meaning)}")
        for word in place.words:
            lines.append(f"complete -c groupwise -n '{here}' -a {word}")
        for name, meaning in place.options.items():
            lines.append(f"complete -c groupwise -n '{here}' -l {name.removeprefix('--')} -d {_fish_quoted(meaning)}")
    return "\n".join(lines) + "\n"


def _fish_condition(place: Place) -> str:
    """All words of the path have been seen, and none of a command inside it."""
    seen = [f"__fish_seen_subcommand_from {word}" for word in place.path]
    deeper = " ".join(place.commands)
    return "; and ".join([*seen, *([f"not __fish_seen_subcommand_from {deeper}"] if deeper else [])]) or "true"


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
