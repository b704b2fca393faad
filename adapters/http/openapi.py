"""The OpenAPI document of the HTTP API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replicator.ports.reads import ReadTarget

from .request import LIMIT, MEDIA_TYPE

TEXT = {"type": "string"}
PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "next_step"],
    "properties": {"type": TEXT, "title": TEXT, "status": {"type": "integer"}, "detail": TEXT, "next_step": TEXT},
}
TARGET: dict[str, Any] = {
    "type": "object",
    "required": ["name", "key", "policy", "source_table", "has_history"],
    "properties": {
        "name": TEXT,
        "key": {"type": "array", "items": TEXT, "description": "The columns that identify a row, in their order."},
        "policy": {"type": ["string", "null"]},
        "source_table": {"type": ["string", "null"]},
        "has_history": {"type": "boolean"},
    },
}
COLUMNS = {
    "type": "array",
    "items": {"type": "object", "required": ["name", "type"], "properties": {"name": TEXT, "type": TEXT}},
}
NEXT = {"type": ["string", "null"], "description": "The URL of the next page; null on the last page."}
ROWS_SCHEMA = {
    "type": "object",
    "required": ["table", "rows", "next", "notes"],
    "properties": {
        "table": TEXT,
        "rows": {"type": "array", "items": {"type": "object"}},
        "next": NEXT,
        "notes": {"type": "array", "items": TEXT},
    },
}
ROW = {"type": ["object", "null"]}
CHANGE = {
    "type": "object",
    "required": ["operation", "at", "sequence", "before", "after", "changed", "transaction"],
    "properties": {
        "operation": {"enum": ["c", "u", "d", "r", "t"]},
        "at": {"type": ["string", "null"]},
        "sequence": {"type": "array"},
        "transaction": {"type": ["string", "null"]},
        "before": ROW,
        "after": ROW,
        "changed": {"type": "array", "items": TEXT},
        "moved_from": ROW,
        "moved_away": {"type": "boolean"},
    },
}
HISTORY = {
    "type": "object",
    "required": ["table", "source_table", "key", "rejected", "notes", "changes", "next"],
    "properties": {
        "table": TEXT,
        "source_table": TEXT,
        "key": {"type": "array", "items": TEXT},
        "rejected": {"type": "integer"},
        "notes": {"type": "array", "items": TEXT},
        "changes": {"type": "array", "items": CHANGE},
        "next": NEXT,
    },
}
KEY = {
    "name": "key",
    "in": "path",
    "required": True,
    "schema": TEXT,
    "description": "The value of the key column. For a key of several columns, their values with `/` between them. A slash "
    "in a value is `%2F`.",
}
FILTERS = {
    "name": "filters",
    "in": "query",
    "style": "form",
    "explode": True,
    "schema": {"type": "object", "additionalProperties": TEXT},
    "description": "`COLUMN=value`, or `COLUMN[gt]=value` with one of `eq`, `ne`, `lt`, `lte`, `gt`, `gte`, or "
    "`COLUMN[null]=true`. A row must meet all filters. Write values as the rows show them.",
}
AS_OF = {
    "name": "as_of",
    "in": "query",
    "schema": {"type": "string", "format": "date-time"},
    "description": "The rows at that time of the source. They come from a table version with exactly the changes up to then,"
    " otherwise from the event log. Without an event log, they are the version of that time.",
}
FROM_LOG = {
    "name": "from_log",
    "in": "query",
    "schema": {"type": "boolean"},
    "description": "With `as_of`: read the event log, even if there is a suitable version.",
}
FAILURES = {
    "400": "The request does not fit the table, for example an unknown column.",
    "404": "The table or the row does not exist.",
    "406": "`Accept` names no form that this answer has.",
    "422": "The answer cannot be computed, for example for a time before the first change.",
    "503": "The table cannot be read now, or there are too many readers. Repeat the request.",
    "504": "The answer takes longer than `serve.query_timeout`.",
}
EVENT = {
    "type": "object",
    "required": ["aggregate_id", "aggregate_type", "event_type", "event_data"],
    "additionalProperties": False,
    "properties": {
        **dict.fromkeys(("aggregate_id", "aggregate_type", "event_type"), TEXT),
        "event_data": {"type": "object"},
        "metadata": {"type": ["object", "null"]},
        "expected_version": {"type": ["integer", "null"]},
        "event_id": {"type": ["string", "null"]},
    },
}
TABLES: dict[str, Any] = {
    "type": "object",
    "required": ["tables"],
    "properties": {"tables": {"type": "array", "items": TARGET}},
}
TABLE: dict[str, Any] = {
    **TARGET,
    "required": [*TARGET["required"], "columns"],
    "properties": {**TARGET["properties"], "columns": COLUMNS},
}
ROW_FORMS: dict[str, Any] = {
    "application/json": ROWS_SCHEMA,
    "application/vnd.apache.arrow.stream": {"type": "string", "format": "binary"},
}
POST_ANSWERS = {
    "201": "The event was stored.",
    "200": "An event with this id was stored before.",
    "400": "The body is not JSON.",
    "401": "The token is missing or wrong.",
    "409": "The aggregate does not have `expected_version`.",
    "413": "The body is longer than `limits.message_bytes`.",
    "415": "`Content-Type` is not `application/json`.",
    "422": "The event cannot be stored, for example because a field is missing.",
    "503": "The store does not answer. Repeat the request with the same `event_id`.",
}
POST = {
    "summary": "Store an event",
    "requestBody": {"required": True, "content": {"application/json": {"schema": EVENT}}},
    "responses": {
        status: {"description": text, "content": {"application/json": {"schema": {"type": "object"}}}}
        for status, text in POST_ANSWERS.items()
    },
}


def build_document(targets: Sequence[ReadTarget], most: int, *, takes_events: bool, has_token: bool) -> dict[str, Any]:
    """The document for these tables. Answers have at most `most` rows."""
    names = [target.name for target in targets]
    table = {"name": "table", "in": "path", "required": True, "schema": {**TEXT, **({"enum": names} if names else {})}}
    limit = {
        "name": "limit",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": most, "default": min(LIMIT, most)},
    }
    page = [limit, _describe_after(TEXT, "The end of the previous page, from its `next`.")]
    of_changes = [
        limit,
        _describe_after(
            {"type": "integer", "minimum": 0, "maximum": 10**9 - 1}, "The number of changes on the previous pages."
        ),
    ]
    of_rows = [*page, AS_OF, FROM_LOG, FILTERS]
    paths = {
        "/tables": {"get": _describe_get("The tables", [], {"application/json": TABLES})},
        "/tables/{table}": {"get": _describe_get("A table and its columns", [table], {"application/json": TABLE})},
        "/tables/{table}/rows": {"get": _describe_get("Rows, in the order of the key", [table, *of_rows], ROW_FORMS)},
        "/tables/{table}/rows/{key}": {
            "get": _describe_get("The row with a key, or its versions", [table, KEY, *of_rows], ROW_FORMS)
        },
        "/tables/{table}/history/{key}": {
            "get": _describe_get(
                "Every change of a row, oldest first", [table, KEY, *of_changes], {"application/json": HISTORY}
            )
        },
        "/tables/{table}/timeline/{key}": {
            "get": _describe_get(
                "Every change of a row as a web page, newest first", [table, KEY, *of_changes], {"text/html": TEXT}
            )
        },
        **({"/events": {"post": POST}} if takes_events else {}),
    }
    secured: dict[str, Any] = {"security": [{"token": []}]} if has_token else {}
    schemes = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}} if has_token else {}
    about = {"title": "replicator", "version": "1", "description": "The rows of a pipeline's targets, current and past."}
    return {
        "openapi": "3.1.0",
        "info": about,
        "paths": paths,
        "components": {"schemas": {"Problem": PROBLEM}, **schemes},
        **secured,
    }


def _describe_after(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": "after", "in": "query", "schema": schema, "description": description}


def _describe_get(summary: str, parameters: list[dict[str, Any]], forms: dict[str, dict[str, Any]]) -> dict[str, Any]:
    good = {"description": summary, "content": {media: {"schema": schema} for media, schema in forms.items()}}
    is_page = "text/html" in forms
    media = "text/html" if is_page else MEDIA_TYPE
    schema: dict[str, Any] = TEXT if is_page else {"$ref": "#/components/schemas/Problem"}
    failures = {status: {"description": text, "content": {media: {"schema": schema}}} for status, text in FAILURES.items()}
    token = {"description": "The token is missing or wrong.", "content": {MEDIA_TYPE: {"schema": PROBLEM}}}
    return {"summary": summary, "parameters": parameters, "responses": {"200": good, **failures, "401": token}}
