"""From a command to its exit code: what goes wrong becomes a line for a person."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from whyloop.cli.session_parts.opening import opened
from whyloop.cli.session_parts.refusal import CANNOT_WRITE, FAILED, USAGE_ERROR, Refusal
from whyloop.cli.terminal import CannotWrite, complain
from whyloop.errors import ConfigurationError, WhyloopError
from whyloop.stores.store import Store
from whyloop.values.text import shortened

LONGEST_LINE = 1000


def carry_out(
    name: str, args: argparse.Namespace, work: Callable[[Store], Awaitable[int]], *, create: bool = False
) -> int:
    """Do something with the store that was named; one that is not there is only made with `create`."""

    async def with_store() -> int:
        async with opened(args.store, create=create) as store:
            return await work(store)

    return ended(name, with_store)


def ended(name: str, work: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run the work to its end, and return the exit code."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (whoever flushes it at the end finds something)
        return _refused(name, "the answer cannot be written: stdout is closed", CANNOT_WRITE)
    try:
        return asyncio.run(work())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        raise
    except Refusal as refusal:
        complain(f"whyloop {name}: {refusal}")
        return refusal.code
    except ConfigurationError as error:
        return _refused(name, str(error), USAGE_ERROR)
    except CannotWrite as error:
        return _refused(name, f"the answer cannot be written: {error}", CANNOT_WRITE)
    except WhyloopError as error:
        return _refused(name, str(error), FAILED)


def _refused(name: str, words: str, code: int) -> int:
    complain(f"whyloop {name}: {shortened(words, LONGEST_LINE)}")
    return code
