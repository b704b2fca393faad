"""The log has the place of an error, but no values of rows and no secrets."""

from __future__ import annotations

import json
import logging
import re
import sys

import structlog

from adapters.kafka.clients import client_log
from replicator.wiring.process_setup import BURST_SECONDS, MAX_EQUAL_LINES, configure_logs, reduce_exception


def _fail(secret: str) -> None:
    inner = f"value {secret}"
    try:
        raise ValueError(inner)
    except ValueError as error:
        raise RuntimeError(f"cannot apply {secret}") from error


def test_exception_is_logged_by_class_and_line_only():
    try:
        _fail("hunter2")
    except RuntimeError as error:
        event = reduce_exception(None, "error", {"event": "stopped", "exc_info": error})
    assert [link["class"] for link in event["exception"]] == ["RuntimeError", "ValueError"]
    assert event["exception"][0]["at"][-1].endswith("_fail")
    assert "hunter2" not in repr(event)


def test_log_hides_exception_texts_and_variables(capsys):
    configure_logs(0)
    try:
        _fail("hunter2")
    except RuntimeError:
        structlog.get_logger().exception("failed")
    structlog.reset_defaults()
    said = capsys.readouterr().err
    assert "RuntimeError" in said
    assert "hunter2" not in said


def test_libraries_and_adapters_log_in_the_same_form(capsys):
    def read_log_lines(verbosity):
        configure_logs(verbosity)
        for name in ("adapters.sources.somewhere", "a_library"):
            for level in (logging.DEBUG, logging.INFO, logging.WARNING):
                logging.getLogger(name).log(level, "it is %s", "away")
        structlog.reset_defaults()
        return [json.loads(line) for line in capsys.readouterr().err.splitlines()]

    assert [(e["logger"], e["level"], e["event"]) for e in read_log_lines(0)] == [
        ("adapters.sources.somewhere", "info", "it is away"),
        ("adapters.sources.somewhere", "warning", "it is away"),
        ("a_library", "warning", "it is away"),
    ]
    assert [e["level"] for e in read_log_lines(1)] == ["debug", "info", "warning", "warning"]
    assert not read_log_lines(-1)


def test_messages_of_kafka_clients_are_debug_messages(capsys):
    for verbosity, seen in ((0, 0), (1, 1)):
        configure_logs(verbosity)
        client_log(str).error("FAIL [thrd:nowhere.example:9092/bootstrap]: Connect failed")
        structlog.reset_defaults()
        assert capsys.readouterr().err.count("nowhere.example:9092/bootstrap") == seen


def test_repeated_lines_are_counted_and_left_out(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("replicator.wiring.process_setup.monotonic", lambda: now[0])
    configure_logs(0)
    log = structlog.get_logger()
    try:
        for attempt in range(50):
            log.warning("lane retrying", lane="lake.a", attempt=attempt)
            logging.getLogger("adapters.x").warning("it is away")
        log.warning("lane retrying", lane="lake.b", attempt=1)
        now[0] = BURST_SECONDS
        log.info("later")
    finally:
        structlog.reset_defaults()
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [e["attempt"] for e in said if e.get("lane") == "lake.a" and e["event"] == "lane retrying"] == [
        *range(MAX_EQUAL_LINES)
    ]
    assert [e for e in said if e.get("lane") == "lake.b"] and said[-1]["event"] == "later"
    left_out = [(e["line_event"], e["line_level"], e["times"]) for e in said if e["event"] == "lines were left out"]
    assert left_out == [("lane retrying", "warning", 50 - MAX_EQUAL_LINES), ("it is away", "warning", 50 - MAX_EQUAL_LINES)]


def test_log_escapes_control_characters_in_names(capsys, monkeypatch):
    name = "a\x1b]0;title\x07\u202e"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    configure_logs(0)
    try:
        structlog.get_logger().info(f"reads {name}\nb", table=name, named=f"a {name}", tables=[name])
        logging.getLogger("adapters.x").warning("%s is away", name)
        try:
            _fail(name)
        except RuntimeError:
            structlog.get_logger().exception(name)
    finally:
        structlog.reset_defaults()
    said = capsys.readouterr().err
    assert "\x1b[" in said  # The renderer's own colours: these are lines for people.
    lines = re.sub(r"\x1b\[[0-9;]*m", "", said).splitlines()
    assert not [c for c in "".join(lines) if not c.isprintable()]
    assert "reads a\\x1b]0;title\\x07\\u202e\\nb" in lines[0] and "table=a\\x1b]0;title" in lines[0]
    assert "is away" in lines[1] and lines[4].startswith("ValueError at ")
    assert len(lines) == 5
