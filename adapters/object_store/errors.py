"""What an object store says when it does not do what it is asked, as the program's own errors.

delta-rs and obstore share the library beneath them, and so its words.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from replicator.domain.errors import EnvironmentProblem, ReplicatorError, Retryable

_OF_STORE = re.compile(r"\bS3 error\b|Error performing \w+ https?://|\bMissing(Region|AccessKeyId)?\b.*\bcredential")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_STATUS = re.compile(r"\b([345]\d\d) [A-Z][a-z]+")
_NOT_SENT = re.compile(
    r"dns error|tcp connect error|connection closed|operation timed out|error sending request", re.IGNORECASE
)
_NOT_BUILT = re.compile(r"builder error|BadScheme")
_NO_CREDENTIALS = re.compile(r"credential|169\.254\.169\.254|instance metadata", re.IGNORECASE)
_TRANSIENT = frozenset({408, 409, 412, 429})

KEYS = "`access_key_id` and `secret_access_key` under `storage`, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


def is_store_error(text: str) -> bool:
    """True when the text is that of an error of an object store."""
    return _OF_STORE.search(text) is not None


def translate_store_error(text: str, what: str) -> ReplicatorError | None:
    """The error to raise for an error with that text that concerned `what`; None when it is not one of a store. Quotes no
    more than codes: the text of a store may repeat what it was sent."""
    if not is_store_error(text):
        return None
    code, status = _find(_CODE, text), _find(_STATUS, text)
    said = code or status
    for applies, sentence, step in _LASTING:
        if applies(code, status, text):
            return EnvironmentProblem(f"{sentence.format(what)}{f' ({said})' if said else ''}", next_step=step)
    sent = "cannot be reached" if _NOT_SENT.search(text) else "does not answer as it should"
    return Retryable(f"the object store of {what} {sent}{f' ({said})' if said else ''}")


_LASTING: tuple[tuple[Callable[[str, str, str], bool], str, str], ...] = (
    (
        lambda code, _, __: code == "NoSuchBucket",
        "the bucket of {} does not exist",
        "Create it, or correct `path`.",
    ),
    (
        lambda code, _, __: code == "NoSuchKey",
        "a file of {} is not in the object store any more",
        "Restore it, or load the lane again with `replicator lanes resync`.",
    ),
    (
        lambda _, status, __: status in ("401", "403"),
        "the object store refuses access to {}",
        f"Check {KEYS}; the key must be allowed to list the bucket, to read in it, and for a sink to write and delete.",
    ),
    (
        lambda _, status, text: not status and _NOT_BUILT.search(text) is not None,
        "the endpoint of {} cannot be used",
        "Correct it (AWS_ENDPOINT_URL); one without encryption needs `allow_http: true` or AWS_ALLOW_HTTP.",
    ),
    (
        lambda _, status, text: not status and _NO_CREDENTIALS.search(text) is not None,
        "there are no credentials for {}",
        f"Give {KEYS}.",
    ),
    (
        lambda _, status, __: status[:1] in ("3", "4") and int(status) not in _TRANSIENT,
        "the object store cannot answer for {}",
        "Check `endpoint` and `region` under `storage`.",
    ),
)
"""What does not pass by itself: by code, status and text."""


def _find(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""
