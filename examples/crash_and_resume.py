"""A process that is killed in the middle of a payment, and what another one makes of it."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

from whyloop import Agent, Session, tool
from whyloop.errors import SessionRunningError
from whyloop.stores import SqliteStore
from whyloop.testing import Reply, ScriptedModel, call

account = Path("account.txt")  # what truly happened


@tool
def pay(amount: int, to: str) -> None:
    """Pay somebody."""
    account.write_text(f"paid {amount} to {to}")
    os.kill(os.getpid(), signal.SIGKILL)  # the money is gone, and nobody has been told


async def open_session(store: SqliteStore, owner: str, *replies: Reply | str) -> Session:
    agent = Agent(ScriptedModel(replies), [pay])
    return await Session.open(store, agent, "payment", create=True, owner=owner, lease_seconds=1)


async def dies() -> None:
    async with SqliteStore("whyloop.db") as store:
        session = await open_session(store, "worker 1", call("pay", {"amount": 50, "to": "Bob"}))
        await session.send("Pay Bob 50")


async def takes_over(truth: str) -> None:
    async with SqliteStore("whyloop.db") as store:
        session = await open_session(store, "worker 2", "Bob has his 50.")
        print("left behind:", session.state.status)
        try:
            await session.resume()
        except SessionRunningError as error:
            print(error)
            await asyncio.sleep(error.seconds + 0.05)  # until the lease of the dead has lapsed
        (pending,) = (await session.resume()).pending_calls
        print(pending.question)
        await session.deny(pending.id, f"the bank says: {truth}", by="Ada")
        print((await session.resume()).explain())


if sys.argv[1:]:
    asyncio.run(dies())
else:
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        child = subprocess.run([sys.executable, __file__, "dies"], check=False)
        print("worker 1 ended with", signal.Signals(-child.returncode).name)
        asyncio.run(takes_over(account.read_text()))
