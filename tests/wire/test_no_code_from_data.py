"""Input is data: nothing in whyloop can turn it into code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import whyloop

ROOT = Path(whyloop.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Modules that make objects of whatever class the data names, and functions that run text.
MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "copyreg"}
FUNCTIONS = {"eval", "exec", "compile", "__import__"}


def running_data(source: str) -> list[str]:
    """The ways in which a piece of code could run what it reads."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").split(".")[0]} | {name.name for name in node.names}
            found += sorted(names & (MODULES | FUNCTIONS))
        elif isinstance(node, ast.Name) and node.id in FUNCTIONS:
            found.append(node.id)
        elif isinstance(node, ast.Attribute) and node.attr in FUNCTIONS - {"compile"}:
            found.append(node.attr)
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import json, marshal as m",
        "from shelve import open",
        "from pickle import loads",
        "def read(text):\n    import dill\n",
        "eval('1')",
        "run = exec",
        "import builtins\nbuiltins.eval('1')",
        "from builtins import exec",
        "__import__('pickle')",
    ],
)
def test_code_that_could_run_data_is_found(source: str) -> None:
    assert running_data(source)


def test_code_that_only_looks_like_it_is_not_found() -> None:
    assert running_data("import re, msgspec\nre.compile('x')\nevaluate(1)\n'eval(1)'") == []


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_no_module_can_run_the_data_that_it_reads(path: Path) -> None:
    assert running_data(path.read_text(encoding="utf-8")) == []


def test_there_are_files() -> None:
    assert len(FILES) > 50
