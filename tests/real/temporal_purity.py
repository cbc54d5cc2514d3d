"""A watch over the code of workflows: it may read no clock, randomness, environment or thread of a worker."""

from __future__ import annotations

import _thread
import asyncio
import os
import random
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from types import FrameType
from typing import Any

from temporalio.worker import _workflow_instance

_CLOCKS = (
    time.time,
    time.time_ns,
    time.monotonic,
    time.monotonic_ns,
    time.perf_counter,
    time.perf_counter_ns,
)
_C_FUNCTIONS = {
    id(function): function
    for function in (
        *_CLOCKS,
        time.sleep,
        time.localtime,
        time.gmtime,
        os.urandom,
        os.getpid,
        threading.get_ident,
    )
}
# From Python 3.13 on a lock is a type, whose calls the watch does not see.
_LOCKS = {id(threading.Lock), id(_thread.allocate_lock), id(_thread.start_new_thread)}
_READS_NOW = {"now", "utcnow", "today"}
_PYTHON_FUNCTIONS = {
    function.__code__
    for function in (
        uuid.uuid1,
        uuid.uuid4,
        os.getenv,
        type(os.environ).__getitem__,
        asyncio.to_thread,
        threading.Thread.start,
        threading.Thread.__init__,
    )
}
_GLOBAL_RANDOM = random._inst


@contextmanager
def watched_workflows() -> Iterator[list[str]]:
    """Collect the places where code of whyloop in a workflow reads what a replay would read differently."""
    found: list[str] = []
    activate = _workflow_instance._WorkflowInstanceImpl.activate

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            is_bad = id(arg) in _C_FUNCTIONS or id(arg) in _LOCKS
            owner = getattr(arg, "__self__", None)
            is_bad = is_bad or owner is _GLOBAL_RANDOM
            is_bad = is_bad or (
                arg.__name__ in _READS_NOW and isinstance(owner, type) and issubclass(owner, date)
            )
        else:
            is_bad = event == "call" and (
                frame.f_code in _PYTHON_FUNCTIONS or frame.f_locals.get("self") is _GLOBAL_RANDOM
            )
        if is_bad and _is_of_whyloop(frame):
            found.append("".join(traceback.format_stack(frame, limit=8)))

    def activate_watched(self: Any, activation: Any) -> Any:
        sys.setprofile(watch)
        try:
            return activate(self, activation)
        finally:
            sys.setprofile(None)

    _workflow_instance._WorkflowInstanceImpl.activate = activate_watched  # type: ignore[method-assign,assignment]
    try:
        yield found
    finally:
        _workflow_instance._WorkflowInstanceImpl.activate = activate  # type: ignore[method-assign]


def _is_of_whyloop(frame: FrameType | None) -> bool:
    """Return whether whyloop asked; a record of a log has a time, and Temporal's SDK knows what it does."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("whyloop"):
            return True
        if module.startswith(("temporalio", "logging")):
            return False
        frame = frame.f_back
    return False
