"""`python -m benchmarks COMMAND`; without one, `throughput`. `--help` says which there are."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from . import (
    columns,
    decode,
    diff,
    freshness,
    gold,
    lanes,
    memory,
    new_tables,
    policies,
    projections,
    replay,
    report,
    spark,
    throughput,
)
from .applying import Case


def main() -> None:
    """Measure, print a table, and write all figures as JSON where asked to. A signal stops what was started, too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    options = parser().parse_args()
    figures: dict[str, Any] = options.measure(options)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def measure_throughput(options: argparse.Namespace) -> dict[str, Any]:
    """Raw rate and every lane."""
    figures = throughput.measure(options.events, options.only)
    report.show(figures)
    return figures


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = set(names) - set(throughput.NAMES)
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: there are {', '.join(throughput.NAMES)}")
    return names


def measure_freshness(options: argparse.Namespace) -> dict[str, Any]:
    """From COMMIT in the source to visible in each target."""
    figures = freshness.measure(options.rate, options.seconds, options.warm_up)
    freshness.show(figures)
    return figures


def measure_new_tables(options: argparse.Namespace) -> dict[str, Any]:
    """How late a table's rows are while many new tables begin."""
    figures = new_tables.measure(options.tables, options.rate)
    new_tables.show(figures)
    return figures


def measure_memory(options: argparse.Namespace) -> dict[str, Any]:
    """Resident memory over a long run."""
    figures = memory.measure(options.events, options.lane)
    memory.show(figures)
    return figures


def measure_spark(options: argparse.Namespace) -> dict[str, Any]:
    """The Spark engine beside a pipeline as tutorials write it."""
    figures = spark.measure(options.events, options.batches, options.workers, alone=options.alone)
    spark.show(figures)
    return figures


def measure_policies(options: argparse.Namespace) -> dict[str, Any]:
    """One batch of changes under each policy beside a MERGE written by hand."""
    cases = [
        Case(policy, options.rows, options.changes, columns, keys)
        for columns in options.columns
        for keys in options.keys
        for policy in options.policy
    ]
    figures = policies.measure(cases, options.sinks, options.runs)
    policies.show(figures)
    return figures


def measure_decode(options: argparse.Namespace) -> dict[str, Any]:
    """Decoders beside plain parsers of the same bytes, on one core."""
    figures = decode.measure(options.transactions, options.rounds, options.formats)
    decode.show(figures)
    return figures


def measure_columns(options: argparse.Namespace) -> dict[str, Any]:
    """What rules for columns cost, beside the same run without."""
    figures = columns.measure(options.events, options.rounds, options.batch)
    columns.show(figures)
    return figures


def measure_projections(options: argparse.Namespace) -> dict[str, Any]:
    """A refresh of the groups that were touched beside one of everything."""
    figures = projections.measure(
        options.rows, options.groups, options.share, options.rounds, options.layouts, feed=options.feed
    )
    projections.show(figures)
    return figures


def measure_gold(options: argparse.Namespace) -> dict[str, Any]:
    """The gold tables of the examples: a refresh of the groups that were touched beside one of everything."""
    figures = gold.measure(options.rows, options.groups, options.share, options.rounds, options.examples)
    projections.show(figures)
    return figures


def measure_replay(options: argparse.Namespace) -> dict[str, Any]:
    """An event log into a table, beside DuckDB alone."""
    figures = replay.measure(options.events, options.policy, options.columns, options.rounds)
    replay.show(figures)
    return figures


def measure_diff(options: argparse.Namespace) -> dict[str, Any]:
    """A table compared with its targets, beside a copy and EXCEPT."""
    figures = diff.measure(options.rows, options.sinks, options.rounds)
    diff.show(figures)
    return figures


def _with_replay(replaying: argparse.ArgumentParser) -> None:
    replaying.add_argument("--events", type=int, default=5_000_000)
    replaying.add_argument("--rounds", type=int, default=1, help="of each, in turns; the least counts")
    replaying.add_argument("--policy", choices=replay.POLICIES, nargs="+", default=list(replay.POLICIES))
    replaying.add_argument(
        "--columns", choices=replay.COLUMNS, nargs="+", default=list(replay.COLUMNS), help="that DuckDB reads"
    )


def _with_gold(computing: argparse.ArgumentParser) -> None:
    computing.add_argument("--rows", type=int, default=10_000_000)
    computing.add_argument("--groups", type=int, default=1_000)
    computing.add_argument("--share", type=float, default=0.01, help="of the groups is touched")
    computing.add_argument("--rounds", type=int, default=3, help="of each, in turns; the least counts")
    computing.add_argument("--examples", choices=tuple(gold.EXAMPLES), nargs="+", default=list(gold.EXAMPLES))


def _with_projections(computing: argparse.ArgumentParser) -> None:
    computing.add_argument("--rows", type=int, default=10_000_000)
    computing.add_argument("--groups", type=int, default=10_000)
    computing.add_argument("--share", type=float, default=0.01, help="of the groups is touched")
    computing.add_argument("--feed", action="store_true", help="with the change data feed of the input")
    computing.add_argument("--rounds", type=int, default=3, help="of each, in turns; the least counts")
    computing.add_argument("--layouts", choices=projections.LAYOUTS, nargs="+", default=list(projections.LAYOUTS))


def _with_policies(applying: argparse.ArgumentParser) -> None:
    applying.add_argument("--rows", type=int, default=10_000_000)
    applying.add_argument("--changes", type=int, default=100_000)
    applying.add_argument("--columns", type=int, nargs="+", default=[5])
    applying.add_argument("--keys", choices=("uniform", "zipf"), nargs="+", default=["uniform", "zipf"])
    applying.add_argument("--policy", choices=("scd1", "scd2"), nargs="+", default=["scd1", "scd2"])
    applying.add_argument("--sinks", choices=policies.SINKS, nargs="+", default=list(policies.SINKS))
    applying.add_argument("--runs", type=int, default=2, help="of each, in turns; the least counts")


def parser() -> argparse.ArgumentParser:
    """Every command with its options; `measure` of what it parses is the function to call."""
    root = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    _with_throughput(root)
    commands = root.add_subparsers(
        metavar="throughput|freshness|new-tables|memory|spark|policies|decode|columns|projections|gold|replay|diff"
    )
    _with_throughput(commands.add_parser("throughput", help=measure_throughput.__doc__))
    fresh = commands.add_parser("freshness", help=measure_freshness.__doc__)
    fresh.add_argument("--rate", type=int, default=500, help="rows a second")
    fresh.add_argument("--seconds", type=float, default=60.0, help="that count")
    fresh.add_argument("--warm-up", type=float, default=10.0, metavar="SECONDS", help="before them")
    many = commands.add_parser("new-tables", help=measure_new_tables.__doc__)
    many.add_argument("--tables", type=int, default=1_000)
    many.add_argument("--rate", type=int, default=20, help="rows a second of the table that is there")
    long = commands.add_parser("memory", help=measure_memory.__doc__)
    long.add_argument("--events", type=int, default=5_000_000)
    long.add_argument("--lane", choices=lanes.LANES, default="all")
    on_spark = commands.add_parser("spark", help=measure_spark.__doc__)
    on_spark.add_argument("--events", type=int, default=400_000)
    on_spark.add_argument("--batches", type=int, nargs="+", default=[20_000, 100_000], metavar="EVENTS")
    on_spark.add_argument("--alone", action="store_true", help="without the pipeline of tutorials beside it")
    on_spark.add_argument("--workers", type=int, nargs="*", default=[1, 2], help="sizes of clusters to measure too")
    applying = commands.add_parser("policies", help=measure_policies.__doc__)
    _with_policies(applying)
    decoding = commands.add_parser("decode", help=measure_decode.__doc__)
    decoding.add_argument("--transactions", type=int, default=2_000)
    decoding.add_argument("--rounds", type=int, default=5, help="of each, in turns; the least counts")
    decoding.add_argument("--formats", choices=tuple(decode.TO_REACH), nargs="+", default=list(decode.TO_REACH))
    ruled = commands.add_parser("columns", help=measure_columns.__doc__)
    ruled.add_argument("--events", type=int, default=100_000)
    ruled.add_argument("--rounds", type=int, default=3, help="of each, in turns; the least counts")
    ruled.add_argument("--batch", type=int, default=20_000, metavar="EVENTS")
    computing = commands.add_parser("projections", help=measure_projections.__doc__)
    _with_projections(computing)
    of_examples = commands.add_parser("gold", help=measure_gold.__doc__)
    _with_gold(of_examples)
    replaying = commands.add_parser("replay", help=measure_replay.__doc__)
    _with_replay(replaying)
    comparing = commands.add_parser("diff", help=measure_diff.__doc__)
    comparing.add_argument("--rows", type=int, default=10_000_000)
    comparing.add_argument("--sinks", choices=diff.SINKS, nargs="+", default=list(diff.SINKS))
    comparing.add_argument("--rounds", type=int, default=2, help="of each, in turns; the least counts")
    measures = {
        fresh: measure_freshness,
        many: measure_new_tables,
        long: measure_memory,
        on_spark: measure_spark,
        applying: measure_policies,
        decoding: measure_decode,
        ruled: measure_columns,
        computing: measure_projections,
        of_examples: measure_gold,
        replaying: measure_replay,
        comparing: measure_diff,
    }
    for command, run in measures.items():
        command.add_argument("--json", type=Path, help="file for all figures")
        command.set_defaults(measure=run)
    return root


def _with_throughput(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--only", type=_names, default=list(throughput.NAMES), metavar="LANE,...")
    parser.set_defaults(measure=measure_throughput)


if __name__ == "__main__":
    main()
