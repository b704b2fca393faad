"""What an object store says when it does not do what it is asked, as the program's own errors.

delta-rs and obstore share the library beneath them, and so its words.
"""

from __future__ import annotations

import re

from replicator.domain.errors import EnvironmentProblem, ReplicatorError, Retryable

_OF_STORE = re.compile(r"\bS3 error\b|Error performing \w+ https?://|\bMissing(Region|AccessKeyId)?\b.*\bcredential")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_STATUS = re.compile(r"\b([345]\d\d) [A-Z][a-z]+")
_NOT_SENT = re.compile(
    r"dns error|tcp connect error|connection closed|operation timed out|error sending request", re.IGNORECASE
)
_NO_CREDENTIALS = re.compile(r"credential|169\.254\.169\.254|instance metadata", re.IGNORECASE)
_TRANSIENT = frozenset({408, 409, 412, 429})

KEYS = "`access_key_id` and `secret_access_key` under `storage` of the sink, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


def is_of_store(text: str) -> bool:
    """True when the text is that of an error of an object store."""
    return _OF_STORE.search(text) is not None


def store_problem(text: str, what: str) -> ReplicatorError | None:
    """The error to raise for an error with that text that concerned `what`; None when it is not one of a store. Quotes no
    more than codes: the text of a store may repeat what it was sent."""
    if not is_of_store(text):
        return None
    code, status = _found(_CODE, text), _found(_STATUS, text)
    said = code or status or ""
    if code == "NoSuchBucket":
        return EnvironmentProblem(
            f"the bucket of {what} does not exist", next_step="Create it, or correct `path` of the sink."
        )
    if status in ("401", "403"):
        return EnvironmentProblem(
            f"the object store refuses access to {what} ({said})",
            next_step=f"Check {KEYS}; the key must be allowed to list the bucket, and to read, write and delete in it.",
        )
    if not status and _NO_CREDENTIALS.search(text):
        return EnvironmentProblem(f"there are no credentials for {what}", next_step=f"Give {KEYS}.")
    if status and status[0] in "34" and int(status) not in _TRANSIENT:
        return EnvironmentProblem(
            f"the object store cannot answer for {what} ({said})",
            next_step="Check `endpoint` and `region` under `storage` of the sink.",
        )
    sent = "cannot be reached" if _NOT_SENT.search(text) else "does not answer as it should"
    return Retryable(f"the object store of {what} {sent}{f' ({said})' if said else ''}")


def _found(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1] if found else None
