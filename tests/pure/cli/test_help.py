"""The help of every command: a heading, a summary that fits, options in words, and examples that can be copied."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from replicator.cli import COMMANDS, GROUPS, main
from replicator.cli.session import COMMON_OPTIONS

WIDTH = 80


def list_contexts(parent: click.Context) -> Iterator[click.Context]:
    """A context for each command below `parent`, subcommands included."""
    group = parent.command
    for name in group.list_commands(parent) if isinstance(group, click.Group) else ():
        command = group.get_command(parent, name)
        assert command is not None
        context = click.Context(command, parent, name)
        yield context
        yield from list_contexts(context)


CONTEXTS = {context.command_path: context for context in list_contexts(click.Context(main, info_name="replicator"))}


@pytest.fixture(params=CONTEXTS)
def context(request) -> click.Context:
    return CONTEXTS[request.param]


def show_help(*path: str) -> str:
    shown = CliRunner().invoke(main, [*path, "--help"], terminal_width=WIDTH)
    assert shown.exit_code == 0
    return shown.output


def test_every_command_is_listed_once_under_a_heading():
    text = show_help()
    listed = re.findall(r"^  ([a-z-]+) {2,}(\S.*)$", text.partition("\nStart:\n")[2], re.MULTILINE)
    assert [name for name, _ in listed] == list(COMMANDS)
    assert [line[:-1] for line in text.splitlines() if re.fullmatch(r"[A-Z]\w+:", line)] == ["Options", *GROUPS]
    assert "..." not in "".join(summary for _, summary in listed)


def test_summary_is_a_whole_sentence_in_one_line(context):
    """Click prints the first sentence, and cuts what is longer than a line of 80 columns."""
    first = (context.command.help or "").strip().partition("\n\n")[0]
    shown = context.command.get_short_help_str(1_000)
    assert shown == first and re.fullmatch(r"[A-Z][a-z]+\b[^.]+\.", first)
    parent = context.parent.command
    longest = max(map(len, parent.list_commands(context.parent)))
    assert longest + len(shown) <= WIDTH - 6, "it would be broken or cut"


def test_options_are_explained(context):
    """By a sentence each, and with a word for its value."""
    for option in (p for p in context.command.params if isinstance(p, click.Option)):
        assert re.fullmatch(r"[A-Z].*[.\])]", option.help or "", re.DOTALL), option.opts
        kind = "" if option.is_flag or option.count else option.make_metavar(context)
        assert len(kind) <= 30 and kind not in {"TEXT", "INTEGER", "FLOAT"} and "RANGE" not in kind, option.opts


def test_common_options_come_last(context):
    params = context.command.params
    if any(p in COMMON_OPTIONS for p in params):
        assert params[-len(COMMON_OPTIONS) :] == list(COMMON_OPTIONS)


def test_examples_can_be_run(context):
    assert context.command.epilog.startswith("\b\nExamples:\n  ")
    examples = [line.strip() for line in context.command.epilog.splitlines()[2:]]
    assert examples
    for line in examples:
        words = shlex.split(line.rpartition(" | ")[2].partition(" > ")[0])
        path = next(path for n in (3, 2) if (path := " ".join(words[:n])) in CONTEXTS)
        assert f"{path} ".startswith(f"{context.command_path} ")
        named = CONTEXTS[path]
        named.command.make_context(named.info_name, words[len(path.split()) :], parent=named.parent)
    text = show_help(*context.command_path.split()[1:])
    assert all(line in text for line in examples), "an example must not be wrapped"
