"""Data flows one way: values, rules, wire, loop, edges. A file imports only from the layers above its own."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import whyloop

ROOT = Path(whyloop.__file__).parent

# What each layer may import from whyloop, besides itself.
ALLOWED = {
    "errors": set(),
    "values": {"errors"},
    "events": {"errors", "values"},
    "logger": {"values"},
    "text": {"values"},
    "rules": {"errors", "events", "values", "text"},
    "tools": {"errors", "values", "rules"},
    "wire": {"errors", "events", "values", "rules"},
    "loop": {"errors", "events", "logger", "values", "text", "rules", "tools", "wire"},
    "models": {"__version__", "errors", "logger", "values", "text", "rules", "tools", "loop"},
    "stores": {"errors", "logger", "values", "rules", "wire"},
    "broadcasting": {"errors", "events", "logger", "values", "rules", "wire", "stores"},
    "sessions": {"errors", "events", "logger", "values", "wire", "loop", "stores"},
    "server": {
        *(
            "errors",
            "events",
            "logger",
            "values",
            "rules",
            "wire",
            "loop",
            "stores",
            "broadcasting",
            "sessions",
            "replay",
            "inspector",
        )
    },
    "inspector": {"errors", "values", "wire"},
    "replay": {"errors", "values", "rules", "wire", "loop", "stores"},
    "imports": {"errors", "values", "rules", "wire", "models", "stores"},
    "temporal": {"errors", "logger", "loop", "rules", "sessions", "stores", "tools", "values", "wire"},
    "testing": {
        *("errors", "events", "logger", "values", "rules", "tools", "wire", "loop", "stores", "replay"),
        *("broadcasting", "sessions"),
    },
}
EXTERNAL = {
    "errors": set(),
    "values": {"msgspec"},
    "events": {"msgspec"},
    "logger": set(),
    "text": {"msgspec"},
    "rules": {"msgspec"},
    "tools": {"msgspec"},
    "wire": {"msgspec"},
    "loop": {"msgspec"},
    "models": {"msgspec", "aiohttp", "genai_prices", "xllamacpp"},
    "stores": {"msgspec", "psycopg"},
    "sessions": {"msgspec"},
    "broadcasting": {"msgspec", "aiohttp"},
    "server": {"msgspec", "starlette"},
    "inspector": {"msgspec", "starlette"},
    "replay": {"msgspec"},
    "imports": {"msgspec"},
    "temporal": {"cryptography", "msgspec", "temporalio"},
    "testing": {"msgspec"},
}


def modules(layer: str) -> list[Path]:
    folder = ROOT / layer
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [ROOT / f"{layer}.py"]


FILES = [(layer, path) for layer in ALLOWED for path in modules(layer)]
files = pytest.mark.parametrize(
    ("layer", "path"), FILES, ids=[str(path.relative_to(ROOT)) for _, path in FILES]
)


def only_for_types(tree: ast.Module) -> set[int]:
    """The nodes that are there for the type checker only."""
    return {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }


@cache
def imports(path: Path) -> frozenset[str]:
    """The modules that a file imports when it runs, inside functions too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ignored = only_for_types(tree)
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in ignored:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            assert node.module is not None
            if node.module == "whyloop":
                found |= {f"whyloop.{alias.name}" for alias in node.names}
            else:
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def test_every_layer_has_files() -> None:
    assert all(path.exists() for _, path in FILES)
    assert len(FILES) > 30


@files
def test_a_file_imports_only_from_the_layers_above_its_own(layer: str, path: Path) -> None:
    used = {name.split(".")[1] for name in imports(path) if name.startswith("whyloop.")}
    assert used <= ALLOWED[layer] | {layer}


@files
def test_a_file_of_the_core_needs_nothing_but_msgspec(layer: str, path: Path) -> None:
    outside = {
        top
        for name in imports(path)
        if (top := name.split(".")[0]) not in sys.stdlib_module_names and top not in ("whyloop", "__future__")
    }
    assert outside <= EXTERNAL[layer]


@files
def test_a_file_exports_no_stars(layer: str, path: Path) -> None:
    assert not any(name.endswith(".*") for name in imports(path))


@pytest.mark.parametrize("layer", ["values", "text", "rules", "wire"])
def test_values_rules_and_translations_touch_no_world(layer: str) -> None:
    banned = {"asyncio", "socket", "threading", "subprocess", "random", "time", "logging"}
    for path in modules(layer):
        used = {name.split(".")[0] for name in imports(path)} & banned
        # The append-only log may be extended from several threads at once.
        assert used <= ({"threading"} if path.name == "log.py" else set()), path


def in_a_new_interpreter(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a statement loads in a fresh interpreter."""
    code = (
        "import sys; before = set(sys.modules)\n"
        f"{statement}\n"
        "import json; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    return set(json.loads(in_a_new_interpreter(code).stdout))


def test_importing_whyloop_loads_nothing_heavy() -> None:
    loaded = loaded_by("import whyloop")
    heavy = {"rich", "pydantic", "asyncio", "msgspec", "aiohttp", "starlette"}
    assert not {name.split(".")[0] for name in loaded} & heavy


def test_importing_an_enum_loads_few_modules() -> None:
    loaded = loaded_by("from whyloop import StopReason")
    assert len([name for name in loaded if name.startswith("whyloop")]) <= 15


def test_importing_models_loads_no_provider_and_no_http_client() -> None:
    loaded = loaded_by("import whyloop.models")
    assert not {name for name in loaded if name.startswith(("aiohttp", "whyloop.models.openai"))}


def test_running_an_agent_loads_neither_rich_nor_pydantic() -> None:
    loaded = loaded_by(
        "from whyloop import Agent, AgentBuilder, tool\n"
        "from whyloop.testing import ScriptedModel, call\n"
        "made = tool(name='echo')(lambda: 'x')\n"
        "Agent(ScriptedModel([call('echo'), 'done']), [made]).run_sync('go').explain()"
    )
    assert not {name.split(".")[0] for name in loaded} & {"rich", "pydantic"}


def test_no_module_says_or_starts_anything_when_it_is_imported() -> None:
    names = [".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for _, path in FILES]
    code = (
        "import importlib, logging, threading, warnings\n"
        "warnings.simplefilter('error')\n"
        f"for name in {names!r}: importlib.import_module(name.removesuffix('.__init__'))\n"
        "assert threading.active_count() == 1\n"
        "assert not logging.getLogger().handlers and not logging.getLogger('whyloop').handlers\n"
    )
    done = in_a_new_interpreter(code)
    assert (done.stdout, done.stderr) == ("", "")
