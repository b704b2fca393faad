"""Forty mistyped keys and values: each one is a single finding with its line."""

from __future__ import annotations

import pytest

from replicator.settings import ConfigError

TYPOS = [
    ("pipeline: shop", "pipelin: shop", "pipeline"),
    ("pipeline: shop", "Pipeline: shop", "pipeline"),
    ("engine: local", "engin: local", "engine"),
    ("engine: local", "engine: locl", "local"),
    ("sources:\n", "source:\n", "sources"),
    ("sinks:\n", "sink:\n", "sinks"),
    ("dead_letters:", "dead_leters:", "dead_letters"),
    ("dead_letters:", "dead-letters:", "dead_letters"),
    ("dead_letters:", "dlq:", "dead_letters"),
    ("tables:\n", "tabels:\n", "tables"),
    ("defaults:\n", "default:\n", "defaults"),
    ("state: ./state", "stat: ./state", "state"),
    ("limits:\n", "limit:\n", "limits"),
    ("http:\n", "htp:\n", "http"),
    ("    transport: kafka", "    transprot: kafka", "transport"),
    ("    transport: kafka", "    transport: kafak", "kafka"),
    ("    bootstrap_servers:", "    bootstrap_server:", "bootstrap_servers"),
    ("    bootstrap_servers:", "    bootstrap.servers:", "bootstrap_servers"),
    ("    bootstrap_servers:", "    brokers:", "bootstrap_servers"),
    ("    topics:", "    topicz:", "topics"),
    ("    topics:", "    topic:", "topics"),
    ("    group_id:", "    groupid:", "group_id"),
    ("    start_from:", "    startfrom:", "start_from"),
    ("    security:", "    securty:", "security"),
    ("    options:", "    option:", "options"),
    ("    path: ./archive", "    pth: ./archive", "path"),
    ("    kind: delta", "    kind: detla", "delta"),
    ("    kind: postgres", "    kind: postgresql", "postgres"),
    ("    dsn: postgresql", "    dns: postgresql", "dsn"),
    ("    dsn: postgresql", "    url: postgresql", "dsn"),
    ("    schema: mirror", "    shema: mirror", "schema"),
    ("  - match: public.*", "  - mach: public.*", "match"),
    ("    keys: [id]", "    key: [id]", "keys"),
    ("    keys: [id]", "    primary_key: [id]", "keys"),
    ("    tombstones: delete", "    tombstone: delete", "tombstones"),
    ("    tombstones: delete", "    tombstones: delte", "delete"),
    ("        policy: scd1", "        polcy: scd1", "policy"),
    ("        policy: scd1", "        policy: sdc1", "scd1"),
    ("        deletes: hard", "        delets: hard", "deletes"),
    ("        deletes: hard\n", "        deletes: hard\n        verify: {evry: off}\n", "every"),
    ("        into: orders_now", "        itno: orders_now", "into"),
    ("        stored_as_scd_type: 1", "        stored_as_scdtype: 1", "stored_as_scd_type"),
    ("      - sink: target\n        policy", "      - sink: tarjet\n        policy", "target"),
    ("  message_bytes:", "  mesage_bytes:", "message_bytes"),
    ("  memory:", "  memroy:", "memory"),
    ("  address:", "  adress:", "address"),
    ("  token:", "  tokn:", "token"),
]


@pytest.mark.parametrize(("old", "new", "meant"), TYPOS)
def test_typo_has_its_line_and_a_suggestion(folder, old, new, meant):
    line = folder.change(old, new)
    finding = folder.only()
    assert (finding.line, finding.suggestion) == (line, f"did you mean '{meant}'?")


def test_corpus_has_at_least_forty_typos():
    assert len({(old, new) for old, new, _ in TYPOS}) >= 40


def test_text_of_a_finding(folder):
    line = folder.change("    topics:", "    topicz:")
    assert str(folder.only()) == f"{folder.file}:{line}: unknown key 'topicz' in sources.shop; did you mean 'topics'?"


def test_all_typos_are_reported_at_once(folder):
    text = folder.file.read_text()
    chosen = [TYPOS[2], TYPOS[19], TYPOS[26], TYPOS[32], TYPOS[39], TYPOS[44]]
    for old, new, _ in chosen:
        text = text.replace(old, new)
    folder.write(text)
    suggestions = [f.suggestion for f in folder.findings()]
    assert {f"did you mean '{meant}'?" for _, _, meant in chosen} <= set(suggestions)


def test_misplaced_key_has_a_suggestion(find_after_change):
    finding, line = find_after_change("engine: local", "topics: [a]")
    assert (finding.line, finding.suggestion) == (line, "'topics' is a key of a source")


def test_key_of_another_kind_has_a_suggestion(find_after_change):
    finding, line = find_after_change("    path: ./lake\n", "    path: ./lake\n    dsn: x\n")
    assert finding.line == line
    assert "postgres" in finding.suggestion


def test_unknown_name_has_the_list_of_names(find_after_change):
    finding, _ = find_after_change("  depth: 64", "  qqqq: 64")
    assert finding.suggestion == "known here: batch_bytes, columns, depth, memory, message_bytes"


def test_unprintable_key_is_not_printed(folder):
    folder.change("state: ./state", "? postgresql://u:hunter2@h/d\n: x")
    with pytest.raises(ConfigError) as caught:
        folder.load()
    assert "hunter2" not in str(caught.value)
