"""A proxy in front of a broker. It can report a cluster without brokers, like a broker whose session with the
controller has expired. It can hold answers back, like a slow connection."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress

METADATA = 3
FLEXIBLE = 9
"""From this version on, Metadata has lengths of variable size. Clients of the tests use no older version."""


class KafkaProxy:
    """Clients of `address` see the broker only under this address. While `hides_brokers`, answers contain no broker.
    While `holds_answers`, connections stay open without answers."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._broker = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._named, self._renamed = (host.encode() + struct.pack(">i", number) for number in (int(port), self.port))
        self.hides_brokers = self.holds_answers = False
        self.hidden = 0
        """The number of answers without brokers so far."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._broker)
                metadata: set[int] = set()
                threading.Thread(target=self._forward, args=(client, broker, metadata, False), daemon=True).start()
                threading.Thread(target=self._forward, args=(broker, client, metadata, True), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, metadata: set[int], is_answer: bool) -> None:
        """`metadata`: the ids of the connection's open Metadata requests."""
        with suppress(OSError, EOFError), source, target:
            while True:
                frame = _receive(source, struct.unpack(">i", _receive(source, 4))[0])
                if is_answer:
                    while self.holds_answers:
                        time.sleep(0.05)
                    hidden = self.hides_brokers and struct.unpack_from(">i", frame)[0] in metadata
                    # Metadata and FindCoordinator contain the broker.
                    frame = self._hide_brokers(frame) if hidden else frame.replace(self._named, self._renamed)
                else:
                    key, version, number = struct.unpack_from(">hhi", frame)
                    if key == METADATA:
                        assert version >= FLEXIBLE
                        metadata.add(number)
                target.sendall(struct.pack(">i", len(frame)) + frame)

    def _hide_brokers(self, frame: bytes) -> bytes:
        head, at = frame[:9], 9  # correlation id, no tags, throttle time
        brokers, at = _read_varint(frame, at)
        for _ in range(brokers - 1):
            size, at = _read_varint(frame, at + 4)
            rack, at = _read_varint(frame, at + size - 1 + 4)
            at += max(rack - 1, 0) + 1  # and no tags
        self.hidden += 1
        return head + b"\x01" + frame[at:]


def _receive(source: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        more = source.recv(size - len(got))
        if not more:
            raise EOFError
        got += more
    return bytes(got)


def _read_varint(frame: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
