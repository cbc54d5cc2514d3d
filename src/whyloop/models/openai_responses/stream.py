"""A response put together from its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from whyloop.errors import ResponseValidationError
from whyloop.models.failures import stream_error
from whyloop.models.openai_responses.items import Item, kind_of, texts_of
from whyloop.models.openai_responses.response import build
from whyloop.models.parts import json_of
from whyloop.values.model import Delta, ModelResponse, ReasoningDelta, TextDelta

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


class _Place(NamedTuple):
    """Where in an item the pieces of a kind of event belong."""

    item: str
    field: str
    word: str
    part: str = ""
    counter: str = "content_index"


_PLACES = {
    "output_text": _Place("message", "content", "text", "output_text"),
    "refusal": _Place("message", "content", "refusal", "refusal"),
    "reasoning_text": _Place("reasoning", "content", "text", "reasoning_text"),
    "reasoning_summary_text": _Place("reasoning", "summary", "text", "summary_text", "summary_index"),
    "function_call_arguments": _Place("function_call", "arguments", "arguments"),
}


class _PartialItem:
    """An item whose pieces are still coming in."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.item: Item = {}
        self.done = False
        self.said = 0
        self.shown = 0
        self.pieces: dict[tuple[str, int], list[str]] = {}

    def complete(self) -> Item:
        if self.done:
            return self.item
        item, parts = dict(self.item), dict[str, list[Item]]()
        for (name, _), texts in sorted(self.pieces.items(), key=lambda entry: entry[0][1]):
            place, text = _PLACES[name], "".join(texts)
            item.setdefault("type", place.item)
            if place.part:
                parts.setdefault(place.field, []).append({"type": place.part, place.word: text})
            else:
                item[place.field] = text
        return item | parts


class ResponsesStream:
    """Reads the events of one response; only the text of messages is shown, in the order of the messages."""

    def __init__(self) -> None:
        self._document: dict[str, Any] = {}
        self.ended = False
        self._items: dict[int, _PartialItem] = {}
        self._named: dict[str, _PartialItem] = {}
        self._reasoning: str | None = None
        self._speakers: list[_PartialItem] = []  # Messages that are not shown in full; the first one speaks.

    def read(self, event: str, data: bytes) -> Iterable[Delta]:
        if data in (b"", b"[DONE]"):
            return ()
        chunk = json_of(data, "an event of the stream")
        if not isinstance(chunk, dict):
            raise ResponseValidationError(f"an event of the stream is no object: {data[:80]!r}")
        kind = chunk.get("type") or event
        if kind == "error" or chunk.get("error"):
            raise stream_error(chunk)
        try:
            return self._take(kind, chunk)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ResponseValidationError(
                f"an event of the stream cannot be read: {type(error).__name__}: {error}"
            ) from None

    def finish(self) -> ModelResponse:
        if not self.ended:
            raise ResponseValidationError("the stream ended before the answer was complete")
        # Some hosts end with a response that leaves out what they have streamed.
        if not self._document.get("output"):
            self._document["output"] = [item.complete() for _, item in sorted(self._items.items())]
        return build(self._document)

    def _take(self, kind: str, chunk: Mapping[str, Any]) -> Iterable[Delta]:
        name, _, ending = kind.removeprefix("response.").rpartition(".")
        if name in _PLACES:
            return self._take_piece(name, ending, chunk)
        if name == "output_item":
            return self._take_item(ending, chunk)
        response = chunk.get("response")
        if isinstance(response, dict):
            self._document |= {key: value for key, value in response.items() if value is not None}
        if kind in _ENDS:
            self.ended = True
            self._document["status"] = ending
        return ()

    def _take_piece(self, name: str, ending: str, chunk: Mapping[str, Any]) -> Iterable[Delta]:
        place = _PLACES[name]
        partial = self._item_for(chunk, place.item)
        index = chunk.get(place.counter)
        pieces = partial.pieces.setdefault((name, index if isinstance(index, int) else 0), [])
        piece = chunk.get("delta" if ending == "delta" else place.word)
        if not isinstance(piece, str):
            return ()
        if ending == "delta":
            pieces.append(piece)
        else:
            pieces[:] = [piece]
        if name != "output_text":
            return self._think(name, pieces, piece) if ending == "delta" else ()
        in_step = ending == "delta" and partial.shown == partial.said
        partial.said += len(piece) if ending == "delta" else 0
        if in_step and self._speakers[:1] == [partial]:
            partial.shown += len(piece)
            return (TextDelta(piece),)
        return self._show()

    def _think(self, name: str, pieces: list[str], piece: str) -> Iterable[Delta]:
        """Return a piece of reasoning: of the thoughts or of their summaries, whichever is streamed first."""
        if not name.startswith("reasoning") or self._reasoning not in (None, name):
            return ()
        # As in the complete response, a blank line stands between two parts.
        gap = "\n\n" if self._reasoning and len(pieces) == 1 else ""
        self._reasoning = name
        return (ReasoningDelta(gap + piece),)

    def _take_item(self, ending: str, chunk: Mapping[str, Any]) -> Iterable[Delta]:
        item: Item = chunk["item"]
        partial = self._item_for(chunk, kind_of(item), new=ending == "added")
        partial.item = item
        partial.done = ending == "done"
        for name in (item.get("id"), item.get("call_id")):
            if name:
                self._named.setdefault(name, partial)
        return self._show() if partial.done else ()

    def _item_for(self, chunk: Mapping[str, Any], kind: str, *, new: bool = False) -> _PartialItem:
        """The item that an event is about: by its place, by its id, or else the last one."""
        index, item = chunk.get("output_index"), chunk.get("item") or {}
        name = chunk.get("item_id") or item.get("id") or item.get("call_id")
        if isinstance(index, int):
            partial = self._items.get(index)
        elif name:
            partial = self._named.get(name)
        else:
            partial = None if new or not self._items else next(reversed(self._items.values()))
        if partial is None:
            behind = max(self._items, default=-1) + 1
            partial = self._begin(index if isinstance(index, int) else behind, name, kind)
        return partial

    def _begin(self, index: int, name: str | None, kind: str) -> _PartialItem:
        partial = self._items[index] = _PartialItem(index)
        if name:
            self._named[name] = partial
        if kind == "message":
            self._speakers.append(partial)
            self._speakers.sort(key=lambda speaker: speaker.index)
        return partial

    def _show(self) -> Iterable[Delta]:
        """What can be shown of the messages now: all of those that are done, and the one that speaks."""
        news = []
        while self._speakers:
            speaker = self._speakers[0]
            text = "".join(texts_of(speaker.complete()))
            news.append(text[speaker.shown :])
            speaker.said = speaker.shown = max(speaker.shown, len(text))
            if not speaker.done:
                break
            self._speakers.pop(0)
        text = "".join(news)
        return (TextDelta(text),) if text else ()
