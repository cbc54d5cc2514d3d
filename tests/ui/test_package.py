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
from whyloop.broadcasting import envelope_schema

MODULES = {path.name: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.glob("*.js"))}
TYPES = {path.name: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.glob("*.d.ts"))}
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
    assert functions(TYPES["index.d.ts"]) == exported
    assert exported <= {name for module in MODULES.values() for name in functions(module)}
    assert functions(MODULES["session.js"]) == functions(TYPES["session.d.ts"]) == {"followSession"}
    assert functions(MODULES["react.js"]) == functions(TYPES["react.d.ts"]) == {"useSession"}


def fields(interface: str, types: str) -> set[str]:
    """Return the fields of an interface, and of those that it extends."""
    block = re.search(rf"interface {interface}\b([^{{]*)\{{(.*?)^\}}", types, re.S | re.M)
    assert block is not None, interface
    inherited = [fields(name, types) for name in re.findall(r"\w+", block[1].removeprefix(" extends"))]
    return set(re.findall(r"^  (?:readonly )?(\w+)\??:", block[2], re.M)).union(*inherited)


def test_every_event_has_its_type() -> None:
    typed = dict(re.findall(r'EnvelopeOf<"(agent\.[\w.]+)", (\w+)>', TYPES["envelope.d.ts"]))
    assert set(typed) == EVENTS
    for event, interface in typed.items():
        described = set(envelope_schema()["$defs"][event]["properties"])
        assert fields(interface, TYPES["envelope.d.ts"]) == described, event
    handled = re.findall(r'^  "(agent\.[\w.]+)": \(', MODULES["events.js"], re.MULTILINE)
    assert set(handled) == EVENTS - {"agent.event"}


def test_every_option_of_a_live_view_has_its_type() -> None:
    taken = ",".join(re.findall(r"const \{(.*)\} = options;", MODULES["session.js"])).split(",")
    named = {part.partition("=")[0].strip() for part in taken}
    assert named == fields("FollowOptions", TYPES["session.d.ts"])


def test_every_field_of_the_schema_has_its_type() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for name, definition in schema["$defs"].items():
        types = TYPES["envelope.d.ts" if name == "continuation" else "index.d.ts"]
        assert fields(name.title().replace("_", ""), types) == set(definition["properties"])


def test_text_is_never_made_into_markup_or_code() -> None:
    markup = r"innerHTML|outerHTML|insertAdjacent|document|eval\(|Function\(|import\("
    assert not re.search(markup, _code("".join(MODULES.values())))


def _code(source: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", source, flags=re.DOTALL)


def test_nothing_else_is_needed() -> None:
    for name, source in MODULES.items():
        assert "require(" not in _code(source)
        imported = re.findall(r'^(?:import|export|\}) .*from "(.*)";', _code(source), re.MULTILINE)
        allowed = {*MODULES, "react"} if name == "react.js" else set(MODULES)
        assert {found.removeprefix("./") for found in imported} <= allowed
    assert not {"dependencies", "scripts"} & set(PACKED)
    assert PACKED["peerDependenciesMeta"] == {name: {"optional": True} for name in PACKED["peerDependencies"]}
    assert (PACKED["type"], PACKED["sideEffects"]) == ("module", False)


def test_its_version_and_license_are_those_of_whyloop() -> None:
    assert PACKED["version"] == whyloop.__version__
    root = Path(__file__).parents[2]
    assert (PACKAGE / "LICENSE").read_text(encoding="utf-8") == (root / "LICENSE").read_text(encoding="utf-8")


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
    assert {file["path"] for file in packed["files"]} == {path.name for path in PACKAGE.iterdir()}
    entries = [entry for entry in PACKED["exports"].values() if isinstance(entry, dict)]
    named = {path.removeprefix("./") for entry in entries for path in entry.values()}
    assert named <= {path.name for path in PACKAGE.iterdir()}
