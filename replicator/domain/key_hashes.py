"""Hashes that identify message keys in dead letters without showing them."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from functools import cached_property

CHECK_DIGITS = 8


@dataclass(frozen=True)
class KeyHashes:
    """SHA-256 of a key's bytes, in hexadecimal digits. With a secret: HMAC-SHA-256, after digits that identify the
    secret. Keys are numbers and addresses: a plain hash could be found by trying them all."""

    secret: bytes = field(default=b"", repr=False)

    def hash_key(self, key: bytes | None) -> str:
        """The hash of a key; empty without one."""
        if key is None:
            return ""
        return f"{self.check}{self._hash_bytes(b'key', key)}" if self.secret else hashlib.sha256(key).hexdigest()

    @cached_property
    def check(self) -> str:
        """The prefix of all hashes under this secret."""
        return f"{self._hash_bytes(b'check', b'')[:CHECK_DIGITS]}-" if self.secret else ""

    def renew_hash(self, stored_hash: str, key: bytes | None) -> str:
        """The hash of a dead letter's key. If `stored_hash` is without a secret, and `key` is known, it is hashed again
        with the secret."""
        return (
            self.hash_key(key)
            if self.secret and key is not None and stored_hash == UNKEYED_HASHES.hash_key(key)
            else stored_hash
        )

    def is_comparable(self, stored_hash: str) -> bool:
        """False for a hash of another secret, or without one: no new key can be compared with it."""
        return stored_hash.startswith(self.check) if self.secret else "-" not in stored_hash

    def _hash_bytes(self, purpose: bytes, data: bytes) -> str:
        return hmac.digest(self.secret, purpose + b":" + data, "sha256").hex()


UNKEYED_HASHES = KeyHashes()
