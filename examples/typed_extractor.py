"""Extract an invoice from a letter: a typed answer, checked against the application's own data."""

from dataclasses import dataclass
from datetime import date
from typing import Literal

from whyloop import Agent, RunContext
from whyloop.testing import ScriptedModel, call


@dataclass
class Line:
    article: str
    """The name of the article, as the catalogue has it."""
    cents: int


@dataclass
class Invoice:
    """An invoice that a letter contains."""

    number: str
    day: date
    currency: Literal["EUR", "USD"]
    lines: list[Line]


@dataclass
class NoInvoice:
    """The letter contains no invoice."""

    reason: str


@dataclass
class Catalogue:
    articles: set[str]


def known_articles(answer: Invoice | NoInvoice, context: RunContext[Catalogue]) -> Invoice | NoInvoice:
    unknown = {line.article for line in getattr(answer, "lines", [])} - context.deps.articles
    if unknown:
        raise ValueError(f"not in the catalogue: {unknown}. The articles are {context.deps.articles}")
    return answer


letter = {"number": "A-17", "day": "2026-01-16", "currency": "EUR"}
wrong = {**letter, "lines": [{"article": "rop", "cents": 250}]}
right = {**letter, "lines": [{"article": "rope", "cents": 250}]}
# The model follows a script, so this runs offline. For a real one, use whyloop.models.load().
model = ScriptedModel([call("final_answer", {"value": wrong}), call("final_answer", {"value": right})])
agent: Agent[Catalogue, Invoice | NoInvoice] = Agent(
    model, deps_type=Catalogue, output_type=Invoice | NoInvoice, output_validators=known_articles
)
state = agent.run_sync("Dear Sir, for the rop we ask 2.50 Euro.", deps=Catalogue({"rope"}))

print(state.output)
print([message.text for message in state.messages if message.is_developer])
print(state.explain().splitlines()[0])
