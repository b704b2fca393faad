"""The README of the package, for an index: links to files of the repository become addresses of this version."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\]\((?!https?://)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    """`readme` of the project's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README with absolute links, below `urls.Repository` of the project."""
        base = f"{metadata['urls']['Repository']}/blob/v{metadata['version']}"
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": LINK.sub(lambda link: f"]({_resolve(base, link[1])})", text),
        }


def _resolve(base: str, target: str) -> str:
    return f"{base}/README.md{target}" if target.startswith("#") else f"{base}/{target}"
