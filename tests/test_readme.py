"""The README: its picture is what a terminal shows, and its links work in the package too."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
IMAGES = ROOT / "docs" / "images"
# The person approves the call when the picture is drawn.
_NOW = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")


def module_at(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def texts_of(picture: str) -> list[str]:
    """Return the text of a picture, row by row; the space after a prompt may come a moment later."""
    texts = ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")
    return [_NOW.sub("NOW", (text.text or "").replace("\xa0", " ").rstrip()) for text in texts]


def test_the_picture_is_what_a_chat_prints_on_a_terminal() -> None:
    drawn = module_at(IMAGES / "chat.py").record().draw("whyloop chat")
    kept = (IMAGES / "chat.svg").read_text(encoding="utf-8")
    assert texts_of(kept) == texts_of(drawn), "draw it again: make picture"
    assert re.findall(r"https?://[^\s\"']+", kept) == ["http://www.w3.org/2000/svg"]


def test_the_package_has_the_readme_with_absolute_links() -> None:
    address = _repository()
    published = module_at(ROOT / "hatch_build.py").absolute(README, address)
    links = re.findall(r"\]\(([^)]+)\)", re.sub(r"```.*?```", "", published, flags=re.DOTALL))
    assert links
    for link in links:
        assert link.startswith("https://"), link
        match = re.fullmatch(rf"{address}/(?:blob|raw)/main/([^#]+)(?:#.*)?", link)
        assert match is None or (ROOT / match[1]).exists(), link
    assert f"]({address}/raw/main/docs/images/chat.svg)" in published


def test_the_home_page_of_the_site_has_the_same_first_program() -> None:
    first = re.compile(r"```python\n.*?```\n\n```text\n.*?```", re.DOTALL)
    home = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert first.findall(home)[0] == first.findall(README)[0]


def test_the_commands_are_on_the_path_before_they_are_used() -> None:
    order = ["$ make demo", "$ source .venv/bin/activate", "$ whyloop "]
    places = [README.index(command) for command in order]
    assert places == sorted(places)


def _repository() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Repository"])
