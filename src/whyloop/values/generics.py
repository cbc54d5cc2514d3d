"""The type variables of the generic classes; their defaults are for type checkers alone.

`Agent` without parameters has no deps and answers with text. `AgentState`, `RunContext` and `Tool` without
parameters fit any of their kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Type checkers bring these stubs along, so the package is not needed to run.
    from typing_extensions import ParamSpec, TypeVar

    D_contra = TypeVar("D_contra", contravariant=True, default=None)
    T_co = TypeVar("T_co", covariant=True, default=str)
    AnyD_co = TypeVar("AnyD_co", covariant=True, default=Any)
    AnyT_co = TypeVar("AnyT_co", covariant=True, default=Any)
    P = ParamSpec("P", default=...)
    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import ParamSpec, TypeVar

    D_contra = TypeVar("D_contra", contravariant=True)
    T_co = TypeVar("T_co", covariant=True)
    AnyD_co = TypeVar("AnyD_co", covariant=True)
    AnyT_co = TypeVar("AnyT_co", covariant=True)
    P = ParamSpec("P")
    R_co = TypeVar("R_co", covariant=True)

D = TypeVar("D")
T = TypeVar("T")
