"""`replicator diff`: compares tables of a source with their targets, and repairs rows that differ."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replicator import __version__
from replicator.domain.errors import ConfigProblem, EnvironmentProblem, ExitCode, ReplicatorError, Retryable
from replicator.domain.plain_values import format_count

from .look import PIPED_WIDTH
from .parameters import COUNT, complete_files, complete_sinks, complete_tables, parse_duration
from .session import CommandSession, command, echo, is_on_terminal

if TYPE_CHECKING:
    from replicator.domain.differences import LaneDiff


@command(
    "diff",
    "replicator diff public.orders",
    "replicator diff public.orders public.items --sink lake --report diff.html",
    "replicator diff public.orders --repair",
    "replicator diff public.orders --watch '10 minutes'",
)
@click.argument("tables", metavar="TABLE...", nargs=-1, required=True, shell_complete=complete_tables)
@click.option("--sink", metavar="NAME", shell_complete=complete_sinks, help="Compare only the targets in this sink.")
@click.option(
    "--against",
    type=click.Choice(["source", "log"]),
    help="Compare with the source, or with the event log of the table.  [default: the source if it can be read]",
)
@click.option(
    "--where",
    metavar="CONDITION",
    default="",
    help="Compare only rows that match CONDITION, written as `where` in the config. Not with --against log.",
)
@click.option("--show", type=COUNT, default=10, show_default=True, help="Print the first N differences of each lane.")
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    shell_complete=complete_files,
    help="Also write an HTML report into FILE. It contains values of rows.",
)
@click.option(
    "--rate",
    "rows_per_second",
    metavar="ROWS",
    type=click.IntRange(min=1),
    help="Compare at most ROWS rows of the source per second. Not with --against log.",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    help="Stop with exit code 3 if a lane does not reach the compared point within SECONDS.",
)
@click.option(
    "--anew", "from_scratch", is_flag=True, help="Start over instead of resuming an interrupted comparison with the source."
)
@click.option("--repair", is_flag=True, help="Write the rows that differ again, and compare once more.")
@click.option("--yes", is_flag=True, help="With --repair: do not ask for confirmation.")
@click.option(
    "--watch",
    metavar="DURATION",
    help="Compare again after each DURATION, such as '10 minutes', until Ctrl-C. Prints a line per lane.",
)
def diff(
    session: CommandSession,
    tables: tuple[str, ...],
    report: Path | None,
    from_scratch: bool,
    repair: bool,
    yes: bool,
    watch: str | None,
    **options: Any,
) -> int:
    """Compare tables of a source with their targets.

    TABLE is the name of a table in the source, with or without its schema. Both sides are compared at one exact position of
    the log, while changes continue. So a change on its way is no difference.

    The daemon should run meanwhile. The exit code is 0 if all rows are equal, and 7 if some differ. If the command is
    interrupted, run it again: it resumes.
    """
    from replicator.application.operations.lanes import find_source_table
    from replicator.domain.patterns import is_exact

    if watch is not None and (session.as_json or repair):
        raise click.UsageError(f"--watch cannot be combined with {'--json' if session.as_json else '--repair'}.")
    if options["against"] == "log":
        _refuse_options_of_sources({**options, "repair": repair, "from_scratch": from_scratch})
    pause = None if watch is None else parse_duration(watch)
    if pause is not None and not pause:
        raise click.UsageError("--watch needs a pause of at least one second.")
    if report is not None and not report.parent.is_dir():
        raise ConfigProblem(f"there is no folder {report.parent} for the report", next_step="Create it.")
    if repair and not yes and (session.as_json or not is_on_terminal()):
        session.confirm("", "nothing was compared")
    for table in tables:
        if not is_exact(table):
            raise ConfigProblem(f"{table!r} is a pattern", next_step="Name the tables: `replicator plan` lists them.")
    names = tuple(find_source_table(session.components, table) for table in tables)
    run = DiffRun(session, names, options, report, from_scratch=from_scratch)
    if pause is not None:
        return run.watch(pause)
    diffs = run.compare()
    return run.repair(diffs, ask=not yes) if repair else run.finish(diffs)


def _refuse_options_of_sources(options: Mapping[str, Any]) -> None:
    """Options that mean nothing in a comparison with the event log."""
    names = {"where": "--where", "rows_per_second": "--rate", "from_scratch": "--anew"}
    for key, name in names.items():
        if options[key]:
            raise click.UsageError(f"{name} cannot be combined with --against log.")
    if options["repair"]:
        raise click.UsageError("--repair writes rows of the source: leave out --against log.")


@dataclass(frozen=True)
class DiffRun:
    """One run of the command. `options`: those of `diff_tables`."""

    session: CommandSession
    tables: Sequence[str]
    options: dict[str, Any]
    report: Path | None
    from_scratch: bool = False
    is_watching: bool = False

    def compare(self) -> list[LaneDiff]:
        """Compare once, print each lane when it is compared, and write the report."""
        from replicator.wiring.backfill import diff_tables

        from .diff_report import format_lane, format_outcome, format_time

        diffs: list[LaneDiff] = []
        loaded, options = self.session.loaded, {**self.options, "from_scratch": self.from_scratch}
        try:
            for one in diff_tables(loaded, self.tables, self._print_progress, **options):
                diffs.append(one)
                self._keep(one)
                if self.is_watching:
                    echo(f"{format_time(one.begun)} {format_outcome(one)}")
                elif not self.session.as_json:
                    width = shutil.get_terminal_size((PIPED_WIDTH, 24)).columns
                    echo("\n".join(format_lane(one, width)))
        except ReplicatorError as problem:
            if not diffs or self.is_watching:
                raise
            self._write_report(diffs)
            code = ExitCode.ENVIRONMENT if isinstance(problem, Retryable) else problem.exit_code
            self.session.fail(problem, code, [one.to_dict() for one in diffs])
        self._write_report(diffs)
        return diffs

    def finish(self, diffs: Sequence[LaneDiff], repaired: dict[str, dict[str, int]] | None = None) -> int:
        """Print the result, and return the exit code."""
        from .diff_report import summarize

        result = [one.to_dict() for one in diffs]
        if repaired is not None:
            result = [{**one, "repaired": repaired.get(one["lane"])} for one in result]
        summary, code = summarize(diffs), get_exit_code(diffs)
        self.session.emit(result, summary, ok=code is ExitCode.OK, text=lambda: echo(summary) if len(diffs) != 1 else None)
        return code

    def repair(self, diffs: Sequence[LaneDiff], *, ask: bool) -> int:
        """Write the rows that differ again, and compare once more."""
        from replicator.wiring.backfill import refuse_repair, repair_table

        wrong = [one for one in diffs if not one.equal]
        if not wrong:
            return self.finish(diffs)
        for one in wrong:
            refuse_repair(self.session.loaded, one)
        if ask:
            rows = format_count(sum(one.missing + one.extra + one.different for one in wrong), "row")
            self.session.confirm(f"Write {rows} again, as the source has them now?", "nothing was repaired")
        repaired = {}
        for one in wrong:
            repair = repair_table(self.session.loaded, one, self.session.print_note)
            repaired[one.lane] = {"rows": repair.rows, "deletes": repair.deletes}
            if not self.session.as_json:
                echo(f"{one.lane}: {format_count(repair.rows, 'row')} written again, {repair.deletes:,} deleted")
        # The report keeps what was found before.
        again = replace(self, from_scratch=False, report=None)
        return again.finish(again.compare(), repaired)

    def watch(self, pause: timedelta) -> int:
        """Compare again and again until Ctrl-C. Returns the exit code of the last comparison.

        After the first comparison, a server that does not answer ends only one comparison.
        """
        run, last = replace(self, is_watching=True), None
        try:
            while True:
                try:
                    last = run.compare()
                except (Retryable, EnvironmentProblem) as problem:
                    if last is None:
                        raise
                    echo(f"{datetime.now(UTC).isoformat(sep=' ', timespec='seconds')} error: {problem}", err=True)
                run = replace(run, from_scratch=False)
                time.sleep(pause.total_seconds())
        except KeyboardInterrupt:
            if last is None:
                raise
            return get_exit_code(last)

    def _keep(self, one: LaneDiff) -> None:
        """Store the result without values, for `replicator status`. A part of a table proves too little for that."""
        from replicator.application.operations.diff_runs import keep_run

        if self.options["where"]:
            return
        try:
            keep_run(self.session.components.folder, one)
        except OSError as error:
            self._print_progress(f"warning: `replicator status` will not show this: {error.filename}: {error.strerror}")

    def _print_progress(self, sentence: str) -> None:
        """A sentence on stderr. `--watch` prints it only with `-v`."""
        if not self.is_watching or self.session.verbosity > 0:
            self.session.print_note(sentence)

    def _write_report(self, diffs: Sequence[LaneDiff]) -> None:
        if self.report is None:
            return
        from .diff_report import render_report

        rate, session = self.options["rows_per_second"], self.session
        run = {  # No value that may be a secret.
            "pipeline": session.loaded.settings.pipeline,
            "tables": ", ".join(self.tables),
            "sink": self.options["sink"] or "all",
            "condition": self.options["where"],
            "rows per second": f"at most {rate:,}" if rate else "",
            "config": str(session.config),
            "environment": session.env or "",
            "version of Replicator": __version__,
        }
        try:
            self.report.write_text(render_report(diffs, run), encoding="utf-8")
        except OSError as error:
            raise EnvironmentProblem(
                f"The report {self.report} cannot be written: {error.strerror}.",
                next_step="Name another file with `--report`, and repeat the command.",
            ) from error
        self._print_progress(f"The report is in {self.report}.")


def get_exit_code(diffs: Sequence[LaneDiff]) -> ExitCode:
    """7 if a row differs."""
    return ExitCode.OK if all(one.equal for one in diffs) else ExitCode.DIFFERENT
