"""Finds the format of a topic, and its tables with keys and columns, from some records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.patterns import TopicFilter
from replicator.ports.adapter_options import ROWS
from replicator.ports.decoder import Decoder
from replicator.ports.source import DiscoveredSource, DiscoveredTable

from ...arrow.record_errors import UNREADABLE
from ...decoders.json.schema_frames import detect_format

DEBEZIUM = "debezium_json"
AVRO = "debezium_avro"
REGISTRY = {"registry": {"url": "${SCHEMA_REGISTRY_URL:-http://localhost:8081}"}}
UNNAMED_KEY = ("of the message",)
"""The key of a table whose records have one that cannot be read here."""
KEY_LISTS = ("primary_keys", "primary_key_columns")
"""Fields of GoldenGate's and Maxwell's messages."""
MAXWELL_KEY, DOCUMENT_KEY = "pk.", "_id"
ADDED = "__"
"""The beginning of fields that ExtractNewRecordState adds. Such rows need settings that they do not contain."""
Locate: TypeAlias = Callable[[list[str]], Mapping[str, Any]]
"""The settings of a source that reads these topics, without the format."""
TYPES = (({bool}, "bool"), ({int}, "int64"), ({int, float}, "float64"))
"""Types of columns, by those of all their JSON values. All other columns are text."""
GUESSED = "types are guessed from some records"


def describe_topic(topic: str, raw: pa.Table) -> tuple[str, list[DiscoveredTable]]:
    """The format of the records, empty if it is not recognised, and their tables. `raw`: the schema `domain.change.RAW`.
    A topic of heartbeats or transaction marks has a format, but no tables."""
    values = [value for value in raw["value"].to_pylist() if value]
    formats = Counter(filter(None, map(detect_format, values)))
    form = formats.most_common(1)[0][0] if formats else ""
    objects = list(map(_read_object, values))
    if not form and values and all(objects):
        if _load_decoder(DEBEZIUM).route(raw)["ignored"].null_count == 0:
            return DEBEZIUM, []
        if not any(name.startswith(ADDED) for fields in objects for name in fields):
            return ROWS, [_guess_table(topic, raw, objects)]
    if form == AVRO:
        keys = UNNAMED_KEY if raw["key"].null_count < len(raw) else ()
        return form, [DiscoveredTable(".".join(topic.split(".")[-2:]), keys)]
    return form, list(_decode_tables(_load_decoder(form), raw)) if form else []


def list_sources(
    name: str, location: str, described: Mapping[str, tuple[str, list[DiscoveredTable]]], locate: Locate
) -> list[DiscoveredSource]:
    """A source for each format of the topics, as `describe_topic` returned them. If topics with several prefixes have a
    table of one name, there is a source for each prefix. `name`: of the only source; sources of several formats have the
    names of these. Raises ConfigProblem if no table is found."""
    unknown = ", ".join(topic for topic, (_, tables) in described.items() if not tables)
    groups = _group_topics({topic: one for topic, one in described.items() if one[1]})
    if not groups:
        raise ConfigProblem(
            f"{location} has no records of a known format in {unknown}",
            next_step="docs/explanation/choosing-a-source.md lists the formats.",
        )
    forms = {form for form, _ in groups}
    steps = [f"# Left out, because no table was recognised: {unknown}"] if unknown else []
    if len(groups) > len(forms):
        prefixes = ", ".join(prefix for _, prefix in groups if prefix)
        steps.append(f"# Tables of one name have topics with several prefixes. Each prefix is a source: {prefixes}")
    return [
        DiscoveredSource(
            name="_".join(filter(None, (form if len(forms) > 1 else name, re.sub(r"\W", "_", prefix)))),
            title=f"{form} in {location}" + (f", topics of {prefix}" if prefix else ""),
            settings={"format": form, **locate(topics), **(REGISTRY if form == AVRO else {})},
            tables=list({table.name: table for topic in topics for table in described[topic][1]}.values()),
            steps=steps if number == 0 else [],
        )
        for number, ((form, prefix), topics) in enumerate(groups.items())
    ]


def _group_topics(described: Mapping[str, tuple[str, list[DiscoveredTable]]]) -> dict[tuple[str, str], list[str]]:
    """The topics of each format; and of each prefix, where a table has topics with several prefixes."""
    prefixes = {
        topic: next((topic.removesuffix(f".{t.name}") for t in tables if topic.endswith(f".{t.name}")), "")
        for topic, (_, tables) in described.items()
    }
    triples = {(form, table.name, prefixes[topic]) for topic, (form, tables) in described.items() for table in tables}
    several = {form for (form, _), count in Counter(triple[:2] for triple in triples).items() if count > 1}
    groups: dict[tuple[str, str], list[str]] = {}
    for topic, (form, _) in described.items():
        groups.setdefault((form, prefixes[topic] if form in several else ""), []).append(topic)
    return groups


def keep_globs(
    patterns: Iterable[str], topics: Sequence[str], described: Mapping[str, tuple[str, list[DiscoveredTable]]]
) -> list[str]:
    """The patterns that match only `topics` (of a source), and those of its format without tables."""
    globs = []
    for pattern in patterns:
        matched = set(filter(TopicFilter([pattern]), described))
        others = [described[topic] for topic in matched.difference(topics)]
        if (
            pattern not in matched
            and matched.intersection(topics)
            and all(one == (described[topics[0]][0], []) for one in others)
        ):
            globs.append(pattern)
    return globs


def _load_decoder(form: str) -> Any:
    return next(iter(entry_points(group="replicator.decoders", name=form))).load()({})


def _decode_tables(decoder: Decoder, raw: pa.Table) -> Iterator[DiscoveredTable]:
    """The tables that a decoder finds. Types and keys are guessed where records do not have them."""
    routed, envelope = decoder.route(raw), decoder.envelope(raw)
    for table in dict.fromkeys(routed["table"].drop_null().to_pylist()):
        of_table = pc.fill_null(pc.equal(routed["table"], table), False)
        records, prints = raw.filter(of_table), routed.filter(of_table)["fingerprint"]
        try:
            yield DiscoveredTable(table, decoder.learn(records, table, next(p for p in prints.to_pylist() if p)).keys)
        except (Fatal, StopIteration):
            images = envelope.filter(of_table)
            texts = [text for name in ("after", "before") for text in images[name].drop_null().to_pylist()]
            objects = [fields for text in texts if (fields := _read_object(text.encode()))]
            if objects:
                yield _guess_table(table, records, objects)


def _guess_table(name: str, raw: pa.Table, objects: Iterable[Mapping[str, Any]]) -> DiscoveredTable:
    """A table whose columns have to be declared, from some of its rows."""
    schema = guess_schema(objects)
    # A message lists the columns of the key, or has a key of its own, with or without Connect's schema.
    key, value = (_read_object(next(iter(raw[part].drop_null().to_pylist()), b"")) for part in ("key", "value"))
    fields = key.get("payload") if key.keys() == {"schema", "payload"} else key
    listed = next((value[part] for part in KEY_LISTS if isinstance(value.get(part), list)), fields)
    columns = [str(column).removeprefix(MAXWELL_KEY) for column in listed] if isinstance(listed, dict | list) else []
    keys = tuple(column for column in (*columns, DOCUMENT_KEY) if column in schema)
    settings = {**({"keys": list(keys)} if keys else {}), "schema": schema}
    return DiscoveredTable(name, keys, settings=settings, note=GUESSED)


def guess_schema(objects: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The types of columns, as `schema` of a table has them, from some rows."""
    kinds: dict[str, set[type]] = {}
    for fields in objects:
        for column, value in fields.items():
            kinds.setdefault(column, set()).update([] if value is None else [type(value)])
    return {column: next((name for group, name in TYPES if own and own <= group), "string") for column, own in kinds.items()}


def _read_object(data: bytes) -> dict[str, Any]:
    """The JSON object; empty if it is none."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except UNREADABLE:
        return {}
