"""`replay --dry-run`: what today's rules would make different in a target, and nothing changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

import pyarrow as pa

from replicator.application import joining
from replicator.application.register import FileRegister
from replicator.domain.difference import Difference, difference
from replicator.domain.plain import plain
from replicator.domain.plan import CDC_APPLIED_AT, EVENT_ID
from replicator.settings import LaneSettings, Loaded

from . import adapters, dropping, parts
from .exchanging import COMPARED, Make, Standing, beside, remove, standing, up_to_the_lane
from .rebuilding import Replay, folder_of
from .seeding import Tell, prepared, quiet

SEQUENCE = "_cdc_seq_"
SHOWN = 5


def compare(loaded: Loaded, lane: LaneSettings, make: Make, tell: Tell = quiet, **asked: Any) -> dict[str, Any]:
    """Make the target of the lane anew beside it, tell the difference, and take it away again. `asked`: `Replay`'s policy
    and times. Both are read into memory. Where the log is not as far as the lane, or further, `exact` says so."""
    wanted = beside(loaded, lane, COMPARED, **asked)
    rebuilt = joining.beside(adapters.lane(loaded, lane), wanted.into)
    _forget(loaded, wanted, rebuilt)
    config = prepared(loaded, wanted, tell)
    try:
        said = up_to_the_lane(loaded, config, wanted, make)
        before, after, there = _read(loaded, lane.into, wanted)
        keys = FileRegister(parts.register_folder(config)).load(lane.source).keys.get(lane.table, lane.keys or ())
        found = difference(before, after, _identity(wanted, keys, before), apart=[CDC_APPLIED_AT], shown=SHOWN)
    finally:
        remove(loaded, wanted)
    rules = parts.transactions(loaded, lane.source)
    places = [joining.of_rows(state.position, rules) if state else None for state in (there.live, there.anew)]
    exact = places[0] is not None and places[0] == places[1]
    return {**said, "lane": f"{lane.sink}.{lane.into}", "exact": exact, **_plain(found, before, after)}


def _forget(loaded: Loaded, wanted: Replay, rebuilt: Any) -> None:
    """What an earlier comparison that was killed has left."""
    if folder_of(loaded, wanted).exists():
        dropping.drop(loaded, rebuilt)


def _read(loaded: Loaded, into: str, wanted: Replay) -> tuple[pa.Table, pa.Table, Standing]:
    """Both tables, and where the lanes stood before they were read."""
    there = standing(loaded, wanted)
    with closing(cast(Any, adapters.sink(loaded, wanted.lane.sink))) as reader:
        names = set(reader.tables())
        found = [reader.read(name) if name in names else pa.table({}) for name in (into, wanted.into)]
    return found[0], found[1], there


def _identity(wanted: Replay, keys: Sequence[str], rows: pa.Table) -> Sequence[str]:
    """What tells a row of the target from the others."""
    policy = wanted.policy or wanted.lane.policy
    if policy == "append":
        return [EVENT_ID]
    return [*keys, *(n for n in rows.column_names if n.startswith(SEQUENCE))] if policy == "scd2" else keys


def _plain(found: Difference, before: pa.Table, after: pa.Table) -> dict[str, Any]:
    return {
        "rows": {"live": before.num_rows, "rebuilt": after.num_rows},
        "same": found.same,
        "only_live": found.only_before,
        "only_rebuilt": found.only_after,
        "differing": found.differing,
        "columns": dict(found.columns),
        "columns_only_live": found.columns_only_before,
        "columns_only_rebuilt": found.columns_only_after,
        "first": {
            "only_live": [plain(row) for row in found.first["only_before"]],
            "only_rebuilt": [plain(row) for row in found.first["only_after"]],
            "differing": [plain(row) for row in found.first["differing"]],
        },
    }


def told(result: Mapping[str, Any]) -> Iterator[str]:
    """The answer for people, by the line."""
    rows, first = result["rows"], result["first"]
    yield f"{result['lane']}: {rows['live']:,} rows, and {rows['rebuilt']:,} anew; {result['same']:,} are the same"
    if not result["exact"]:
        yield "  the event log and the lane are not at the same place: what lies between them counts as a difference"
    for name, words in (("only_live", "only in the target there is"), ("only_rebuilt", "only in the one made anew")):
        if result[name]:
            yield f"{result[name]:,} rows {words}"
            yield from (f"  {row}" for row in first[name])
    if result["differing"]:
        columns = ", ".join(f"{name} ({number:,})" for name, number in result["columns"].items())
        yield f"{result['differing']:,} rows differ, in {columns}"
        for row in first["differing"]:
            changes = ", ".join(f"{name}: {was!r} → {now!r}" for name, (was, now) in row["columns"].items())
            yield f"  {row['key']}: {changes}"
    for name, words in (
        ("columns_only_live", "only the target there is has"),
        ("columns_only_rebuilt", "only the new one has"),
    ):
        if result[name]:
            yield f"columns that {words}: {', '.join(result[name])}"
    if result["rejected"]:
        yield f"{result['rejected']:,} records would be rejected"
