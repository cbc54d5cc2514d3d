"""The README in the package: a package index has no other file of ours, so its links are absolute there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?\[[^\]]*\]\()(?![a-z]+:|#)([^)]+)\)")


def absolute(readme: str, repository: str) -> str:
    """Return the text with links to pages and raw files of the repository."""

    def target(match: re.Match[str]) -> str:
        kind = "raw" if match[1].startswith("!") else "blob"
        return f"{match[1]}{repository}/{kind}/main/{match[2]})"

    return _LINK.sub(target, readme)


class ReadmeHook(MetadataHookInterface):
    """Put the README into the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute(text, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
