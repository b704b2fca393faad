"""Every test that a port's docstring names exists in the suite of that port."""

import re
from pathlib import Path

import pytest

from replicator.testing.contract import Contract, overrides_contract
from replicator.testing.decoder_contract import DecoderContract
from replicator.testing.engine_contract import EngineContract, EnginePrefetchContract
from replicator.testing.projector_contract import ProjectorContract
from replicator.testing.restore_contract import RestoreContract
from replicator.testing.sink_contract import SinkContract, TombstoneContract
from replicator.testing.source_contract import SourceContract
from replicator.testing.stores_contract import DeadLetterContract, EventStoreContract

PORTS = Path(__file__).parents[2] / "replicator" / "ports"
SUITES = {
    "source": [SourceContract],
    "decoder": [DecoderContract],
    "engine": [EngineContract, EnginePrefetchContract],
    "stores": [DeadLetterContract, EventStoreContract],
    "projector": [ProjectorContract],
    "sink": [SinkContract, TombstoneContract, RestoreContract],
}


@pytest.mark.parametrize("port", SUITES)
def test_named_tests_exist(port):
    named = set(re.findall(r"\btest_\w+", (PORTS / f"{port}.py").read_text()))
    assert named
    assert not {name for name in named if not any(hasattr(suite, name) for suite in SUITES[port])}


def test_only_ports_with_a_suite_name_tests():
    naming = {path.stem for path in PORTS.glob("*.py") if re.search(r"\btest_\w+", path.read_text())}
    assert naming == set(SUITES)


class Example(Contract):
    __test__ = False

    def test_promise(self):
        raise NotImplementedError


def test_contract_is_relaxed_only_with_a_reason():
    with pytest.raises(TypeError, match="test_promise"):
        type("Careless", (Example,), {"test_promise": lambda self: None})
    with pytest.raises(ValueError, match="reason"):
        overrides_contract(reason=" ")
    relaxed = overrides_contract(reason="the service cannot")(lambda self: None)
    type("Careful", (Example,), {"test_promise": relaxed})
