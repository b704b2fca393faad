"""The sink and the format of the documentation keep the promises of their ports."""

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


class TestDocumentedSink(load_page("write-a-sink", "file_sink")):
    one_in = 5
    always = frozenset(
        {
            "test_histories_under_scd1_equal_the_model",
            "test_histories_under_append_equal_the_model",
            "test_fail_after_apply_then_retry",
            "test_gap_is_refused",
            "test_prepare_adds_columns",
            "test_redelivery",
            "test_rejects_are_durable_first",
            "test_reset_leaves_nothing",
            "test_second_instance_is_fenced",
        }
    )


class TestDocumentedDecoder(load_page("write-a-format", "shop_json")):
    always = frozenset(
        {
            "test_changes_have_the_schema_of_their_table",
            "test_bad_record_is_isolated",
            "test_decode_never_raises",
            "test_decoder_is_pure_and_picklable",
            "test_envelope_never_fails",
            "test_nothing_vanishes",
            "test_route_gives_one_result_per_record",
        }
    )
