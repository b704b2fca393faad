"""Builds the parts of a pipeline that exist per source or per sink."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from replicator.application.delivery.worker import Worker
from replicator.application.lane_registry import SourceContext
from replicator.application.quarantine.poison_records import PoisonRecordFinder
from replicator.application.quarantine.rejects import Rejects
from replicator.application.runtime_context import RuntimeContext
from replicator.application.state_folder import FileRegister
from replicator.application.stream.pipeline import SourcePipeline
from replicator.domain.patterns import matches
from replicator.domain.plain_values import format_count
from replicator.ports.components import CONTINUE, RulesFor, TableRules, TransactionRules, make_event_log_lane
from replicator.ports.decoder import Decoder
from replicator.ports.frames import Lane
from replicator.ports.options import to_timedelta
from replicator.ports.sink import Sink
from replicator.ports.source import Source
from replicator.settings import LaneSettings, Loaded, to_plain_options
from replicator.settings.tables import EntrySettings, TableSettings, find_private_columns
from replicator.wiring import adapters

Workers = Mapping[str, Worker[Any]]
Pipelines = Mapping[str, SourcePipeline[Any]]


@dataclass(frozen=True)
class PipelineInput:
    """The records of a pipeline, and its lanes.

    - `name`: the source that sent the records. `open_records`, `build_decoder`: read and decode them.
    - `rules_for`: of a table, its lanes and their rules. `sinks`: the names of the sinks of all lanes.
    - `is_private`: some table has columns that are masked in every stored record.
    - `has_backfills`: tables can also be loaded from their database.
    - `event_logs`: the lanes that store all records.
    - `transactions`: the rules by which lanes follow source transactions; None if they do not.
    - `on_reject`: the reaction to rejected records whose table is unknown.
    """

    name: str
    open_records: Callable[[], Source[Any]]
    build_decoder: Callable[[], Decoder]
    rules_for: RulesFor
    sinks: Sequence[str]
    is_private: bool
    has_backfills: bool = False
    event_logs: Sequence[Lane] = ()
    transactions: TransactionRules | None = None
    on_reject: str = CONTINUE


def build_pipelines(
    inputs: Sequence[PipelineInput], register: FileRegister, workers: Workers, runtime: RuntimeContext[Any]
) -> Pipelines:
    """By source, the pipeline from its records to its lanes, whether the config, a rebuild or a checkpoint needs it.

    Each lane continues at the position that its sink has committed.
    """
    pipelines = {}
    for one in inputs:
        notes = register.get_crash_notes(one.name)
        context = SourceContext(
            name=one.name,
            source=one.open_records(),
            rules_for=one.rules_for,
            event_logs=one.event_logs,
            workers=workers,
            register=register,
            transactions=one.transactions,
            on_reject=one.on_reject,
            poison_records=PoisonRecordFinder(notes, runtime.engine.frames, runtime.rejects, one.name, runtime.decoding),
            private=one.is_private,
            has_backfills=one.has_backfills,
        )
        pipelines[one.name] = SourcePipeline(context, one.build_decoder(), runtime)
    return pipelines


def build_workers(sinks: Mapping[str, Sink[Any]], runtime: RuntimeContext[Any], spill_folder: Path | None) -> Workers:
    """One worker per sink."""
    return {
        name: Worker(name, sink, runtime, spill_folder and spill_folder / quote(name, safe=""))
        for name, sink in sinks.items()
    }


def get_key_file(loaded: Loaded) -> Path:
    """The file with the secret for hashing keys of rejected records. It is next to the erasure list, where a replay
    finds it."""
    return adapters.open_erasure_list(loaded).path.with_name("keys.secret")


def build_transaction_rules(loaded: Loaded, source: str) -> TransactionRules | None:
    """The transaction rules of one source. None if its lanes do not wait for transactions."""
    rules = loaded.settings.sources[source].transactions
    if rules is None:
        return None
    together = loaded.settings.engine == "local"
    return TransactionRules(rules.topic, rules.max_transaction_bytes, to_timedelta(rules.patience).total_seconds(), together)


def build_rules_for(loaded: Loaded, source: str) -> RulesFor:
    """A function from a table of the source to its configured rules. It resolves each table once."""

    @cache
    def rules(table: str) -> TableRules | None:
        if loaded.settings.find_table(table, source) is None:
            return None
        settings = loaded.settings.resolve_lanes(table, source)
        lanes = tuple(adapters.build_lane(loaded, lane) for lane in settings)
        logs = frozenset(loaded.settings.list_table_event_logs(table, source))
        on_reject, masks = loaded.settings.get_on_reject(table, source), adapters.find_masks(loaded, table, source)
        return TableRules(lanes, adapters.find_keys(settings), logs, on_reject, masks)

    return rules


def build_event_logs(loaded: Loaded, source: str) -> tuple[Lane, ...]:
    """The event-log lanes of one source."""
    settings = loaded.settings
    names = settings.list_event_logs(source)
    return tuple(
        make_event_log_lane(settings.pipeline, source, name, loaded.describe_origin("sinks", name)) for name in names
    )


MOST_NAMED = 10
"""Tables that a sentence about an unmatched entry names."""


def describe_unmatched(loaded: Loaded, of_sources: Pipelines, rejects: Rejects[Any]) -> list[str]:
    """A sentence for each entry of `tables` without a matching table, because its name may be misspelt.

    Tables of rejected records count too. Records that were rejected before routing may belong to any table.
    """
    sentences = []
    for number, entry in enumerate(loaded.settings.tables):
        if entry.source not in of_sources:
            continue
        kinds = {kind: records for kind, records in rejects.kinds.items() if kind.source == entry.source}
        seen = sorted({*of_sources[entry.source].registry.topics, *(kind.table for kind in kinds if kind.table)})
        if not any(matches(entry.match, table) for table in seen):
            unread = sum(records for kind, records in kinds.items() if not kind.table)
            more = f"; the table of {format_count(unread, 'rejected record')} is unknown" if unread else ""
            line = loaded.describe_origin("tables", number, "match")
            names = ", ".join(seen[:MOST_NAMED]) or "none"
            others = f" and {len(seen) - MOST_NAMED} more" if len(seen) > MOST_NAMED else ""
            sentences.append(f"no table matched {entry.match} ({line}); seen: {names}{others}{more}")
    return sentences


def find_heartbeat(of_sources: Pipelines) -> float:
    """The last activity of the slowest pipeline: seconds on the monotonic clock."""
    return min((p.last_beat for p in of_sources.values()), default=0.0)


# Digests of a lane's rules, to compare two configurations.

RULES_VERSION = 2
"""Increased when the program produces other rows from the same records."""
RECORD_KEYS = adapters.DECODER_KEYS - {"registry"}
"""Keys of a source that decide the meaning of its records. The schema registry's address does not."""


def digest_rules(loaded: Loaded, lane: LaneSettings) -> str:
    """A digest of everything in the config that decides the rows of a lane. These are the options of its decoder and of
    the lane, and masks with their keys.

    The locations of source, registry and target do not count, nor the physical layout of the target.
    """
    settings = loaded.settings
    source, (table, entry) = settings.sources[lane.source], _get_settings(loaded, lane)
    options = source.for_decoder({key: value for key, value in to_plain_options(source).items() if key in RECORD_KEYS})
    limits = settings.limits
    # Columns that are private because they are renames of private ones, whichever entry renames them.
    renamed = sorted(find_private_columns(table, settings.defaults).keys() - (table.columns or {}).keys())
    rules = {
        "program": RULES_VERSION,
        "records": [lane.source, source.format, dict(options)],
        "table": [lane.table, lane.declared, settings.get_on_reject(lane.table, lane.source)],
        "lane": [lane.policy, lane.keys, lane.watermark, lane.deletes, lane.tombstones],
        **({"out_of_range": lane.out_of_range} if lane.out_of_range else {}),
        "shape": [stored_text(lane.row_transforms), stored_text(lane.tracked), stored_text(lane.schema_rules)],
        "columns": [*(to_plain_options(keys).get("columns") for keys in (table, entry)), *renamed],
        "limits": [limits.message_bytes, limits.depth, limits.columns],
    }
    return _hash_json(rules)


STORED_NAMES: Mapping[str, str] = {
    "AddedColumn": "Added",
    "ColumnRule": "Changed",
    "ColumnRule.can_be_missing": "may_lack",
    "ColumnSelection": "Chosen",
    "ColumnTransforms": "Remade",
    "ColumnTransforms.additions": "added",
    "ColumnTransforms.rules": "changed",
    "RowTransforms": "Shape",
    "RowTransforms.column_transforms": "remade",
    "RowTransforms.has_column_versions": "by_column",
    "RowTransforms.ignore_null": "keeping",
    "RowTransforms.target_columns": "kept",
    "SchemaChangeKind": "Kind",
    "SchemaChangeMode": "Mode",
    "SentValue": "Sent",
}
"""Old names of classes and fields (`Class.field`), under which digests are stored."""


def stored_text(value: object) -> str:
    """A `repr` of the value that does not change when classes and fields are renamed, because its digests are stored."""
    if is_dataclass(value) and not isinstance(value, type):
        own = type(value).__qualname__
        parts = [
            f"{STORED_NAMES.get(f'{own}.{one.name}', one.name)}={stored_text(getattr(value, one.name))}"
            for one in fields(value)
            if one.repr
        ]
        return f"{STORED_NAMES.get(own, own)}({', '.join(parts)})"
    if isinstance(value, Enum):
        own = type(value).__name__
        return f"<{STORED_NAMES.get(own, own)}.{value.name}: {value.value!r}>"
    if isinstance(value, tuple):
        return f"({', '.join(map(stored_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{stored_text(key)}: {stored_text(one)}' for key, one in value.items())}}}"
    return repr(value)


def digest_lane(loaded: Loaded, lane: LaneSettings) -> str:
    """A digest of everything in the config that decides the lane's target: `digest_rules`, the physical layout, and
    stored metadata."""
    table, entry = _get_settings(loaded, lane)
    of_table = {name: value for name, value in to_plain_options(table).items() if name != "to"}
    rules = {
        "rules": digest_rules(loaded, lane),
        "target": [of_table, to_plain_options(entry), to_plain_options(loaded.settings.defaults)],
        "lane": [lane.table, lane.sink, lane.into],
    }
    return _hash_json(rules)


def _get_settings(loaded: Loaded, lane: LaneSettings) -> tuple[TableSettings, EntrySettings]:
    """The lane's table and entry in the config."""
    table = loaded.settings.tables[cast(int, lane.at[1])]
    return table, table.to[cast(int, lane.at[3])]


def _hash_json(rules: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(rules, sort_keys=True, default=str).encode()).hexdigest()
