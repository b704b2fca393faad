"""Applies files when S3 announces them. AWS Lambda, or a reader of a queue, calls `handle` with each event.

>>> from replicator.pipelines.s3_events import handle
>>> handle(event)["files"]
['s3://company-bucket/dms/public/users/20211017-194324349.csv']

It uses the sources of the configuration with `transport: files` and a bucket as their `path`. An event names a file.
Earlier files of its table that are not yet applied, such as its full load, are applied first, then the file itself. Later
files are not applied. A file that any call has applied is not applied again, so events may arrive twice, late, and in any
order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from replicator.domain.errors import ConfigProblem
from replicator.wiring.configuration import find_config_file, read_config

from .program_run import run_pipeline

SCHEMES = ("s3://", "s3a://")


class CreatedObject(NamedTuple):
    """An object that was created."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def handle(
    event: Mapping[str, Any] | str,
    context: object = None,  # noqa: ARG001 - Lambda gives one
    *,
    config: str | Path | None = None,
    env: str | None = None,
    overrides: Iterable[str] = (),
) -> dict[str, Any]:
    """Apply the files that `event` names. It is a notification of S3, also in messages of SQS or SNS, or of EventBridge.

    `config`, `env` and `overrides` are as in `replicator run`. The default of `config` is the file that REPLICATOR_CONFIG
    names, or else config/replicator.yaml. Returns:

    - `files`: the URLs of the files in the folder of a source. They are applied now.
    - `passed_over`: the URLs of the other files.
    - `report`: the report of `replicator run --json`, None if no file had to be applied.

    Raises ConfigProblem for an event of another kind and for an invalid config, and the errors of `Pipeline.run`. After an
    error send the event again. Only one call at a time may run for one pipeline.
    """
    created = list(dict.fromkeys(list_created(event)))
    loaded = read_config(Path(config or find_config_file()), env, tuple(overrides))
    own_objects: set[CreatedObject] = set()
    files: dict[str, list[str]] = {}
    for name, source in loaded.settings.sources.items():
        path = getattr(source, "path", "") if "through" in source.list_keys() else ""
        folder = next((path.removeprefix(scheme) for scheme in SCHEMES if path.startswith(scheme)), None)
        inside = [one for one in created if folder is not None and f"{one.bucket}/{one.key}".startswith(f"{folder}/")]
        own_objects.update(inside)
        if inside:
            files[name] = [str(one) for one in inside]
    report = run_pipeline(loaded, once=True, stop=None, served=False, files=files) if files else None
    passed_over = [str(one) for one in created if one not in own_objects]
    return {"files": [str(one) for one in created if one in own_objects], "passed_over": passed_over, "report": report}


def list_created(event: Mapping[str, Any] | str) -> Iterator[CreatedObject]:
    """The objects that an event announces as created; none for S3's own test of a notification. ConfigProblem for another
    event."""
    try:
        notification = json.loads(event) if isinstance(event, str) else event
        if "Records" in notification:
            for record in notification["Records"]:
                yield from _list_record_objects(record)
        elif notification.get("source") == "aws.s3":
            if notification.get("detail-type") == "Object Created":
                # EventBridge does not escape keys.
                yield CreatedObject(notification["detail"]["bucket"]["name"], notification["detail"]["object"]["key"])
        elif notification.get("Type") == "Notification":
            yield from list_created(notification["Message"])
        elif notification.get("Event") != "s3:TestEvent":
            raise _make_event_error()
    except (ValueError, LookupError, TypeError, AttributeError):  # It has another form.
        raise _make_event_error() from None


def _list_record_objects(record: Mapping[str, Any]) -> Iterator[CreatedObject]:
    source = record.get("eventSource") or record.get("EventSource")
    if source == "aws:s3":
        if str(record.get("eventName", "")).removeprefix("s3:").startswith("ObjectCreated:"):
            yield CreatedObject(record["s3"]["bucket"]["name"], unquote_plus(record["s3"]["object"]["key"]))
    elif source == "aws:sqs":
        yield from list_created(record["body"])
    elif source == "aws:sns":
        yield from list_created(record["Sns"]["Message"])
    else:
        raise _make_event_error()


def _make_event_error() -> ConfigProblem:
    return ConfigProblem(
        "the event is not a notification of S3",
        next_step="Send s3:ObjectCreated:* of the bucket, directly or through SQS, SNS or EventBridge.",
    )
