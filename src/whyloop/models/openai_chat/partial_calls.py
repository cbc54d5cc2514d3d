"""Tool calls whose pieces are still coming in, however a host tells them apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whyloop.errors import ResponseValidationError
from whyloop.models.openai_chat.response import signature_of
from whyloop.models.parts import arguments_of, new_call_id
from whyloop.values.messages import ToolCall


class PartialCall:
    """One call, as far as it has come in."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []
        self.whole: Mapping[str, Any] | None = None
        self.signature: Mapping[str, Any] = {}

    def add(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function") or {}
        self.id = self.id or piece.get("id") or ""
        self.name = self.name or function.get("name") or ""
        self.signature = signature_of(piece) or self.signature
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            self.pieces.append(arguments)
        elif isinstance(arguments, dict):
            self.whole = arguments

    @property
    def arguments(self) -> Mapping[str, Any] | str:
        if self.whole is not None:
            return self.whole
        # Some hosts begin with an empty object and then send the real one.
        pieces = self.pieces[1:] if self.pieces[:1] == ["{}"] and "".join(self.pieces[1:]) else self.pieces
        arguments: Mapping[str, Any] | str = arguments_of("".join(pieces))
        return arguments

    def ends_before(self, name: str) -> bool:
        """True if a piece with this name must belong to another call."""
        if not self.name:
            return False
        return name != self.name or (bool(self.pieces or self.whole) and not isinstance(self.arguments, str))


class PartialCalls:
    """The calls of a stream: told apart by id, else by index, else by where a new name begins."""

    def __init__(self) -> None:
        self._calls: list[PartialCall] = []
        self._latest: dict[Any, PartialCall] = {}

    def add(self, piece: Mapping[str, Any]) -> None:
        index = piece.get("index")
        call = self._known(piece, index)
        if call is None:
            call = PartialCall()
            self._calls.append(call)
        self._latest[index] = call
        call.add(piece)

    def complete(self) -> list[tuple[ToolCall, Mapping[str, Any]]]:
        """Every call with what has to go back with it."""
        return [(_completed(call), call.signature) for call in self._calls]

    def _known(self, piece: Mapping[str, Any], index: Any) -> PartialCall | None:
        """The call that a piece goes on with; None if it begins one."""
        call_id, name = piece.get("id"), (piece.get("function") or {}).get("name")
        if call_id and (same := [call for call in self._calls if call.id == call_id]):
            # One id for two indexes is a host that repeats itself, not one call.
            return same[0] if index is None or self._latest.get(index) is same[0] else None
        candidate = self._latest.get(index)
        if candidate is None and index is None and self._calls:
            candidate = self._calls[-1]
        if candidate is None or (call_id and candidate.id):
            return None
        return None if name and candidate.ends_before(name) else candidate


def _completed(call: PartialCall) -> ToolCall:
    if not isinstance(call.name, str) or not call.name:
        raise ResponseValidationError("the stream has a tool call without a name")
    return ToolCall(call.id or new_call_id(), call.name, call.arguments)
