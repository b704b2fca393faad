"""The log tells where something failed, and never what the row or the secret was."""

from __future__ import annotations

import structlog

from replicator.cli.logs import configure, where_it_failed


def _fail(secret: str) -> None:
    inner = f"value {secret}"
    try:
        raise ValueError(inner)
    except ValueError as error:
        raise RuntimeError(f"cannot apply {secret}") from error


def test_an_exception_is_told_by_class_and_place_only():
    try:
        _fail("hunter2")
    except RuntimeError as error:
        event = where_it_failed(None, "error", {"event": "stopped", "exc_info": error})
    assert [link["class"] for link in event["exception"]] == ["RuntimeError", "ValueError"]
    assert event["exception"][0]["at"][-1].endswith("_fail")
    assert "hunter2" not in repr(event)


def test_the_configured_log_hides_words_and_variables(capsys):
    configure(0)
    try:
        _fail("hunter2")
    except RuntimeError:
        structlog.get_logger().exception("failed")
    structlog.reset_defaults()
    said = capsys.readouterr().err
    assert "RuntimeError" in said
    assert "hunter2" not in said
