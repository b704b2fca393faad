"""The content of records before and after masking."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.transform.columns import Mask

KEY = b"k" * 16
HMAC, CUT, FIXED, NOTHING = Mask("hmac", KEY), Mask("truncate", KEY, 2), Mask("fixed", text="*"), Mask("nothing")


def compute_hmac(text: str) -> str:
    """The stored text of a value masked with HMAC."""
    return hmac.new(KEY, text.encode(), hashlib.sha256).hexdigest()


def decode_changes(records: pa.Table, by: Any) -> list[dict[str, Any]]:
    """Every change, in the order of the records. A rejected record has only its reason."""
    routes = by.route(records)
    rows: list[dict[str, Any]] = [
        {"_offset": offset, "_error": error}
        for offset, error in zip(records["offset"].to_pylist(), routes["error"].to_pylist(), strict=True)
        if error
    ]
    for run in routes.filter(pc.is_valid(routes["table"])).group_by(["table", "fingerprint"]).aggregate([]).to_pylist():
        mine = pc.and_(pc.equal(routes["table"], run["table"]), pc.equal(routes["fingerprint"], run["fingerprint"]))
        some = records.filter(pc.fill_null(mine, False))
        for row in by.decode(some, by.learn(some, run["table"], run["fingerprint"])).to_pylist():
            rows.append({n: row[n] for n in ("_offset", "_error")} if row["_error"] else row)
    return sorted(rows, key=lambda row: (row["_offset"], row.get("_seq_2", 0), row.get("_seq_3", 0)))


def get_stored_record(records: pa.Table, by: Any) -> dict[str, Any]:
    """The stored form of one record."""
    (row,) = by.mask_records(records).to_pylist()
    found: dict[str, Any] = row
    return found


def read_all_text(records: pa.Table) -> bytes:
    """All content of the records, also without JSON escapes and in Base64."""
    whole = repr(records.to_pylist()).encode()
    values = [value for name in ("key", "value") for value in records[name].to_pylist() if value]
    return b"\n".join([whole, *values])


def list_visible_values(values: Iterable[str], records: pa.Table) -> list[str]:
    """The values that the records contain in any form. Their first two characters may be visible."""
    held = read_all_text(records)
    return [value for value in values if any(form.encode() in held for form in _forms(value))]


def _forms(value: str) -> list[str]:
    raw = value.encode()
    coded = [b64encode(raw[start:])[: (len(raw) - start) // 3 * 4].decode() for start in range(3)]
    return [value[2:], json.dumps(value)[3:-1], raw.hex(), raw[2:].hex().upper(), *coded]
