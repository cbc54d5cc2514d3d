"""The cost of an answer by the price list of genai-prices, which is optional.

`pip install "whyloop[prices]"` installs the list. It knows the hosts by their addresses, the prices of each
model over time, and what depends on the request: cached input, cache writes, the length of the prompt, the
service tier. A host or a model that is not in it has no price: its cost is unknown, and not zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from whyloop.errors import ConfigurationError
from whyloop.logger import Logger
from whyloop.values.model import ModelResponse, Usage
from whyloop.values.price import Price, plain
from whyloop.values.text import shortened

_log = Logger("whyloop.models")


class PriceList:
    """The prices of one host."""

    def __init__(self, list_: Any, url: str) -> None:
        self._list = list_
        self._url = url

    @classmethod
    def open(cls, url: str) -> PriceList | None:
        """Return the list for the host of an address; None if there is none to look into."""
        host = urlsplit(url).hostname or ""
        if host in ("localhost", "::1") or host.startswith("127."):
            return None
        found = _import_list()
        return cls(found, url) if found is not None else None

    def cost(self, response: ModelResponse, model: str) -> Decimal | None:
        """Return the cost of a response; None if the list has no price for its model."""
        usage = response.usage
        if not usage.reported:
            return None
        # A host answers with the exact name of the model; one that was deployed under another has both.
        reported = response.source.model if response.source else None
        for name in dict.fromkeys([reported, model]):
            if name:
                try:
                    return self._price(name, usage, response.billing)
                except LookupError:
                    continue
                except Exception as error:  # A list that is wrong or has changed breaks no run.
                    _log.warning("no price for model %s: the price list failed: %s", name, repr(error))
                    return None
        return None

    def _price(self, name: str, usage: Usage, billing: Mapping[str, int | str]) -> Decimal | None:
        counts = {key: count for key, count in billing.items() if isinstance(count, int)}
        priced = self._list.calc_price(
            self._list.Usage(
                input_tokens=usage.input,
                output_tokens=usage.output,
                cache_read_tokens=min(usage.cached, usage.input),
                cache_write_tokens=usage.cache_writes,
                **counts,
            ),
            name,
            provider_api_url=self._url,
            genai_request_timestamp=datetime.now(UTC),
            price_context={key: text for key, text in billing.items() if isinstance(text, str)},
        )
        # An entry may name a model and not its price.
        is_priced = priced.model_price.input_mtok is not None and priced.model_price.output_mtok is not None
        return plain(priced.total_price) if is_priced else None


def is_installed() -> bool:
    """Return whether there is a price list."""
    return _import_list() is not None


@cache
def _import_list() -> Any:
    try:
        import genai_prices
    except ImportError:
        return None
    return genai_prices


def own_price(prices: object, name: str, model: str) -> Price | None:
    """Return the price for a model among those of a developer; refuse prices without it."""
    if prices is None or isinstance(prices, Price):
        return prices
    if not isinstance(prices, Mapping):
        raise ConfigurationError(
            f"invalid prices {shortened(repr(prices), 80)}: use Price(input=…, output=…) in US dollars "
            "per million tokens, or a mapping of such prices by model"
        )
    price = prices.get(name, prices.get(model))
    if price is None:
        known = ", ".join(map(repr, prices)) or "none"
        raise ConfigurationError(f"no price for {name!r} in prices: it has {shortened(known, 200)}")
    if not isinstance(price, Price):
        raise ConfigurationError(
            f"invalid price {shortened(repr(price), 80)} of {name!r}: use Price(input=…, output=…)"
        )
    return price
