"""The format of the documentation keeps the promises of its port. For the sink, see `examples/duckdb-sink`."""

from __future__ import annotations

import re
import sys
from types import ModuleType

from paths import PROJECT

sys.modules.setdefault("my_adapters", ModuleType("my_adapters"))


def load_page(name: str, module: str) -> type:
    """The test class of a page. Its first block is the adapter, stored as `my_adapters.MODULE`; its second one the test."""
    page = (PROJECT / "docs" / "how-to" / f"{name}.md").read_text(encoding="utf-8")
    adapter, test = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    found = sys.modules[f"my_adapters.{module}"] = ModuleType(f"my_adapters.{module}")
    exec(compile(adapter, f"{name}.md", "exec"), vars(found))
    tests: dict[str, type] = {"__name__": __name__}
    exec(compile(test, f"{name}.md", "exec"), tests)
    return next(value for key, value in tests.items() if key.startswith("Test"))


class TestDocumentedDecoder(load_page("write-a-format", "shop_json")):
    always = frozenset(
        {
            "test_changes_have_the_schema_of_their_table",
            "test_bad_record_is_isolated",
            "test_decode_never_raises",
            "test_decoder_is_pure_and_picklable",
            "test_envelope_never_fails",
            "test_every_routed_record_becomes_a_row",
            "test_route_gives_one_result_per_record",
        }
    )
