"""Code blocks of the documentation: YAML is valid, commands exist, code can be parsed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import jsonschema
import pytest
from jsonschema.exceptions import best_match
from paths import PROJECT
from ruamel.yaml import YAML

from replicator.cli import main
from replicator.settings import load_settings
from replicator.settings.json_schema import build_config_schema

pytestmark = pytest.mark.slow

LANGUAGES = "bash ini json mermaid properties python sql text toml yaml"
BLOCK = re.compile(r"^( *)(```+)([^\n`]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
OTHER_PROGRAMS = """
bash cat cd chmod cp createdb curl docker duckdb echo eval export gh git gunzip install journalctl jq kill kubectl less ls
mkdocs mkdir openssl pg_dump pip printf psql python read rm sleep source systemctl systemd-analyze tail tar unset useradd
chown uv venv-pack mypy kafka-get-offsets.sh
"""
"""Programs of others: only the quotes of their lines are checked."""
PLACEHOLDER = re.compile(r"^\$?\{?[A-Z][A-Z_]*\}?$")
VALUES = {
    "_DSN": "postgresql://app@localhost/app",
    "_SERVERS": "localhost:9092",
    "_URL": "http://localhost:8081",
    "": "secret" * 8,
}
"""Variables of the environment by the ends of their names."""
WHOLE = frozenset(("sources", "sinks", "tables"))
ASSIGNMENT = re.compile(r"^\w+=")


class Block(NamedTuple):
    page: str
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks() -> Iterator[Block]:
    for path in (*PROJECT.glob("*.md"), *sorted((PROJECT / "docs").rglob("*.md")), *PROJECT.glob("[!.]*/README.md")):
        name, page = path.relative_to(PROJECT).as_posix(), path.read_text()
        for found in BLOCK.finditer(page):
            language, _, options = found[3].strip().partition(" ")
            indent, line = len(found[1]), page[: found.start()].count("\n") + 1
            text = "\n".join(each[indent:] for each in found[4].splitlines()) + "\n"
            yield Block(name, line, language, options, text)


BLOCKS = list(read_blocks())


def choose(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def test_every_block_has_a_known_language():
    """Blocks of other languages would not be checked."""
    unknown = {str(b): b.language for b in BLOCKS if b.language not in LANGUAGES.split()}
    assert unknown == {}


# -- YAML --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    """Of a part of a config: every key is optional."""
    return jsonschema.Draft202012Validator(build_config_schema(overlay=True))


def to_config(content: object) -> dict[str, object]:
    """A block as a config: it holds top-level keys, entries of `tables`, entries of `to`, or keys of a table."""
    if isinstance(content, list):
        tables = [entry if "match" in entry else {"match": "public.*", "source": "shop", "to": [entry]} for entry in content]
        return {"tables": tables}
    assert isinstance(content, dict)
    if set(content) <= set(build_config_schema(overlay=True)["properties"]):
        return content
    return {"tables": [{"match": "public.*", "source": "shop", "to": [{"sink": "lake"}], **content}]}


@pytest.mark.parametrize("block", choose("yaml"), ids=str)
def test_yaml_is_valid_for_the_config(block: Block, validator: jsonschema.Draft202012Validator, tmp_path: Path) -> None:
    if "title=" in block.title:
        return  # A file of another program, or a config of an adapter that is not ours.
    for content in YAML(typ="safe", pure=True).load_all(block.text):
        config = to_config(content)
        wrong = best_match(validator.iter_errors(config))
        assert wrong is None, f"{wrong.json_path}: {wrong.message}"
        if set(config) >= WHOLE:
            file = tmp_path / "shop" / "config" / "replicator.yaml"
            file.parent.mkdir(parents=True)
            file.write_text(block.text)
            load_settings(file, environ={name: find_value(name) for name in re.findall(r"\$\{(\w+)", block.text)})


def find_value(name: str) -> str:
    return next(value for end, value in VALUES.items() if name.endswith(end))


# -- commands ----------------------------------------------------------------------------------------------------------


def split_commands(text: str) -> Iterator[list[str]]:
    """The words of each command, without assignments and `sudo`; a here-document belongs to its command."""
    text = re.sub(r"(^|\s)#.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"<<-?\s*'?(\w+)'?.*?^\s*\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    words: list[str] = []
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars="();|&\n")
    lexer.whitespace = " \t"
    lexer.whitespace_split, lexer.commenters = True, ""
    for token in [*lexer, "\n"]:
        if set(token) <= set("();|&\n"):
            while words and (ASSIGNMENT.match(words[0]) or words[0] in {"sudo", "exec", "then", "do"}):
                words.pop(0)
                while words and words[0].startswith("-"):
                    del words[: 2 if words[0] in {"-u", "-g"} else 1]
            if words:
                yield words
            words = []
        else:
            words.append(token)


def parse_arguments(command: click.Command, name: str, arguments: list[str], parent: click.Context | None = None) -> None:
    """Fails like the program on an option, argument or command that does not exist."""
    try:
        context = command.make_context(name, list(arguments), parent=parent)
    except click.exceptions.Exit:
        return
    except click.BadParameter as wrong:
        if isinstance(wrong, click.MissingParameter) or not any(PLACEHOLDER.match(a.rpartition("=")[2]) for a in arguments):
            raise
        return
    rest = [*getattr(context, "_protected_args", ()), *context.args]
    if isinstance(command, click.Group) and rest:
        found, child, others = command.resolve_command(context, rest)
        assert child is not None
        parse_arguments(child, str(found), others, context)


def check_command(words: list[str]) -> None:
    program, arguments = words[0], words[1:]
    stem = program.rpartition("/")[2]
    for sign in (">", ">>", "2>", "<"):
        while sign in arguments:
            at = arguments.index(sign)
            del arguments[at : at + 2]
    if stem == "replicator":
        parse_arguments(main, "replicator", arguments)
    elif program.startswith("scripts/"):
        assert (PROJECT / program).is_file(), f"no script {program}"
    elif re.fullmatch(r"python[\d.]*", stem) and arguments[:1] == ["-m"]:
        module = arguments[1].partition(".")[0]
        assert module in {"venv", "pip", "pytest", "build", "mkdocs"} or any(
            (PROJECT / f"{arguments[1].replace('.', '/')}{end}").is_file() for end in (".py", "/__main__.py")
        ), f"no module {arguments[1]}"
    else:
        assert re.sub(r"[\d.]+$", "", stem) in OTHER_PROGRAMS.split() or PLACEHOLDER.match(program), (
            f"unknown program {program}"
        )


@pytest.mark.parametrize("block", choose("bash"), ids=str)
def test_commands_exist(block: Block) -> None:
    for words in split_commands(block.text):
        check_command(words)


@pytest.mark.parametrize(
    "line", ["replicator rnu", "replicator run --fast", "replicator lanes pause --where", "scripts/no.sh", "foo bar"]
)
def test_unknown_command_is_found(line: str) -> None:
    with pytest.raises((click.UsageError, AssertionError)):
        for words in split_commands(line):
            check_command(words)


# -- others ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", choose("python", "json"), ids=str)
def test_code_can_be_parsed(block: Block) -> None:
    if block.language == "json":
        json.loads(block.text)
    else:
        compile(block.text, str(block), "exec")
