"""`verify`: levels, and targets that cannot be compared."""

from __future__ import annotations

import pytest

CONFIG = """\
pipeline: shop
sources:
  shop: {{format: debezium_json, transport: kafka, bootstrap_servers: "h:1", topics: [a]{source}}}
sinks:
  lake: {{kind: delta, path: ./lake}}
  raw: {{kind: event_log, path: ./raw}}
defaults: {{{defaults}}}
tables:
  - match: public.orders
    source: shop
    to:
{to}
"""
DATABASE = ", database: {dsn: 'postgresql://u@h/d', publication: p, slot: s}"
DAILY = "verify: {every: 1 day}"
LAKE, LOG = "      - {sink: lake}", "      - {sink: raw}"
OWN = f"      - {{sink: lake, {DAILY}}}"
APPEND = f"      - {{sink: lake, policy: append, {DAILY}}}"


@pytest.fixture
def write(folder):
    def write_config(to: str, source: str = DATABASE, defaults: str = "") -> int:
        """The line of the first `verify`."""
        text = CONFIG.format(to=to, source=source, defaults=defaults)
        folder.write(text)
        return next((number for number, line in enumerate(text.splitlines(), 1) if "verify" in line), 0)

    return write_config


def test_nearest_level_wins_as_a_whole(folder, write):
    others = "      - {sink: lake, into: b, verify: {every: 2 hours}}\n      - {sink: lake, into: c, verify: {every: off}}"
    write(f"{LAKE}\n{others}", defaults="verify: {every: 1 day, rows_per_second: 100}")
    own, other, off = folder.load().settings.resolve_lanes("public.orders")
    assert (own.verify.every, own.verify.rows_per_second) == ("1 day", 100)
    assert (other.verify.every, other.verify.rows_per_second) == ("2 hours", None)
    assert off.verify is None


@pytest.mark.parametrize(
    ("verify", "code", "sentence"),
    [
        ("{every: often}", "duration", "must be a time such as 7 days, longer than none, or off"),
        ("{every: 0 days}", "duration", "longer than none"),
        ("{rows_per_second: 5}", "missing", "every"),
        ("{every: 1 day, rows_per_second: 0}", "value", "at least 1"),
        ("{every: 1 day, repair: true}", "unknown_key", "repair"),
        ("true", "type", "verify"),
    ],
)
def test_invalid_values_are_refused(folder, write, verify, code, sentence):
    line = write(f"      - {{sink: lake, verify: {verify}}}")
    finding = folder.only()
    assert (finding.code, finding.line) == (code, line) and sentence in finding.message


@pytest.mark.parametrize(("to", "source"), [(OWN, DATABASE), (f"{OWN}\n{LOG}", ""), (f"{APPEND}\n{LOG}", "")])
def test_comparable_targets_are_accepted(folder, write, to, source):
    write(to, source)
    assert folder.load().settings.resolve_lanes("public.orders")[0].verify is not None


@pytest.mark.parametrize(
    ("parts", "sentence", "step"),
    [
        ((OWN, ""), "source 'shop' has no 'database', and the table has no event log", "add 'database' to the source, or"),
        ((LAKE, "", DAILY), "defaults.verify: tables[0].to[0] cannot be compared", "write 'verify: {every: off}'"),
        ((APPEND, DATABASE), "the policy 'append'", "add an entry with a sink"),
        ((LOG, DATABASE, DAILY), "none of its entries has a target with rows", "remove it"),
        ((f"      - {{sink: raw, {DAILY}}}", DATABASE), "means nothing for an event log", "remove it"),
    ],
)
def test_other_targets_are_refused(folder, write, parts, sentence, step):
    line = write(*parts)
    finding = next(one for one in folder.findings() if one.severity == "error")
    assert (finding.code, finding.line) == ("inapplicable", line)
    assert sentence in finding.message and step in finding.suggestion


def test_off_needs_no_source_database(folder, write):
    write("      - {sink: lake, verify: {every: off}}", source="", defaults=DAILY)
    assert folder.load().settings.resolve_lanes("public.orders")[0].verify is None
