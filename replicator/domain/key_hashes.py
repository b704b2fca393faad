"""How letters tell keys of messages apart without showing them."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from functools import cached_property

CHECK_DIGITS = 8


@dataclass(frozen=True)
class KeyHashes:
    """SHA-256 of the bytes of a key, in hexadecimal digits. With a secret HMAC-SHA-256 under it, behind digits by which the
    secret is known again: keys are numbers and addresses, which who has a plain hash finds by trying them all."""

    secret: bytes = field(default=b"", repr=False)

    def of(self, key: bytes | None) -> str:
        """The hash of a key; empty without one."""
        if key is None:
            return ""
        return f"{self.check}{self._of(b'key', key)}" if self.secret else hashlib.sha256(key).hexdigest()

    @cached_property
    def check(self) -> str:
        """What hashes under this secret begin with."""
        return f"{self._of(b'check', b'')[:CHECK_DIGITS]}-" if self.secret else ""

    def renewed(self, told: str, key: bytes | None) -> str:
        """The hash of a key of which a letter tells `told`, and may have kept `key`: under the secret where it was told
        without one."""
        return self.of(key) if self.secret and key is not None and told == PLAIN.of(key) else told

    def is_of(self, told: str) -> bool:
        """False for a hash that no key which comes can be compared with: of another secret, or of none."""
        return told.startswith(self.check) if self.secret else "-" not in told

    def _of(self, what: bytes, said: bytes) -> str:
        return hmac.digest(self.secret, what + b":" + said, "sha256").hex()


PLAIN = KeyHashes()
