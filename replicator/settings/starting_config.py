"""A config to start with, for `replicator init`: all tables of the sources into all targets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from replicator.domain.patterns import is_exact
from replicator.domain.plain_values import to_printable
from replicator.ports.source import DiscoveredSource, DiscoveredTable

COMMENT_COLUMN = 40
MOST_NAMED = 8
"""Tables that the comment of a glob names."""
BY_POLICY = {"scd1": "current rows", "append": "no key: each change is a row"}
LATER = "tables that are created later"
DATABASE_COMMENT = "only `replicator doctor`, `backfill` and `diff` connect to it"
CONNECT_COMMENT = "only `replicator doctor` connects to it"

Sinks = Mapping[str, Mapping[str, Any]]


def choose_policy(table: DiscoveredTable) -> str:
    """The current rows where there is a key, otherwise every change."""
    return "scd1" if table.keys else "append"


def build_starting_config(sources: Sequence[DiscoveredSource], sinks: Sinks) -> str:
    """The YAML text of a config. `sinks`: as in the config."""
    entries = list(list_entries(sources, tuple(sinks)))
    config = _to_yaml(
        {
            "sources": {source.name: dict(source.settings) for source in sources},
            "sinks": dict(sinks),
            "tables": [entry for entry, _ in entries],
        }
    )
    titles = "\n".join(f"Made by `replicator init` from {_to_line(source.title)}." for source in sources)
    help_line = "`replicator check` validates this file, `replicator plan` shows what will run."
    config.yaml_set_start_comment(f"yaml-language-server: $schema=./schema.json\n{titles}\n{help_line}")
    for key in ("sinks", "tables"):
        config.yaml_set_comment_before_after_key(key, before="\n")
    config.yaml_add_eol_comment("the most specific match wins, whole", "tables", column=COMMENT_COLUMN)
    for source in config["sources"].values():
        for key, comment in (("database", DATABASE_COMMENT), ("connect", CONNECT_COMMENT)):
            if key in source:
                source.yaml_add_eol_comment(comment, key, column=COMMENT_COLUMN)
    for entry, (_, comment) in zip(config["tables"], entries, strict=True):
        entry.yaml_add_eol_comment(comment, "match", column=COMMENT_COLUMN)
    yaml, out = YAML(), StringIO()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 4096
    yaml.brace_single_entry_mapping_in_flow_sequence = True
    yaml.dump(config, out)
    return out.getvalue()


def list_entries(sources: Sequence[DiscoveredSource], sinks: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """The entries of `tables`, each with a comment.

    Each source and schema has one entry for all similar tables, then one for each other table. Tables of one name have the
    schema in the target's name, and the source if they are of one schema. Without similar tables, a regular expression
    matches tables that are created later; it would win over a glob.
    """
    names = [table.name for source in sources for table in source.tables]
    bare = [_split(table.name)[1] for source in sources for table in source.tables]
    targets = {name for name in bare if bare.count(name) == 1}
    to = [{"sink": sink} for sink in sinks]
    for source, schema in dict.fromkeys((s.name, _split(table.name)[0]) for s in sources for table in s.tables):
        mine = [t for s in sources if s.name == source for t in s.tables if _split(t.name)[0] == schema]
        keyed = [table for table in mine if table.keys] or mine
        alike = [t for t in keyed if schema and not t.settings and bare.count(_split(t.name)[1]) == 1]
        if alike:
            policy = choose_policy(alike[0])
            named = ", ".join(_to_line(_split(table.name)[1]) for table in alike[:MOST_NAMED])
            more = f" and {len(alike) - MOST_NAMED} more" if len(alike) > MOST_NAMED else ""
            entry = {"match": f"{_to_glob(schema)}.*", "source": source, "policy": policy, "to": to}
            yield entry, f"{BY_POLICY[policy]}: {named}{more}"
        for table in (table for table in mine if table not in alike):
            policy, is_double = choose_policy(table), bare.count(_split(table.name)[1]) > 1
            into = re.sub(r"\W", "_", f"{source}.{table.name}" if names.count(table.name) > 1 else table.name)
            while is_double and into in targets:
                into += "_"
            targets.add(into)
            own = {"policy": policy, **({"into": into} if is_double else {}), **table.settings}
            comment = "; ".join(filter(None, (BY_POLICY[policy], table.note)))
            yield {"match": _to_match(table.name), "source": source, **own, "to": to}, comment
        if schema and not alike and not any(table.settings for table in mine):
            start = f"{source}.{schema}" if any(names.count(table.name) > 1 for table in mine) else schema
            own = {"policy": choose_policy(keyed[0]), "into": re.sub(r"\W", "_", start) + "_{1}"}
            yield {"match": rf"^{_to_regex(schema)}\.(.*)", "source": source, **own, "to": to}, LATER


def _split(table: str) -> tuple[str, str]:
    """Schema and name; the schema is empty if there is none."""
    schema, dot, name = table.partition(".")
    return (schema, name) if dot else ("", table)


def _to_match(name: str) -> str:
    """The name, or a regular expression where `match` cannot hold its characters. It wins over globs."""
    return name.replace("${", "$${") if name.isprintable() and is_exact(name) else f"^{_to_regex(name)}"


def _to_regex(name: str) -> str:
    return "".join(re.escape(character) if character.isprintable() else r"\W" for character in name)


def _to_glob(name: str) -> str:
    printable = "".join(character if character.isprintable() else "?" for character in name)
    return re.sub(r"[*?[^]", r"[\g<0>]", printable).replace("${", "$${")


def _to_line(text: str) -> str:
    return to_printable(text).replace("\n", " ")


def _to_yaml(value: Any) -> Any:
    """The value for the YAML writer: a list of small values is one line."""
    if isinstance(value, Mapping):
        return CommentedMap((key, _to_yaml(item)) for key, item in value.items())
    if not isinstance(value, list):
        return value
    items = CommentedSeq([_to_yaml(item) for item in value])
    if all(isinstance(item, str) or (isinstance(item, Mapping) and len(item) == 1) for item in value):
        for item in (items, *(item for item in items if isinstance(item, CommentedMap))):
            item.fa.set_flow_style()
    return items
