"""One embedded stack for the tests of this folder that need all servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from paths import PROJECT

from adapters.stack import EmbeddedStack, StackPorts


@pytest.fixture(scope="session")
def servers_of_a_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStack]:
    """A stack that its user starts."""
    made = EmbeddedStack(PROJECT, tmp_path_factory.mktemp("stack"), StackPorts.find_free())
    yield made
    made.down(clean=True)


@pytest.fixture(scope="module")
def stack(servers_of_a_stack: EmbeddedStack) -> EmbeddedStack:
    """All servers, and the shipped connector. Servers that another file started keep running."""
    servers_of_a_stack.up()
    servers_of_a_stack.register_connector()
    return servers_of_a_stack
