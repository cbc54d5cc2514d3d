"""Kill a process during a payment, and continue the session in another one."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

from whyloop import Agent, Session, recover, tool
from whyloop.stores import SqliteStore
from whyloop.testing import ScriptedModel, call

account = Path("account.txt")  # The truth, outside the store.


@tool
def pay(amount: int, to: str) -> None:
    """Pay a person."""
    account.write_text(f"paid {amount} to {to}")
    os.kill(os.getpid(), signal.SIGKILL)  # The money was sent, but the result is lost.


async def die() -> None:
    async with SqliteStore("whyloop.db") as store:
        agent = Agent(ScriptedModel([call("pay", {"amount": 50, "to": "Bob"})]), [pay], name="bank")
        session = await Session.open(store, agent, "payment", create=True)
        await session.send("Pay Bob 50")


async def take_over(truth: str) -> None:
    agent = Agent(ScriptedModel(["Bob has his 50."]), [pay], name="bank")
    async with SqliteStore("whyloop.db") as store:
        print("left behind:", (await store.load("payment")).status)
        await recover(store, {"bank": agent})  # `whyloop worker` does this once a second.
        (question,) = (await store.load("payment")).pending_calls
        print(question.question)
        await store.deny("payment", question.id, f"the bank says: {truth}", by="Ada")
        await recover(store, {"bank": agent})
        state = await store.load("payment")
        print("the model reads:", state.messages[2].text)
        print(state.explain())


if sys.argv[1:]:
    asyncio.run(die())
else:
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        child = subprocess.run([sys.executable, __file__, "die"], check=False)
        print("worker 1 ended with", signal.Signals(-child.returncode).name)
        asyncio.run(take_over(account.read_text()))
