"""The JavaScript package as it ships."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import whyloop
from tests.ui.support import NODE, PACKAGE, SCHEMA, needs_node
from tests.ui.test_vectors import EVENTS

MODULES = {path.name: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.glob("*.js"))}
TYPES = (PACKAGE / "index.d.ts").read_text(encoding="utf-8")
SESSION_TYPES = (PACKAGE / "session.d.ts").read_text(encoding="utf-8")
PACKED = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))

exported = {
    name.strip()
    for names in re.findall(r"^export \{(.*?)\}", MODULES["index.js"], re.MULTILINE)
    for name in names.split(",")
}


def functions(source: str) -> set[str]:
    """Return the names of the functions that a module exports."""
    return set(re.findall(r"^export function (\w+)", source, re.MULTILINE))


def test_every_function_has_its_types() -> None:
    assert functions(TYPES) == exported
    assert exported <= functions(MODULES["live.js"]) | functions(MODULES["display.js"])
    assert functions(MODULES["session.js"]) == functions(SESSION_TYPES) == {"followSession"}


def test_every_event_has_its_type() -> None:
    (typed,) = re.findall(r"interface EnvelopeData \{(.*?)^\}", TYPES, re.DOTALL | re.MULTILINE)
    events = set(re.findall(r'^  "(agent\.[\w.]+)":', typed, re.MULTILINE))
    assert events == EVENTS
    handled = re.findall(r'^  "(agent\.[\w.]+)": \(', MODULES["events.js"], re.MULTILINE)
    assert set(handled) == EVENTS - {"agent.event"}


def test_every_option_of_a_live_view_has_its_type() -> None:
    (typed,) = re.findall(r"interface FollowOptions \{(.*?)^\}", SESSION_TYPES, re.DOTALL | re.MULTILINE)
    taken = ",".join(re.findall(r"const \{(.*)\} = options;", MODULES["session.js"])).split(",")
    named = {part.partition("=")[0].strip() for part in taken}
    assert named == set(re.findall(r"^  (\w+)\?:", typed, re.MULTILINE))


def test_every_field_of_the_schema_has_its_type() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for name, definition in schema["$defs"].items():
        block = re.search(rf"interface {name.title().replace('_', '')} \{{(.*?)^\}}", TYPES, re.S | re.M)
        assert block is not None, name
        assert set(re.findall(r"^  (\w+)\??:", block[1], re.MULTILINE)) == set(definition["properties"])


def test_text_is_never_made_into_markup_or_code() -> None:
    markup = r"innerHTML|outerHTML|insertAdjacent|document|eval\(|Function\(|import\("
    assert not re.search(markup, _code("".join(MODULES.values())))


def _code(source: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", source, flags=re.DOTALL)


def test_nothing_else_is_needed() -> None:
    for source in MODULES.values():
        assert "require(" not in _code(source)
        imported = re.findall(r'^(?:import|export|\}) .*from "(.*)";', _code(source), re.MULTILINE)
        assert {name.removeprefix("./") for name in imported} <= set(MODULES)
    assert not {"dependencies", "peerDependencies", "scripts"} & set(PACKED)
    assert PACKED["type"] == "module"


def test_its_files_are_there_and_its_version_is_that_of_whyloop() -> None:
    assert set(PACKED["files"]) == {path.name for path in PACKAGE.iterdir()} - {"package.json"}
    assert PACKED["version"] == whyloop.__version__


@needs_node
def test_it_can_be_imported_by_its_name(tmp_path: Path) -> None:
    assert NODE is not None
    shutil.copytree(PACKAGE, tmp_path / "node_modules/whyloop-ui")
    code = (
        'import * as ui from "whyloop-ui"; import * as session from "whyloop-ui/session";'
        'console.log(Object.keys({ ...ui, ...session }).join(" "))'
    )
    command = [NODE, "--input-type=module", "--eval", code]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=True, timeout=30
    )
    assert set(done.stdout.split()) == {*exported, "followSession"}


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm on this machine")
def test_it_can_be_packed(tmp_path: Path) -> None:
    command = ["npm", "pack", "--json", "--offline", f"--pack-destination={tmp_path}", str(PACKAGE)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=True, timeout=60
    )
    (packed,) = json.loads(done.stdout)
    assert {file["path"] for file in packed["files"]} == {*PACKED["files"], "package.json"}
