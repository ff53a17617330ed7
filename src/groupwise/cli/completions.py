"""Print a script that completes commands, options and shipped recipes in a shell.

Examples:
  groupwise completions bash >> ~/.bash_completion
  groupwise completions zsh > ~/.zfunc/_groupwise
  groupwise completions fish > ~/.config/fish/completions/groupwise.fish
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field

from groupwise.cli.arguments import Options, argument, takes
from groupwise.config import RECIPES

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True)
class Place:
    """What may follow a command."""

    path: tuple[str, ...]
    """The command's words; empty for `groupwise` itself."""
    commands: dict[str, str] = field(default_factory=dict)
    """The summary of each command inside it."""
    options: dict[str, str] = field(default_factory=dict)
    """The help of each option."""
    words: list[str] = field(default_factory=list)
    """Values that an argument may take."""

    @property
    def key(self) -> str:
        return " ".join(self.path)


@takes(argument("shell", "the shell; zsh needs the folder in its fpath, bash 4 or newer", choices=SHELLS))
def run(options: Options) -> None:
    from groupwise.cli import make_parser

    found = list(places(make_parser()))
    if options.shell == "zsh":
        # zsh reads bash's script through its own layer for such scripts.
        print("#compdef groupwise\nautoload -U +X bashcompinit && bashcompinit")
    print(fish_script(found) if options.shell == "fish" else bash_script(found))


def places(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Place]:
    """Yield the place after each command, and first the place after `groupwise` itself."""
    from groupwise.sweeps.spec import SWEEPS

    folders = {"recipe": RECIPES, "sweep": SWEEPS}
    place = Place(path)
    inner: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            place.commands.update((choice.dest, choice.help or "") for choice in action._choices_actions)
            inner |= action.choices
        elif action.option_strings:
            place.options.update((name, action.help or "") for name in action.option_strings if name.startswith("--"))
        elif action.dest in folders:
            place.words.extend(sorted(file.stem for file in folders[action.dest].glob("*.toml")))
        else:
            place.words.extend(map(str, action.choices or ()))
    yield place
    for name, command in inner.items():
        yield from places(command, (*path, name))


def bash_script(found: list[Place]) -> str:
    """Return a script that follows the words typed so far to a command; anything else completes to files."""
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
complete -o default -F _groupwise groupwise"""


def fish_script(found: list[Place]) -> str:
    lines = ["# groupwise completions fish"]
    for place in found:
        # All words of the path are typed, and no command inside it.
        seen = [f"__fish_seen_subcommand_from {word}" for word in place.path]
        seen += [f"not __fish_seen_subcommand_from {' '.join(place.commands)}"] if place.commands else []
        start = f"complete -c groupwise -n '{'; and '.join(seen) or 'true'}'"
        lines += [f"{start} -f -a {name} -d {_quoted(meaning)}" for name, meaning in place.commands.items()]
        lines += [f"{start} -a {word}" for word in place.words]
        lines += [f"{start} -l {name[2:]} -d {_quoted(meaning)}" for name, meaning in place.options.items()]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Return `text` in fish's single quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
