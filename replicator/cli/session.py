"""The base of every command: common options, settings, output as text and as JSON, errors and exit codes."""

from __future__ import annotations

import functools
import logging
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from click.core import ParameterSource

from replicator.domain.errors import ConfigProblem, ExitCode, Fatal, ReplicatorError, Retryable
from replicator.domain.plain_values import to_printable
from replicator.extras import explain_missing_modules

from .parameters import complete_environments, complete_files

if TYPE_CHECKING:
    from replicator.ports.components import Components
    from replicator.settings import Loaded

DEFAULT_CONFIG = "config/replicator.yaml"
MAX_FRAMES = 6
"""Frames of an unexpected exception that are printed."""


def to_cell(text: str) -> str:
    """`text` in one line, without control characters."""
    return to_printable(text).replace("\n", "\\n").replace("\t", "\\t")


def format_position(position: Mapping[str, Mapping[str, int]]) -> str:
    """A position in the form of `lanes skip --until`."""
    return ",".join(f"{topic}:{p}:{offset}" for topic, offsets in position.items() for p, offset in offsets.items())


def echo(text: str, *, err: bool = False) -> None:
    """Print a line, or several, for people."""
    click.echo(to_printable(text), err=err)


@dataclass
class CommandSession:
    """One run of one command."""

    command: str
    config: Path
    env: str | None
    overrides: tuple[str, ...]
    as_json: bool
    verbosity: int
    _loaded: Loaded | None = field(default=None, repr=False)

    @property
    def loaded(self) -> Loaded:
        """The settings, read once. ConfigError when they cannot be used."""
        if self._loaded is None:
            from replicator.wiring.configuration import read_config

            self._loaded = read_config(self.config, self.env, self.overrides)
            for warning in self._loaded.warnings:
                self.print_note(str(warning))
        return self._loaded

    @property
    def components(self) -> Components:
        """The parts of the configured pipeline."""
        from replicator.wiring.components import ConfiguredComponents

        return ConfiguredComponents(self.loaded)

    def print_note(self, text: str) -> None:
        """A line for people on stderr, unless `-q`."""
        if self.verbosity >= 0:
            echo(text, err=True)

    def emit(self, result: Any, summary: str, *, ok: bool = True, text: Callable[[], None] | None = None) -> None:
        """The command's answer: with `--json` one object, otherwise what `text` prints, or the summary."""
        if self.as_json:
            self._print({"command": self.command, "ok": ok, "summary": summary, "result": result, "error": None})
        elif text is not None:
            text()
        else:
            echo(summary)

    def fail(self, problem: Exception, code: ExitCode, details: Any = None) -> None:
        """The command's error, and the end of the program."""
        step = getattr(problem, "next_step", "")
        sentence = getattr(problem, "sentence", None) or str(problem)
        if self.as_json:
            error = {"code": int(code), "sentence": sentence, "next_step": step}
            body = {"command": self.command, "ok": False, "summary": sentence, "result": details, "error": error}
            self._print(body)
        else:
            echo(f"error: {sentence}", err=True)
            if step:
                echo(f"  {step}", err=True)
        sys.exit(int(code))

    def confirm(self, question: str, refusal: str, lines: Sequence[str] = (), details: Any = None) -> None:
        """Show `lines` and ask before something is removed. Abort if the answer is no.

        With `--json`, and without a terminal, no answer is possible: the command fails with `refusal` and `details`.
        """
        if self.as_json or not is_on_terminal():
            if lines and not self.as_json:
                self.print_note("\n".join(lines))
            problem = ConfigProblem(
                f"{refusal}: a confirmation needs a terminal", next_step="Repeat on a terminal, or add --yes."
            )
            self.fail(problem, ExitCode.CONFIG, details)
        if lines:
            echo("\n".join(lines))
        click.confirm(question, abort=True)

    def run(self, call: Callable[[], Any]) -> None:
        """Run the command, and end the program with its exit code."""
        try:
            with explain_missing_modules(f"`replicator {self.command}`"):
                code = call()
        except ReplicatorError as problem:
            findings = [finding.as_dict() for finding in getattr(problem, "findings", ())]
            # A command does not retry: the operator has to look at what is not available.
            code = ExitCode.ENVIRONMENT if isinstance(problem, Retryable) else problem.exit_code
            self.fail(problem, code, findings or None)
        except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise
        except Exception as bug:
            # The message of the exception may hold secrets, so only its place is printed.
            frames = traceback.extract_tb(bug.__traceback__)[-MAX_FRAMES:]
            locations = ", ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames)
            unexpected = Fatal(
                f"An unexpected {type(bug).__name__} was raised.", next_step=f"Please report it: {locations}."
            )
            self.fail(unexpected, ExitCode.RUNTIME)
        else:
            sys.exit(int(code or 0))

    @staticmethod
    def _print(body: dict[str, Any]) -> None:
        click.echo(msgspec.json.encode(body, enc_hook=str).decode())


def is_on_terminal() -> bool:
    """True if a person can answer a prompt."""
    return sys.stdin.isatty()


def format_examples(*lines: str) -> str:
    """The epilog of a command: lines to copy, as they are."""
    return "\b\n" + "\n  ".join(("Examples:", *lines))


def command(name: str, *examples: str, **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """A click command with the common options and the epilog `examples`. The function gets a `CommandSession` first.

    Errors become exit codes. The function of a group runs only without a subcommand.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def run(
            *args: Any,
            config: str,
            env: str | None,
            overrides: Sequence[str],
            as_json: bool,
            quiet: bool,
            verbose: int,
            **options: Any,
        ) -> None:
            from replicator.wiring.process_setup import configure_logs

            context = click.get_current_context()
            if context.invoked_subcommand is not None:
                # Options in front of a subcommand would not reach it.
                if any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in context.params):
                    raise click.UsageError(f"Put the options behind {context.invoked_subcommand!r}.", context)
                return
            path = context.command_path.split(" ", 1)[-1]
            session = CommandSession(path, Path(config), env, tuple(overrides), as_json, -1 if quiet else verbose)
            configure_logs(session.verbosity, logging.WARNING)
            session.run(functools.partial(function, session, *args, **options))

        make: Callable[[Callable[..., Any]], click.Command] = click.command(
            name, epilog=format_examples(*examples), **settings
        )
        click_command = make(run)
        click_command.params += COMMON_OPTIONS
        return click_command

    return decorate


COMMON_OPTIONS = (
    click.Option(
        ["-c", "--config"],
        default=DEFAULT_CONFIG,
        show_default=True,
        envvar="REPLICATOR_CONFIG",
        show_envvar=True,
        metavar="FILE",
        shell_complete=complete_files,
        help="Config file.",
    ),
    click.Option(
        ["--env"],
        envvar="REPLICATOR_ENV",
        show_envvar=True,
        metavar="NAME",
        shell_complete=complete_environments,
        help="Merge environments/NAME.yaml over the config.",
    ),
    click.Option(
        ["--set", "overrides"],
        multiple=True,
        metavar="KEY=VALUE",
        help="Override one value of the config. Repeatable.",
    ),
    click.Option(["--json", "as_json"], is_flag=True, help="Print the result as one JSON object."),
    click.Option(["-q", "--quiet"], is_flag=True, help="Print errors and results only."),
    click.Option(["-v", "--verbose"], count=True, help="Print details and debug logs; -vv prints more."),
)
"""Options of every command, behind its own."""
