"""What every command shares: the common options, the settings, the two forms of output, errors and exit codes."""

from __future__ import annotations

import functools
import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from click.core import ParameterSource

from replicator.domain.errors import ConfigProblem, ExitCode, Fatal, ReplicatorError, Retryable
from replicator.domain.plain_values import to_printable
from replicator.extras import explain_missing_modules

from .completion import complete_environments, complete_files

if TYPE_CHECKING:
    from replicator.ports.components import Components
    from replicator.settings import Loaded

DEFAULT_CONFIG = "config/replicator.yaml"
MAX_FRAMES = 6
"""Places that tell where an unexpected exception comes from."""
COUNT = click.IntRange(0, 2**63 - 1)
"""How many, or which one of them."""


def to_cell(text: str) -> str:
    """`text` in one line of a table."""
    return to_printable(text).replace("\n", "\\n").replace("\t", "\\t")


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
        """Show `lines`, and ask before something is removed; Abort when the answer is no. With `--json`, and away from a
        terminal, nobody can be asked: the command fails, with `refusal` and `details`."""
        if self.as_json or not is_on_terminal():
            if lines and not self.as_json:
                self.print_note("\n".join(lines))
            problem = ConfigProblem(
                f"{refusal}: nobody is here to be asked", next_step="Repeat with --yes, or on a terminal."
            )
            self.fail(problem, ExitCode.CONFIG, details)
        if lines:
            echo("\n".join(lines))
        click.confirm(question, abort=True)

    @staticmethod
    def _print(body: dict[str, Any]) -> None:
        click.echo(msgspec.json.encode(body, enc_hook=str).decode())


def is_on_terminal() -> bool:
    """Somebody can be asked."""
    return sys.stdin.isatty()


def command(name: str, **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """A click command with the common options; the function gets a `CommandSession` first. Errors become exit codes. The
    function of a group runs only without a subcommand."""

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
            from replicator.wiring.logs import configure_logs

            context = click.get_current_context()
            if context.invoked_subcommand is not None:
                _refuse_options(context)
                return
            path = context.command_path.split(" ", 1)[-1]
            session = CommandSession(path, Path(config), env, tuple(overrides), as_json, -1 if quiet else verbose)
            configure_logs(session.verbosity, logging.WARNING)
            _run_guarded(session, functools.partial(function, session, *args, **options))

        made: Callable[[Callable[..., Any]], click.Command] = click.command(name, **settings)
        return made(_add_common_options(run))

    return decorate


def _add_common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.option(
                "-c",
                "--config",
                default=DEFAULT_CONFIG,
                show_default=True,
                envvar="REPLICATOR_CONFIG",
                show_envvar=True,
                shell_complete=complete_files,
                help="The config file.",
            ),
            click.option(
                "--env",
                envvar="REPLICATOR_ENV",
                shell_complete=complete_environments,
                help="Lay config/environments/NAME.yaml over the config.",
            ),
            click.option("--set", "overrides", multiple=True, metavar="a.b=c", help="Override one value; may be repeated."),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
            click.option("-q", "--quiet", is_flag=True, help="Errors only."),
            click.option("-v", "--verbose", count=True, help="Say more."),
        )
    ):
        function = option(function)
    return function


def _refuse_options(group: click.Context) -> None:
    """UsageError for options in front of a subcommand, which would not reach it."""
    if any(group.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in group.params):
        raise click.UsageError(f"Options stand behind {group.invoked_subcommand!r}.", group)


def _run_guarded(session: CommandSession, call: Callable[[], Any]) -> None:
    try:
        with explain_missing_modules(f"`replicator {session.command}`"):
            code = call()
    except ReplicatorError as problem:
        findings = [finding.as_dict() for finding in getattr(problem, "findings", ())]
        # A command that ends does not try again, so what may pass by itself is for the operator: something is away.
        code = ExitCode.ENVIRONMENT if isinstance(problem, Retryable) else problem.exit_code
        session.fail(problem, code, findings or None)
    except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
        raise
    except Exception as bug:
        session.fail(_make_unexpected_error(bug), ExitCode.RUNTIME)
    else:
        sys.exit(int(code or 0))


def _make_unexpected_error(bug: Exception) -> Fatal:
    """What is said of an exception that nobody foresaw: where it was raised, but not its words, which may hold secrets."""
    frames = traceback.extract_tb(bug.__traceback__)[-MAX_FRAMES:]
    places = ", ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames)
    return Fatal(f"An unexpected {type(bug).__name__} was raised.", next_step=f"Please report it: {places}.")
