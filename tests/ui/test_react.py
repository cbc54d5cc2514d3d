"""The React hook with real React, and the types of the package with a real compiler."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.real.node_packages import install
from tests.ui.support import HERE, NODE, PACKAGE, README

pytestmark = pytest.mark.slow

TSC = ["node_modules/typescript/bin/tsc", "--noEmit", "--target", "es2023", "--lib", "es2023,dom"]
TSC += ["--module", "nodenext", "--types", "react"]


def installed(version: str) -> Path:
    """Return a folder with the package and a version of React."""
    folder = install(HERE / version)
    package = folder / "node_modules/whyloop-ui"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(PACKAGE, package)
    return folder


def run(folder: Path, *arguments: str) -> str:
    command = [str(NODE), *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, encoding="utf-8", timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("version", ["react_18", "react_19"])
def test_a_component_shows_a_session(version: str) -> None:
    folder = installed(version)
    for script in ("hook.test.mjs", "platform.mjs"):
        shutil.copy(HERE / script, folder)
    assert "# pass 10\n" in run(folder, "--test", "--test-reporter=tap", "hook.test.mjs")


def test_an_application_uses_the_types() -> None:
    folder = installed("react_19")
    shutil.copy(HERE / "react_19/types.ts", folder)
    run(folder, *TSC, "--strict", "types.ts")


def test_the_module_does_what_its_types_say() -> None:
    folder = installed("react_19")
    modules = sorted(f"node_modules/whyloop-ui/{path.name}" for path in PACKAGE.glob("*.js"))
    run(folder, *TSC, "--allowJs", "--checkJs", *modules)


CHAT = """
import { act, create } from "react-test-renderer";
import { createElement } from "react";
import { Platform, chunk, question, started } from "./platform.mjs";
import { Chat } from "./chat.mjs";

globalThis.IS_REACT_ACT_ENVIRONMENT = true;
const platform = new Platform();
const { fetch, EventSource } = platform.options;
Object.assign(globalThis, { fetch, EventSource });
let root;
await act(() => { root = create(createElement(Chat, { url: "/agents/sessions/42" })); });
const texts = () => root.root.findAllByType("p").map(({ props }) => `${props.className}: ${props.children}`);
const send = (question) => root.root.findByType("form").props.action(new Map([["question", question]]));
const seen = [];
await act(() => platform.history([question("One?")]));
await act(() => platform.receive(started(1), chunk("First.")));
seen.push(texts());
await act(() => { send("Two?"); });
seen.push(texts());
await act(() => platform.refuse(409));
seen.push(texts());
console.log(JSON.stringify(seen));
"""


def test_the_component_in_the_readme_shows_a_session_and_sends_questions() -> None:
    folder = installed("react_19")
    (jsx,) = re.findall(r"```jsx\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    options = '{ compilerOptions: { jsx: "react-jsx", module: "esnext", target: "es2023" } }'
    code = (
        'import ts from "typescript"; import { writeFileSync } from "node:fs";'
        f'writeFileSync("chat.mjs", ts.transpileModule({json.dumps(jsx)}, {options}).outputText);'
    )
    run(folder, "--input-type=module", "--eval", code)
    shutil.copy(HERE / "platform.mjs", folder)
    (folder / "show.mjs").write_text(CHAT, encoding="utf-8")
    first = ["user: One?", "assistant: First."]
    assert json.loads(run(folder, "show.mjs")) == [first, [*first, "user: Two?"], first]
