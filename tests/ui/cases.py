"""All vectors. `python -m tests.ui.cases` writes them anew, as the JavaScript module computes them.

Read the difference before you keep it: a vector is a promise to every client. The lines that a person sees
of each case of `reduce` are written by hand, and a test compares them with the vectors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.ui.display_cases import DISPLAY
from tests.ui.envelopes import Json
from tests.ui.order_cases import ORDER_CASES
from tests.ui.run_cases import RUN_CASES
from tests.ui.support import javascript
from tests.ui.text_cases import TEXT_CASES

FOLDER = Path(__file__).parent / "vectors"
REDUCE = [*RUN_CASES, *ORDER_CASES, *TEXT_CASES]


def camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others)


def main() -> None:
    with javascript() as js:
        vectors: dict[str, list[Json]] = {"reduce": []}
        for case in REDUCE:
            expected = view_of(js.call("reduced", case.messages, case.envelopes))
            known = {"name": case.name, "messages": case.messages, "envelopes": case.envelopes}
            vectors["reduce"].append({**known, "expected": expected})
        for function, cases in DISPLAY.items():
            name_there = "reconciled" if function == "reconcile" else camel_case(function)
            vectors[function] = [
                {"name": name, "arguments": given, "expected": view_of(js.call(name_there, *given))}
                for name, given in cases
            ]
    for function, found in vectors.items():
        (FOLDER / f"{function}.json").write_text(written(found), encoding="utf-8")


def view_of(answer: Any) -> Any:
    """Return a result without the number that a view has in the process."""
    is_view = isinstance(answer, dict) and "view" in answer
    return {"messages": answer["messages"], "runs": answer["runs"]} if is_view else answer


def written(vectors: list[Any]) -> str:
    return json.dumps(vectors, indent=1) + "\n"


if __name__ == "__main__":
    main()
