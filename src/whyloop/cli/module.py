"""A module that a command line names as "package.module:name", and what is in it."""

from __future__ import annotations

import importlib
import os
import sys
from operator import attrgetter
from types import ModuleType
from typing import Any

from whyloop.errors import ConfigurationError
from whyloop.rules.classify import words_of
from whyloop.values.text import shortened


def imported(option: str, name: str) -> ModuleType:
    """The module of this name; the current directory is searched too."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(f"{option}: there is no module {error.name!r}") from None
        raise ConfigurationError(f"{option}: {name} cannot be imported: {error}") from None
    except Exception as error:
        words = shortened(words_of(error), 200)
        raise ConfigurationError(f"{option}: {name} cannot be imported: {words}") from None


def attribute(option: str, module: ModuleType, wanted: str, kind: type) -> Any:
    """What is called so in a module; if nothing is, the error names what is there of the kind."""
    try:
        return attrgetter(wanted)(module)
    except AttributeError:
        others = ", ".join(key for key, value in vars(module).items() if isinstance(value, kind))
        hint = f"; its {kind.__name__.lower()}s are {others}" if others else ""
        raise ConfigurationError(f"{option}: there is no {wanted!r} in {module.__name__}{hint}") from None
