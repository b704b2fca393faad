"""The command line. Data goes to stdout, logs to stderr; `--json` prints one object per command.

Commands import what they need when they run, so that `--help` answers at once.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Any

import click

ALLOCATORS = {
    # By default Arrow returns pages to the system after 10 ms, and faults them in again for the next batch. With this a long
    # run needs 1.6 GB, and without any return 1.8 GB (measured).
    "MIMALLOC_PURGE_DELAY": "200",
    # Off for the process. The system zeroes huge pages whole and moves others to make room: a third to a half of
    # the system time of a replay (measured).
    "MIMALLOC_ALLOW_THP": "0",
    # delta-rs keeps free pages for 10 s, in which a merge of wide rows frees as much again as it needs. An immediate return
    # doubles its processor time; this adds a tenth (measured).
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:500,muzzy_decay_ms:0",
}
"""Settings of the allocators of libraries: how long they keep free memory. Each reads them when it is first imported."""

REBUILD_ALLOCATORS = {
    # Free pages are only marked, and the system takes them when it needs them. This saves a tenth of the processor time of a
    # replay, for 200 MB more (measured). A process that stays would keep these.
    "MIMALLOC_PURGE_DECOMMITS": "0",
}
"""The settings for a command that reads a whole event log and then ends."""


YOUNG_OBJECTS = 20_000
"""New objects after which the garbage collector runs. With Python's 700 it takes a tenth of the time in which a command
starts, and finds nothing (measured)."""


def use_allocators(settings: Mapping[str, str] = ALLOCATORS) -> None:
    """Add the settings to the environment, unless it has them. To be called before Arrow and delta-rs are imported."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)


use_allocators()

INTERRUPTED = 130
"""128 and the number of SIGINT, as shells have it."""

GROUPS = {
    "Start": {"init": "start", "demo": "start", "import": "start", "schema": "start"},
    "Run": {"run": "run", "check": "run", "plan": "run", "doctor": "run", "stack": "run"},
    "Look": {
        "status": "status",
        "top": "status",
        "query": "look",
        "diff": "diff",
        "history": "look",
        "audit": "look",
        "inspect": "look",
        "record": "look",
        "events": "look",
        "serve": "look",
    },
    "Operate": {
        "lanes": "operate",
        "backfill": "operate",
        "refresh": "operate",
        "compact": "operate",
        "vacuum": "operate",
        "snapshot": "operate",
        "emit": "operate",
    },
    "Recover": {"dlq": "recover", "replay": "recover"},
    "Remove": {"drop": "operate", "forget": "operate"},
    "Help": {"support-bundle": "run"},
}
"""Heading -> command name -> module of this package that defines the click command, with `_` behind a word of Python."""
COMMANDS = {name: module for group in GROUPS.values() for name, module in group.items()}

REBUILD_COMMANDS = ("replay", "snapshot")
"""Commands that go through an event log and end then."""


class LazyGroup(click.Group):
    """A group that imports a command when it is used, and lists the commands under headings."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the headings."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A section for each heading, with summaries that start in the same column."""
        width = max(map(len, COMMANDS))
        for heading, names in GROUPS.items():
            commands = ((name, self.get_command(ctx, name)) for name in names)
            rows = [
                (name.ljust(width), command.get_short_help_str(formatter.width)) for name, command in commands if command
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or None if there is no command of that name."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in REBUILD_COMMANDS:
            use_allocators(REBUILD_ALLOCATORS)
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name.replace("-", "_")
        command = getattr(import_module(f".{COMMANDS[cmd_name]}", __package__), name)
        return command if isinstance(command, click.Command) else None

    def main(self, args: Sequence[str] | None = None, **more: Any) -> Any:  # type: ignore[override]
        """As click's, but with `--json` a usage error is JSON too, and an interrupt is exit code 130."""
        if not more.pop("standalone_mode", True):
            return super().main(args, **more, standalone_mode=False)
        arguments = list(sys.argv[1:] if args is None else args)
        try:
            sys.exit(super().main(arguments, **more, standalone_mode=False))
        except click.ClickException as wrong:
            if "--json" in arguments:
                context = getattr(wrong, "ctx", None)
                command = context.command_path.partition(" ")[2] if context is not None else ""
                step = f"See `{context.command_path} --help`." if context is not None else ""
                error = {"code": wrong.exit_code, "sentence": wrong.format_message(), "next_step": step}
                body = {"command": command, "ok": False, "summary": error["sentence"], "result": None, "error": error}
                click.echo(json.dumps(body, separators=(",", ":"), ensure_ascii=False))
            else:
                wrong.show()
            sys.exit(wrong.exit_code)
        except click.Abort as aborted:
            interrupted = isinstance(aborted.__cause__ or aborted.__context__, KeyboardInterrupt)
            click.echo("interrupted" if interrupted else "Aborted!", err=True)
            sys.exit(INTERRUPTED if interrupted else 1)


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`replicator COMMAND --help` explains a command and shows an example.",
)
@click.version_option(package_name="replicator")
def main() -> None:
    """Replicate database tables into Delta lakes and PostgreSQL from one change stream."""


def entry() -> None:
    """The program: `main`, then straight to the system.

    Everything is closed and durable when a command returns. A regular exit would also unload native libraries while their
    threads end, which can print noise on stderr or hang.
    """
    if os.getpid() == 1:  # In a container: the kernel drops signals to process 1 that have no handler.
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    gc.set_threshold(YOUNG_OBJECTS)
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
        if isinstance(ended.code, str):
            click.echo(ended.code, err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
