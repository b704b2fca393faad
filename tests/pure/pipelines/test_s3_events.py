"""The objects of an S3 event, in the forms that AWS documents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from replicator.domain.errors import ConfigProblem
from replicator.pipelines.s3_events import list_created


def notification(*keys: str, name: str = "ObjectCreated:Put", bucket: str = "company-bucket") -> dict[str, Any]:
    """As the user guide of S3 shows one: keys are escaped as in forms."""
    return {
        "Records": [
            {
                "eventVersion": "2.1",
                "eventSource": "aws:s3",
                "awsRegion": "eu-west-1",
                "eventTime": "1970-01-01T00:00:00.000Z",
                "eventName": name,
                "s3": {
                    "s3SchemaVersion": "1.0",
                    "configurationId": "testConfigRule",
                    "bucket": {"name": bucket, "arn": f"arn:aws:s3:::{bucket}"},
                    "object": {"key": key, "size": 1024, "eTag": "d41d8cd98f00b204e9800998ecf8427e", "sequencer": "0055"},
                },
            }
            for key in keys
        ]
    }


def to_queue_event(*bodies: Any) -> dict[str, Any]:
    """What Lambda is given of a queue."""
    return {"Records": [{"messageId": "1", "eventSource": "aws:sqs", "body": json.dumps(body)} for body in bodies]}


BRIDGED = {
    "source": "aws.s3",
    "detail-type": "Object Created",
    "detail": {"bucket": {"name": "company-bucket"}, "object": {"key": "dms/odd name+ü%.csv"}},
}
TESTED = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "company-bucket"}
ODD = "s3://company-bucket/dms/odd name+ü%.csv"


@pytest.mark.parametrize(
    ("event", "urls"),
    [
        (notification("dms/a.csv", "dms/b.csv"), ["s3://company-bucket/dms/a.csv", "s3://company-bucket/dms/b.csv"]),
        (json.dumps(notification("dms/a.csv")), ["s3://company-bucket/dms/a.csv"]),
        (notification("dms/odd+name%2B%C3%BC%25.csv"), [ODD]),
        (notification("dms/a.csv", name="s3:ObjectCreated:CompleteMultipartUpload"), ["s3://company-bucket/dms/a.csv"]),
        (notification("dms/a.csv", name="ObjectRemoved:Delete"), []),
        (to_queue_event(notification("x"), notification("y")), ["s3://company-bucket/x", "s3://company-bucket/y"]),
        (to_queue_event({"Type": "Notification", "Message": json.dumps(notification("x"))}), ["s3://company-bucket/x"]),
        (
            {"Records": [{"EventSource": "aws:sns", "Sns": {"Message": json.dumps(notification("x"))}}]},
            ["s3://company-bucket/x"],
        ),
        (to_queue_event(BRIDGED), [ODD]),
        (BRIDGED, [ODD]),
        ({**BRIDGED, "detail-type": "Object Deleted"}, []),
        (TESTED, []),
        (to_queue_event(TESTED), []),
    ],
)
def test_created_objects_of_events(event, urls):
    assert [str(one) for one in list_created(event)] == urls


@pytest.mark.parametrize(
    "event",
    [
        *(
            "no json",
            "[]",
            "1",
            '"Records"',
            {},
            {"Records": [{"eventSource": "aws:kinesis"}]},
            to_queue_event({"hello": 1}),
        ),
        *({"Records": records} for records in (None, 1, [{}], [1], [{"eventSource": "aws:sqs"}])),
        {"Records": [{"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": {"bucket": {}}}]},
        *({"source": "aws.s3", "detail-type": "Object Created"}, {"Type": "Notification"}),
    ],
)
def test_other_events_are_refused(event):
    with pytest.raises(ConfigProblem, match="not a notification of S3"):
        list(list_created(event))
