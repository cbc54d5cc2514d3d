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
from whyloop.wire import ui

SOURCE = (PACKAGE / "index.js").read_text(encoding="utf-8")
TYPES = (PACKAGE / "index.d.ts").read_text(encoding="utf-8")
SESSION = (PACKAGE / "session.js").read_text(encoding="utf-8")
SESSION_TYPES = (PACKAGE / "session.d.ts").read_text(encoding="utf-8")
PACKED = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))

exported = set(re.findall(r"^export function (\w+)", SOURCE, re.MULTILINE))


def test_both_implementations_have_the_same_functions() -> None:
    in_python = {re.sub(r"_(.)", lambda m: m[1].upper(), name) for name in ui.__all__}
    assert exported | {"canonicalMessages"} == in_python


def test_every_function_has_its_types() -> None:
    assert set(re.findall(r"^export function (\w+)", TYPES, re.MULTILINE)) == exported
    for source in (SESSION, SESSION_TYPES):
        assert re.findall(r"^export function (\w+)", source, re.MULTILINE) == ["followSession"]


def test_every_option_of_a_live_view_has_its_type() -> None:
    (typed,) = re.findall(r"interface FollowOptions \{(.*?)^\}", SESSION_TYPES, re.DOTALL | re.MULTILINE)
    taken = ",".join(re.findall(r"const \{(.*)\} = options;", SESSION)).split(",")
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
    assert not re.search(markup, _code(SOURCE + SESSION))


def _code(source: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", source, flags=re.DOTALL)


def test_nothing_else_is_needed() -> None:
    assert not re.search(r"^import|require\(", _code(SOURCE), re.MULTILINE)
    assert re.findall(r"^import .* from (.*);|require\(", _code(SESSION), re.MULTILINE) == ['"./index.js"']
    assert not {"dependencies", "peerDependencies", "scripts"} & set(PACKED)
    assert PACKED["type"] == "module"


def test_its_files_are_there_and_its_version_is_that_of_whyloop() -> None:
    assert all((PACKAGE / name).is_file() for name in PACKED["files"])
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
