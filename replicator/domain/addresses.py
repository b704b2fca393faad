"""Addresses as HOST:PORT."""

from __future__ import annotations

import ipaddress


def is_loopback(address: str) -> bool:
    """True when only this machine reaches what listens at `address`, HOST:PORT. A name other than localhost is resolved
    elsewhere, so it never counts."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
