"""Columns that the configuration declares, for events that carry no schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

import pyarrow as pa

from replicator.domain.errors import ConfigProblem

from ..json import decimals, nested, nodes, temporal
from ..json.nodes import Node

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SIMPLE: dict[str, Callable[[], Node]] = {
    **{name: partial(nodes.integer, pa.type_for_alias(name)) for name in INTEGERS},
    "int": lambda: nodes.integer(pa.int32()),
    "bigint": lambda: nodes.integer(pa.int64()),
    "float": lambda: nodes.floating(pa.float32()),
    "float32": lambda: nodes.floating(pa.float32()),
    "double": lambda: nodes.floating(pa.float64()),
    "float64": lambda: nodes.floating(pa.float64()),
    "bool": nodes.boolean,
    "boolean": nodes.boolean,
    "string": nodes.text,
    "utf8": nodes.text,
    "binary": nodes.binary,
    "date": temporal.date,
    "date32": temporal.date,
    "date32[day]": temporal.date,
    "time": lambda: temporal.time(1_000_000),
    "time32[ms]": lambda: temporal.time(1_000),
    "time64[us]": lambda: temporal.time(1_000_000),
    "time64[ns]": lambda: temporal.time(1_000_000_000),
    "timestamp": lambda: temporal.timestamp(1_000_000),
    "timestamp[ms]": lambda: temporal.timestamp(1_000),
    "timestamp[us]": lambda: temporal.timestamp(1_000_000),
    "timestamp[ns]": lambda: temporal.timestamp(1_000_000_000),
    "timestamp[us, utc]": lambda: temporal.iso_timestamp(temporal.UTC_US),
    "timestamp[us, tz=utc]": lambda: temporal.iso_timestamp(temporal.UTC_US),
    "timestamptz": lambda: temporal.iso_timestamp(temporal.UTC_US),
}
"""The unit of a time without zone is the unit that the event uses: `timestamp[ms]` reads milliseconds (and becomes
microseconds). A timestamp with zone reads ISO text."""

DECIMAL = re.compile(r"decimal(?:128|256)?\((\d+)(?:,(-?\d+))?\)\Z")
LIST = re.compile(r"list<(?:item:|element:)?(.+)>\Z")


def node_named(table: str, column: str, name: str, *, precise: bool) -> Node:
    """How the values of a declared column are decoded. `precise`: decimals come as base64 of their unscaled value.

    Raises ConfigProblem for a name that is no Arrow type, or one that this format does not send.
    """
    wanted = re.sub(r"\s*([,<>()\[\]:=])\s*", r"\1", name.strip().lower()).replace(",utc", ", utc").replace(",tz", ", tz")
    if wanted in SIMPLE:
        return SIMPLE[wanted]()
    inner = LIST.match(wanted)
    if inner:
        return nested.array(node_named(table, column, inner[1], precise=precise))
    found = DECIMAL.match(wanted)
    if not found or not 1 <= int(found[1]) <= decimals.MAX_PRECISION:
        raise ConfigProblem(
            f"column {column!r} of table {table} is declared as {name!r}, which is no type this format can read",
            next_step="Use an Arrow type name such as int64, string, double, bool, binary, date32, "
            "timestamp[us], timestamp[us, UTC], decimal(10,2) or list<string>.",
        )
    digits, scale = int(found[1]), int(found[2] or 0)
    arrow = decimals.decimal_type(digits, scale)
    if precise or arrow is None:
        return decimals.decimal(digits, scale, numeric=False)
    return decimals.decimal_text(arrow)


def nodes_of(table: str, columns: Mapping[str, str], *, precise: bool) -> dict[str, Node]:
    """How each declared column is decoded."""
    return {name: node_named(table, name, said, precise=precise) for name, said in columns.items()}


def refuse_types(declared: Mapping[str, Mapping[str, str]]) -> None:
    """Raise ConfigProblem that names every declared column whose type cannot be read."""
    found: list[ConfigProblem] = []
    for table, columns in declared.items():
        for name, said in columns.items():
            try:
                node_named(table, name, said, precise=False)
            except ConfigProblem as problem:
                found.append(problem)
    if found:
        raise ConfigProblem("; ".join(problem.sentence for problem in found), next_step=found[0].next_step)
