"""The nearest valid name to a mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SYNONYMS = {
    "brokers": "bootstrap_servers",
    "servers": "bootstrap_servers",
    "connection": "dsn",
    "url": "dsn",
    "uri": "path",
    "location": "path",
    "folder": "path",
    "database_schema": "schema",
    "destinations": "to",
    "targets": "to",
    "target": "into",
    "group": "group_id",
    "consumer_group": "group_id",
    "name": "pipeline",
    "primary_key": "keys",
    "primary_keys": "keys",
    "pk": "keys",
    "scd_type": "stored_as_scd_type",
    "table": "match",
    "type": "kind",
    "connector": "transport",
    "dlq": "dead_letters",
    "dead_letter_queue": "dead_letters",
    "offset": "start_from",
    "auto_offset_reset": "start_from",
    "bind": "address",
    "host": "address",
}


def find_nearest(name: str, valid: Iterable[str]) -> str | None:
    """The name of `valid` that is most similar to `name`, or None. Case, `-` and `_` do not count."""
    plain = {_to_plain(candidate): candidate for candidate in valid}
    typed = _to_plain(name)
    if typed in plain:
        return plain[typed]
    synonym = _to_plain(SYNONYMS.get(name.lower().replace("-", "_"), ""))
    if synonym in plain:
        return plain[synonym]
    close = difflib.get_close_matches(typed, plain, n=1, cutoff=0.6)
    return plain[close[0]] if close else None


def suggest_name(name: str, valid: Iterable[str]) -> str:
    """`did you mean 'x'?` for the nearest valid name; empty when none is near."""
    best = find_nearest(name, valid)
    return f"did you mean '{best}'?" if best else ""


def _to_plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").strip()
