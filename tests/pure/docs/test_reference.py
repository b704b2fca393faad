"""The generated pages of docs/reference are those that the code generates now."""

from __future__ import annotations

import runpy

import pytest
from paths import PROJECT

SCRIPT = "scripts/generate-reference.py"
REFERENCE = runpy.run_path(str(PROJECT / SCRIPT))


@pytest.mark.parametrize("name", REFERENCE["PAGES"])
def test_committed_page_is_the_generated_one(name):
    written = (PROJECT / "docs" / "reference" / name).read_text()
    assert written == REFERENCE["render_page"](name), f"run python {SCRIPT}"
