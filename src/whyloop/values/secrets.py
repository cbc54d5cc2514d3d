"""The forms of secrets, for the models; `whyloop.values.redaction` has all rules."""

from __future__ import annotations

from whyloop.values.redaction import REMOVED, without_forms

__all__ = ["PATTERNS", "REMOVED"]


class _Forms:
    def sub(self, removed: str, text: str) -> str:
        return without_forms(text)


PATTERNS = (_Forms(),)
