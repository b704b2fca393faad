"""The built-in formats of records, and what the settings and the wiring need of each.

A format of another package has the properties of `PLUGIN_FORMAT`. The decoders are in `adapters/decoders`, where
`json/format_detection.py` recognises the format of a record for hints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

DEBEZIUM_JSON, DEBEZIUM_AVRO, OUTBOX = "debezium_json", "debezium_avro", "debezium_outbox"
DMS_CSV, DMS_PARQUET, ROWS = "dms_csv", "dms_parquet", "rows"
RECORD_TRANSPORTS = frozenset({"kafka", "archive", "delta"})
"""Transports of records that another program wrote, in any format."""


@dataclass(frozen=True, slots=True)
class SourceFormat:
    """The properties of one format.

    - `keys`: the keys of a source that mean something with this format, of those that do not with every format.
    - `transports`: the built-in transports that read this format.
    - `in_connect_files`: files of Kafka Connect's sinks can contain its records.
    - `is_rows`: records are rows that do not name their key.
    - `has_schema_names`: every table is named SCHEMA.TABLE, or DATABASE.TABLE in a database without schemas.
    - `has_plain_names`: its field names are only names that Avro allows.
    - `has_compacted_topics`: a topic can be compacted, and `tombstones: delete` then means that changes are missing.
    - `masks_values`: its decoder can write records without private values (`ports.decoder.DecoderFeatures.mask_records`).
    - `reads_out_of_range`: its decoder has the option `out_of_range`, for dates and times that no target can store.
    - `reads_truncates`: its decoder has the option `truncates`, because a truncate is a row.
    - `has_backfills`: its sequence also orders the rows of a backfill.
    - `reload_step`: another way to load a whole table, for formats without backfills. Only the writer of the changes can
      put rows into their order.
    """

    keys: frozenset[str] = frozenset()
    transports: frozenset[str] = RECORD_TRANSPORTS
    in_connect_files: bool = True
    is_rows: bool = False
    has_schema_names: bool = False
    has_plain_names: bool = False
    has_compacted_topics: bool = False
    masks_values: bool = True
    reads_out_of_range: bool = True
    reads_truncates: bool = False
    has_backfills: bool = False
    reload_step: str = "Load the table with what writes its changes."


_DEBEZIUM = SourceFormat(
    keys=frozenset({"transactions", "replica_identity"}),
    has_schema_names=True,
    has_compacted_topics=True,
    has_backfills=True,
)
_DMS = SourceFormat(
    keys=frozenset({"operation_column", "operations"}),
    transports=RECORD_TRANSPORTS | {"files"},
    in_connect_files=False,
    is_rows=True,
    reload_step="Reload the table in the DMS task.",
)
FORMATS: dict[str, SourceFormat] = {
    DEBEZIUM_JSON: replace(_DEBEZIUM, keys=_DEBEZIUM.keys | {"flattened", "decimals"}),
    DEBEZIUM_AVRO: replace(_DEBEZIUM, keys=_DEBEZIUM.keys | {"registry"}, in_connect_files=False, has_plain_names=True),
    OUTBOX: SourceFormat(
        keys=frozenset({"outbox"}),
        reads_out_of_range=False,
        reload_step="Its tables have events and no rows: make the service write the events again.",
    ),
    "dts_avro": SourceFormat(
        in_connect_files=False,
        reload_step="Have DTS do a full load of the table: its INIT records come before the changes.",
    ),
    DMS_CSV: replace(_DMS, keys=_DMS.keys | {"csv"}),
    DMS_PARQUET: _DMS,
    "canal_json": SourceFormat(),
    "maxwell_json": SourceFormat(reload_step="Have Maxwell do it: `maxwell-bootstrap --database SCHEMA --table TABLE`."),
    "ogg_json": SourceFormat(reload_step="Have an initial-load Extract of GoldenGate write the table into the topic."),
    ROWS: SourceFormat(
        keys=frozenset({"operation_column", "operations", "sequence_columns"}),
        transports=RECORD_TRANSPORTS | {"files", "snapshots", "query"},
        is_rows=True,
        reads_truncates=True,
    ),
}
"""By name, in the order of the JSON Schema."""

FORMAT_KEYS = tuple(dict.fromkeys(key for one in FORMATS.values() for key in sorted(one.keys)))
"""Keys of a source that mean something with some formats only."""

PLUGIN_FORMAT = SourceFormat(keys=frozenset(FORMAT_KEYS), masks_values=False, reads_out_of_range=False)
"""A format of another package: its own decoder checks keys."""


def get_format(name: str | None) -> SourceFormat:
    """The properties of the format `name`."""
    return FORMATS.get(name or "", PLUGIN_FORMAT)


def list_formats_of(transport: str) -> list[str]:
    """The built-in formats that a transport reads."""
    return [name for name, one in FORMATS.items() if transport in one.transports]
