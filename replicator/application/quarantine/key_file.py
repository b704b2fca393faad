"""The file with the secret for hashes of private keys, in the state folder."""

from __future__ import annotations

import secrets
from pathlib import Path

from replicator.application import durable
from replicator.domain.errors import EnvironmentProblem
from replicator.domain.key_hashes import KeyHashes
from replicator.domain.plain_values import format_count

BYTES = 32


class KeyFile:
    """The file, created on first use. Several processes may use it at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: KeyHashes | None = None

    def load_hashes(self) -> KeyHashes:
        """The hash function with the secret. EnvironmentProblem if the file can be neither read nor created."""
        if self._known is None:
            try:
                self._known = KeyHashes(self._load_secret())
            except (OSError, ValueError) as error:
                why = (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
                raise EnvironmentProblem(
                    f"{self._path}, the secret for hashes of blocked keys, cannot be read: {why}",
                    next_step="Restore it from a copy. Or remove it, and replay or purge the held records (`replicator "
                    "dlq`).",
                ) from error
        return self._known

    def _load_secret(self) -> bytes:
        if not self._path.exists():
            try:
                durable.make_folder(self._path.parent)
                durable.create_file(self._path, secrets.token_bytes(BYTES).hex().encode(), 0o600)
            except OSError as error:
                raise EnvironmentProblem(
                    f"{self._path.parent} cannot be written ({error.strerror})",
                    next_step="Make the folder named by `state` writable.",
                ) from error
        found = bytes.fromhex(self._path.read_text("ascii"))
        if len(found) != BYTES:
            raise ValueError(f"it has {format_count(len(found), 'byte')} instead of {BYTES}")
        return found
