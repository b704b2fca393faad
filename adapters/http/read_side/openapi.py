"""The OpenAPI document of the HTTP API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replicator.ports.read_side import ReadTarget

from .problems import MEDIA_TYPE
from .request import LIMIT

TEXT = {"type": "string"}
PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "next_step"],
    "properties": {"type": TEXT, "title": TEXT, "status": {"type": "integer"}, "detail": TEXT, "next_step": TEXT},
}
TARGET = {
    "type": "object",
    "required": ["name", "key", "policy", "source_table", "has_history"],
    "properties": {
        "name": TEXT,
        "key": {"type": "array", "items": TEXT, "description": "The columns that tell rows apart, in their order."},
        "policy": {"type": ["string", "null"]},
        "source_table": {"type": ["string", "null"]},
        "has_history": {"type": "boolean"},
    },
}
COLUMNS = {
    "type": "array",
    "items": {"type": "object", "required": ["name", "type"], "properties": {"name": TEXT, "type": TEXT}},
}
NEXT = {"type": ["string", "null"], "description": "The URL of the next page; null where there are no more."}
ROWS = {
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
    "description": "The value of the key column. Where the key has several columns, their values with `/` between them; a "
    "slash in a value is `%2F`.",
}
FILTERS = {
    "name": "filters",
    "in": "query",
    "style": "form",
    "explode": True,
    "schema": {"type": "object", "additionalProperties": TEXT},
    "description": "`COLUMN=value`, or with a comparison: `COLUMN[gt]=value`, of `eq`, `ne`, `lt`, `lte`, `gt`, `gte`, and "
    "`COLUMN[null]=true`. All of them have to hold. Values as the rows show them.",
}
AS_OF = {
    "name": "as_of",
    "in": "query",
    "schema": {"type": "string", "format": "date-time"},
    "description": "The rows as they were at that time of the source: by the version of the table that holds just what came "
    "until then, or, where there is none, out of the event log. Without an event log, at the version of that time.",
}
FROM_LOG = {
    "name": "from_log",
    "in": "query",
    "schema": {"type": "boolean"},
    "description": "With `as_of`: out of the event log, whatever versions there are.",
}
FAILURES = {
    "400": "What is asked makes no sense of this table.",
    "404": "There is no such table, or no such row.",
    "406": "There is no answer in a form that `Accept` names.",
    "422": "It cannot be told, for example a time before the first change.",
    "503": "The table is away, or too many read; repeat the request.",
    "504": "It takes longer than it may.",
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


def build_document(targets: Sequence[ReadTarget], most: int, *, takes_events: bool, has_token: bool) -> dict[str, Any]:
    """The document for these tables. Answers have at most `most` rows."""
    names = [target.name for target in targets]
    table = {"name": "table", "in": "path", "required": True, "schema": {**TEXT, **({"enum": names} if names else {})}}
    limit = {
        "name": "limit",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": most, "default": min(LIMIT, most)},
    }
    page = [limit, _describe_after(TEXT, "The place where the page before ended: of its `next`.")]
    told = [
        limit,
        _describe_after({"type": "integer", "minimum": 0, "maximum": 10**9 - 1}, "How many changes were told before."),
    ]
    of_rows = [*page, AS_OF, FROM_LOG, FILTERS]
    paths = {
        "/tables": {"get": _describe_get("The tables", [], {"application/json": _describe_tables()})},
        "/tables/{table}": {
            "get": _describe_get("A table and its columns", [table], {"application/json": _describe_table()})
        },
        "/tables/{table}/rows": {"get": _describe_get("Rows, in the order of the key", [table, *of_rows], _describe_rows())},
        "/tables/{table}/rows/{key}": {
            "get": _describe_get("The row with a key, or its versions", [table, KEY, *of_rows], _describe_rows())
        },
        "/tables/{table}/history/{key}": {
            "get": _describe_get("Every change of a row, oldest first", [table, KEY, *told], {"application/json": HISTORY})
        },
        "/tables/{table}/timeline/{key}": {
            "get": _describe_get("The same as a page for people, newest first", [table, KEY, *told], {"text/html": TEXT})
        },
        **({"/events": {"post": _describe_post()}} if takes_events else {}),
    }
    secured: dict[str, Any] = {"security": [{"token": []}]} if has_token else {}
    schemes = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}} if has_token else {}
    about = {"title": "replicator", "version": "1", "description": "Targets of a pipeline: their rows, now and then."}
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
    return {
        "summary": summary,
        "parameters": parameters,
        "responses": {"200": good, **_describe_failures("text/html" in forms)},
    }


def _describe_failures(is_page: bool) -> dict[str, Any]:
    media = "text/html" if is_page else MEDIA_TYPE
    schema: dict[str, Any] = TEXT if is_page else {"$ref": "#/components/schemas/Problem"}
    found = {status: {"description": said, "content": {media: {"schema": schema}}} for status, said in FAILURES.items()}
    token = {"description": "The token is missing or wrong.", "content": {MEDIA_TYPE: {"schema": PROBLEM}}}
    return {**found, "401": token}


def _describe_tables() -> dict[str, Any]:
    return {"type": "object", "required": ["tables"], "properties": {"tables": {"type": "array", "items": TARGET}}}


def _describe_table() -> dict[str, Any]:
    required = [*TARGET["required"], "columns"]
    return {**TARGET, "required": required, "properties": {**TARGET["properties"], "columns": COLUMNS}}  # type: ignore[dict-item]


def _describe_rows() -> dict[str, dict[str, Any]]:
    return {"application/json": ROWS, "application/vnd.apache.arrow.stream": {"type": "string", "format": "binary"}}


def _describe_post() -> dict[str, Any]:
    statuses = {
        "201": "Stored.",
        "200": "Stored before, under this id.",
        "400": "Not JSON.",
        "401": "The token is missing or wrong.",
        "409": "The aggregate has another version.",
        "413": "Too long.",
        "415": "Not said to be JSON.",
        "422": "No event that can be stored.",
        "503": "The store is away; repeat the request with the same event_id.",
    }
    answers = {
        status: {"description": said, "content": {"application/json": {"schema": {"type": "object"}}}}
        for status, said in statuses.items()
    }
    body = {"required": True, "content": {"application/json": {"schema": EVENT}}}
    return {"summary": "Store an event", "requestBody": body, "responses": answers}
