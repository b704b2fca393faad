"""`python -m adapters.stack`: the servers from the command line. `replicator stack` does the same."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from replicator.domain.errors import ExitCode, ReplicatorError
from replicator.ports.runtime import ServiceState

from .connect import ConnectRest, read_connector
from .embedded import CONNECTOR_FILE, EmbeddedStack, register, require_running, with_spark
from .kafka import TOOLS, KafkaService
from .layout import StackHome, StackPorts
from .processes import ProcessService

CONNECTOR = "postgres-source-connector"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is that of the program (3: something of the environment is missing or wrong)."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except ReplicatorError as problem:
        sys.stderr.write(f"{problem}\n")
        return int(problem.exit_code)
    except KeyboardInterrupt:
        return 130


def up(options: argparse.Namespace) -> int:
    """Start the servers and register the connector."""
    stack = _stack(options, services=with_spark if options.spark else None)
    stack.up()
    if options.connector:
        stack.register_connector(options.connector)
    return status(options)


def down(options: argparse.Namespace) -> int:
    """Stop the servers."""
    _stack(options).down(clean=options.clean)
    return ExitCode.OK


def status(options: argparse.Namespace) -> int:
    """Print a line per server; 0 when all are healthy, 1 otherwise."""
    states = _stack(options).status()
    for state in states:
        ports = " ".join(f"127.0.0.1:{port}" for port in state.ports.values())
        _print_line(f"{state.name:<20} {state.state.value:<9} {state.pid or '-':<8} {ports:<32} {state.log}")
        if state.detail:
            _print_line(f"    {state.detail}")
    return ExitCode.OK if all(s.state is ServiceState.HEALTHY for s in states) else ExitCode.RUNTIME


def logs(options: argparse.Namespace) -> int:
    """Print the servers' logs."""
    for line in _stack(options).read_logs(options.service, last=options.last, follow=options.follow):
        _print_line(line)
    return ExitCode.OK


def register_file(options: argparse.Namespace) -> int:
    """Register a connector file at the Connect worker that listens on the port."""
    name, config = read_connector(Path(options.file))
    register(ConnectRest(_ports(options).connect), name, config, options.seconds)
    _print_line(f"{name} RUNNING")
    return ExitCode.OK


def check(options: argparse.Namespace) -> int:
    """Print the state of a connector; raises with its trace and the next step unless it runs."""
    state = require_running(ConnectRest(_ports(options).connect), options.name)
    _print_line(f"connector {state.name}: {state.connector}")
    for number, task in enumerate(state.tasks):
        _print_line(f"task {number}: {task}")
    return ExitCode.OK


def kafka(options: argparse.Namespace) -> int:
    """Become one of Kafka's own command-line tools, with the broker's address filled in."""
    command = KafkaService(_stack(options).home).tool_command(options.tool, options.arguments)
    os.execv(command[0], command)  # noqa: S606 - no shell


def environment(options: argparse.Namespace) -> int:
    """Print, for a shell, where the servers listen; variables that are set already stay as they are."""
    for name, value in _ports(options).environment().items():
        if name not in os.environ and f"{name}_FILE" not in os.environ:
            _print_line(f"export {name}={shlex.quote(value)}")
    return ExitCode.OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m adapters.stack", description=__doc__)
    parser.add_argument("--project", default=".", help="folder that --folder is in")
    parser.add_argument("--folder", default=".embedded", help="data and logs, relative to the project")
    parser.add_argument("--ports", help="source=5433,kafka=29092,... to override; also REPLICATOR_STACK_PORTS")
    commands = parser.add_subparsers(required=True)
    starting = _command(commands, "up", up)
    starting.add_argument("--connector", default=CONNECTOR_FILE, help="file to register, '' for none")
    starting.add_argument("--spark", action="store_true", help="also a Spark master and a worker")
    _command(commands, "down", down).add_argument("--clean", action="store_true", help="remove all data")
    _command(commands, "status", status)
    log = _command(commands, "logs", logs)
    log.add_argument("service", nargs="?")
    log.add_argument("--last", type=int, default=50)
    log.add_argument("-f", "--follow", action="store_true")
    registering = _command(commands, "register", register_file)
    registering.add_argument("file", nargs="?", default=CONNECTOR_FILE)
    registering.add_argument("--seconds", type=float, default=120.0)
    tool = _command(commands, "kafka", kafka)
    tool.add_argument("tool", choices=tuple(TOOLS))
    tool.add_argument("arguments", nargs=argparse.REMAINDER)
    _command(commands, "environment", environment)
    _command(commands, "check", check).add_argument("name", nargs="?", default=CONNECTOR)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=run.__doc__)
    command.set_defaults(run=run)
    return command


def _ports(options: argparse.Namespace) -> StackPorts:
    return StackPorts.from_environment() if options.ports is None else StackPorts.parse(options.ports)


def _stack(
    options: argparse.Namespace, services: Callable[[StackHome], Sequence[ProcessService]] | None = None
) -> EmbeddedStack:
    return EmbeddedStack(
        options.project, options.folder, _ports(options), services=services, tell=lambda line: _write(sys.stderr, line)
    )


def _print_line(line: str) -> None:
    _write(sys.stdout, line)


def _write(stream: TextIO, line: str) -> None:
    stream.write(f"{line}\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
