"""A session as a journal: each entry is what changed from one version of the state to the next.

Nothing is written twice. An entry has the messages and steps that were added, and of everything
else the fields that are no longer what they were. A step that was opened is closed by what came
of its calls alone, the counters that follow from a step are counted again when it is read, and
what a criterion said in the very words of the step before is left out.
"""

from whyloop.wire.journal_read import entries_of, folded, state_of
from whyloop.wire.journal_schema import Entry
from whyloop.wire.journal_write import entry_between

__all__ = ["Entry", "entries_of", "entry_between", "folded", "state_of"]
