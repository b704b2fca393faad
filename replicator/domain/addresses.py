"""Addresses as HOST:PORT."""

from __future__ import annotations

import ipaddress


def is_loopback(address: str) -> bool:
    """True if only this machine can reach `address` (HOST:PORT). Names other than localhost are resolved elsewhere, so
    they never count."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
