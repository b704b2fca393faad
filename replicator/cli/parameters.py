"""Parameters of commands: their types, and the names that a shell completes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replicator.domain.errors import ConfigProblem
from replicator.domain.position import Position

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from replicator.ports.stores import RegisterEntry

MAX_COUNT = 2**63 - 1


class CountParam(click.ParamType[int]):
    """A number of things, or the number of one of them."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. UsageError for text, a fraction, or a negative number."""
        try:
            number = int(value)
        except ValueError:
            number = -1
        if not 0 <= number <= MAX_COUNT:
            self.fail(f"{value!r} is not a whole number from 0 to {MAX_COUNT}.", param, ctx)
        return number


COUNT = CountParam()


# Times, and positions in a stream.

TIMES = ("%H:%M:%S%z", "%H:%M:%S.%f%z", "%H:%M:%S", "%H:%M:%S.%f")
FORMS = (*(f"%Y-%m-%d{between}{time}" for between in "T " for time in TIMES), "%Y-%m-%d")
"""Formats of a time."""
EXAMPLE = "2026-01-31T12:00:00Z"
IN_UTC = "Without a time zone it is UTC."
"""A sentence for the help of every time."""


class TimeParam(click.DateTime):
    """A time with its zone. Without a zone it is UTC."""

    def __init__(self) -> None:
        super().__init__(FORMS)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """A word instead of all formats."""
        return "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The time, aware."""
        try:
            time = super().convert(value, param, ctx)
        except click.UsageError:
            self.fail(f"{value!r} is not a time such as 2026-01-31 or {EXAMPLE}.", param, ctx)
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


class TimeOrPositionParam(click.ParamType[datetime | Position]):
    """A time, or the position behind the last records that count. `history` and `audit` print TOPIC:PARTITION:OFFSET."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime | Position:
        """The time, aware, or the position."""
        if isinstance(value, datetime | Position):
            return value
        try:
            return TIME.convert(value, param, ctx)
        except click.UsageError:
            try:
                return Position({p: offset + 1 for p, offset in Position.from_option(value).items()})
            except ValueError:
                self.fail(f"{value!r} is not a time such as {EXAMPLE}, and not TOPIC:PARTITION:OFFSET[,...].", param, ctx)


def parse_duration(text: str) -> timedelta:
    """A duration in the form of the config, such as `30 days`. ConfigProblem for another text."""
    from replicator.ports.options import DURATION, to_timedelta

    if not re.fullmatch(DURATION, text):
        raise ConfigProblem(f"{text!r} is not a duration", next_step="Write a duration such as '12 hours' or '30 days'.")
    return to_timedelta(text)


TIME = TimeParam()
TIME_OR_POSITION = TimeOrPositionParam()


# Shell completion: the names that arguments and options take, and files.
#
# Names come from the config, and from the register of the tables and lanes that a run has read. A shell waits for the
# names: the module connects to nothing, and imports neither drivers nor the models of the settings. If the config cannot
# be read, it completes nothing.

Completer = Callable[[click.Context, click.Parameter, str], list[str]]

PLAIN_NAME = re.compile(r"\w[\w./-]*")
"""Names that are no glob, no regular expression, and nothing that a shell would expand."""
EVENT_LOG = "event_log"
"""The built-in kind of event logs."""
REFERENCE = re.compile(r"\$\{(\w+)(?::-([^{}]*))?\}")


def make_completer(*kinds: str, otherwise: str = "") -> Completer:
    """A completer of the names of these kinds (keys of `_read_names`). If none fits, it completes the kind `otherwise`."""

    def complete_name(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        try:
            names = _read_names(context)
        except Exception:  # `replicator check` prints the problem.
            return []
        matches = _select([name for kind in kinds for name in names[kind]], incomplete)
        return matches or _select(names.get(otherwise, ()), incomplete)

    return complete_name


complete_environments = make_completer("environments")
complete_lanes = make_completer("lanes", "log_lanes")
complete_projections = make_completer("projections")
complete_sinks = make_completer("sinks")
complete_sources = make_completer("sources")
complete_stored = make_completer("tables", "lanes", "stores", otherwise="last_parts")
"""Completes the arguments of `compact` and `vacuum`."""
complete_table_names = make_completer("tables")
complete_tables = make_completer("tables", otherwise="last_parts")
complete_target_lanes = make_completer("lanes")
complete_targets = make_completer("tables", "lanes", otherwise="last_parts")


def complete_codes(_context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The reasons of rejected records."""
    from replicator.domain.errors import RejectCode

    return _select(RejectCode.list_all(), incomplete)


def complete_files(_context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """A marker that lets the shell list files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def complete_sources_or_files(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str] | list[CompletionItem]:
    """Sources, otherwise files."""
    return complete_sources(context, parameter, incomplete) or complete_files(context, parameter, incomplete)


def _select(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete) and PLAIN_NAME.fullmatch(name)})


def _read_names(context: click.Context) -> dict[str, Collection[str]]:
    """The names by kind, for the config that the options of the command name."""
    from replicator.settings import load_layers

    options = context.params
    document, _, root = load_layers(options["config"], options["env"], options["overrides"])
    data: Mapping[str, Any] = document.data
    logs = {name for name, sink in data["sinks"].items() if _is_event_log(sink["kind"])}
    register_entries = list(_read_register(data, root))
    lanes = set()
    for table in data["tables"]:
        # A lane of a glob has a glob in its name, unless `into` names the target.
        for entry in table["to"]:
            into = next((x["into"] for x in (entry, table, data.get("defaults") or {}) if x.get("into")), None)
            into = table["source"] if entry["sink"] in logs else into or table["match"].rpartition(".")[2]
            lanes.add(f"{entry['sink']}.{into}")
    lanes |= {lane for source in register_entries for lane in source.beginnings}
    tables = {table["match"] for table in data["tables"]}.union(*(source.topics for source in register_entries))
    log_lanes = {lane for lane in lanes if lane.partition(".")[0] in logs}
    return {
        "environments": {file.stem for file in Path(options["config"]).parent.glob("environments/*.yaml")},
        "lanes": lanes - log_lanes,
        "last_parts": {table.rpartition(".")[2] for table in tables},
        "log_lanes": log_lanes,
        "projections": data.get("projections") or {},
        "sinks": set(data["sinks"]) - logs,
        "sources": data["sources"],
        "stores": {*logs, "dead_letters"},
        "tables": tables,
    }


def _is_event_log(kind: str) -> bool:
    """True for the built-in kind of event logs, and for a kind of another package whose model says so. The import of models
    takes long, so those of built-in kinds are not read."""
    points = () if kind == EVENT_LOG else entry_points(group="replicator.sink_options", name=kind)
    return kind == EVENT_LOG or any(point.load().is_event_log for point in points if not point.value.startswith("adapters."))


def _read_register(data: Mapping[str, Any], root: Path) -> Iterator[RegisterEntry]:
    """The stored tables and lanes of each source, from the folder that `wiring.container.PipelineSetup.build_register` uses.
    Without `pipeline` in the config, from every pipeline in the state folder."""
    from replicator.application.state_folder import FileRegister
    from replicator.domain.errors import EnvironmentProblem

    state, pipeline = (
        REFERENCE.sub(lambda match: os.environ.get(match[1]) or match[2] or "", data.get(key) or default)
        for key, default in (("state", "./state"), ("pipeline", "*"))
    )
    for folder in (root / state).glob(f"{pipeline}/sources"):
        for source in data["sources"]:
            with suppress(EnvironmentProblem):
                yield FileRegister(folder).load(source)
