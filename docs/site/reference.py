"""Complete what the API reference reads from the code.

The reference is made from signatures and docstrings. This extension of griffe adds what the code says
elsewhere: the constructor of a struct is the list of its fields, a method that waits for one of another
class has the signature of that one, a method without a docstring has that of the one it overrides, and a
parameter that means the same everywhere is explained once, in `SHARED`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from griffe import (
    Alias,
    Attribute,
    Class,
    Docstring,
    DocstringSectionKind,
    Extension,
    Function,
    Module,
    Object,
    Parameter,
    ParameterKind,
    Parameters,
)

SHARED = {
    "agent": "The agent that runs the session.",
    "agent_id": "The id of the session.",
    "agent_ids": "The ids of the sessions.",
    "arguments": "The arguments to run the call with instead.",
    "by": "The name of the person that decides.",
    "chunks": "The chunks, in order.",
    "clock": "The clock.",
    "config": "What envelopes contain. Default: `BroadcastConfig.standard()`.",
    "content": "A text, or a list of text, image and file parts.",
    "context": "The facts about the call.",
    "deliver": "The function that takes the chunks.",
    "deps": "The deps for this run, of the agent's `deps_type`. They are never stored.",
    "entries": "The entries, in order.",
    "event": "The event, or its envelope.",
    "events": "The events, or their envelopes, in order.",
    "expected_version": "The version that the caller knows. Default: any.",
    "given": "What is asked for.",
    "grant": "How much the run may use on top of its limits. Default: nothing.",
    "granted": "The grant of a person.",
    "handlers": "Functions that receive the events. Default: none.",
    "handler": "A function that receives the events.",
    "journal": "Where the transitions of the run are recorded. Default: nowhere.",
    "key": "The idempotency key of the request, which is recorded with its changes. Default: none.",
    "lease": "The lease of the runner.",
    "leases": "The leases of this process.",
    "metadata": "The metadata of the session. Default: none.",
    "now": "The time. Default: that of this machine.",
    "on_event": "A function that receives the events of this run. Default: none.",
    "payloads": "The payloads of Temporal.",
    "query": "The question: a text, a message, or the parts of one.",
    "question_id": "The id of the open question, `PendingCall.id`.",
    "start": "The session that the workflow runs.",
    "reason": "The reason, which the trace shows.",
    "reasoning": "The reasoning before the answer. Default: none.",
    "request": "The request to the model.",
    "schema": "The JSON schema of the answer.",
    "state": "The state of the session.",
    "store": "The store that holds the sessions.",
    "summary": "The session as it is listed.",
    "usage": "The tokens that the answer used, in detail or as one number. Default: none reported.",
    "wanted": "The conditions that the sessions meet.",
    "with_tools": "True if the request also offers tools.",
}
"""The meaning of a parameter, for every function whose docstring does not explain it."""


class Reference(Extension):
    """Complete the signatures and docstrings of a package once it is loaded."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Complete every class and function of the package."""
        for entry in list(_objects(pkg)):
            if isinstance(entry, Class):
                _add_constructor(entry)
                _add_waiting_methods(entry)
                _inherit_arguments(entry)
                for member in (*entry.functions.values(), *entry.attributes.values()):
                    _inherit_docstring(member, entry)
                for attribute in entry.attributes.values():
                    _show_declaration(attribute, entry)
        for entry in _objects(pkg):
            if isinstance(entry, Function):
                _explain_shared(entry)


def explained(function: Function) -> set[str]:
    """Return the parameters that the docstring of a function explains."""
    return explained_in(function.docstring) if function.docstring is not None else set()


def explained_in(docstring: Docstring) -> set[str]:
    """Return the parameters that a docstring explains."""
    sections = docstring.parse("google", warnings=False)
    found = [section.value for section in sections if section.kind is DocstringSectionKind.parameters]
    return {parameter.name.lstrip("*") for parameters in found for parameter in parameters}


def parameters_of(function: Function) -> list[str]:
    """Return the parameters of a function without `self` and `cls`."""
    return [name for parameter in function.parameters if (name := parameter.name) not in ("self", "cls")]


def _objects(parent: Module | Class) -> Iterator[Object]:
    """Yield the classes and functions that are defined in a module or a class."""
    for member in parent.members.values():
        if not isinstance(member, Alias):
            yield member
            if isinstance(member, Module | Class):
                yield from _objects(member)


def _is_struct(cls: Class) -> bool:
    bases = [str(base).partition("[")[0] for base in cls.bases]
    return any(base in ("Struct", "msgspec.Struct") for base in bases) or any(
        isinstance(base, Class) and _is_struct(base) for base in cls.resolved_bases
    )


def _add_constructor(cls: Class) -> None:
    """Give a struct the constructor that its fields make."""
    if not _is_struct(cls) or "__init__" in cls.members:
        return
    fields: dict[str, Parameter] = {}
    keywords_only = str(cls.keywords.get("kw_only")) == "True"
    for owner in (*reversed(cls.mro()), cls):
        for field in owner.attributes.values():
            is_field = field.annotation is not None and "property" not in field.labels
            if is_field and "ClassVar" not in str(field.annotation) and field.name[0] != "_":
                kind = ParameterKind.keyword_only if keywords_only else ParameterKind.positional_or_keyword
                fields[field.name] = Parameter(
                    field.name, annotation=field.annotation, kind=kind, default=field.value
                )
    this = Parameter("self", kind=ParameterKind.positional_or_keyword)
    cls.set_member(
        "__init__", Function("__init__", parameters=Parameters(this, *fields.values()), parent=cls)
    )


def _add_waiting_methods(cls: Class) -> None:
    """Give `load = _waiting(Store.load)` the signature and the docstring of `Store.load`."""
    for attribute in list(cls.attributes.values()):
        if found := re.fullmatch(r"_waiting\((\w+)\.(\w+)\)", str(attribute.value)):
            owner = cls.module[found[1]]
            method = (owner.final_target if isinstance(owner, Alias) else owner).members[found[2]]
            if isinstance(method, Function) and method.docstring is not None:
                waiting = Function(attribute.name, parameters=method.parameters, returns=method.returns)
                waiting.lineno = attribute.lineno
                cls.set_member(attribute.name, waiting)
                waiting.docstring = _copied(method.docstring.value, waiting)


def _inherit_arguments(cls: Class) -> None:
    """Give a class the explained parameters of the base whose constructor it has, or repeats."""
    constructor = cls.all_members.get("__init__")
    if cls.docstring is None or constructor is None or explained_in(cls.docstring):
        return
    function = constructor.final_target if isinstance(constructor, Alias) else constructor
    for base in cls.mro():
        if base.docstring is not None and isinstance(function, Function):
            _, separator, arguments = base.docstring.value.partition("\nArgs:\n")
            if separator and explained_in(base.docstring) == set(parameters_of(function)):
                cls.docstring = _copied(f"{cls.docstring.value}\n{separator}{arguments}", cls)
                return


def _inherit_docstring(member: Object, cls: Class) -> None:
    """Give a method or an attribute without a docstring that of the one it overrides."""
    if member.docstring is None and member.name != "__init__":
        for base in cls.mro():
            inherited = base.members.get(member.name)
            if isinstance(inherited, Function | Attribute) and inherited.docstring is not None:
                member.docstring = _copied(inherited.docstring.value, member)
                return


def _show_declaration(attribute: Attribute, cls: Class) -> None:
    """Show `name: str` for the `self.name = name` of a constructor: the value is code, and not a default."""
    if "instance-attribute" in attribute.labels and "class-attribute" not in attribute.labels:
        constructor, value = cls.members.get("__init__"), str(attribute.value)
        if (
            attribute.annotation is None
            and isinstance(constructor, Function)
            and value in constructor.parameters
        ):
            attribute.annotation = constructor.parameters[value].annotation
        attribute.value = None
    attribute.labels.difference_update(("class-attribute", "instance-attribute"))  # No reader needs these.


def _explain_shared(function: Function) -> None:
    """Add the parameters with a shared meaning to a docstring that does not explain them."""
    if function.docstring is None:
        return
    known = explained(function)
    lines = [
        f"    {name}: {SHARED[name]}"
        for name in parameters_of(function)
        if name in SHARED and name not in known
    ]
    if not lines:
        return
    text, separator, rest = function.docstring.value.partition("\nArgs:\n")
    if separator:  # The shared ones follow those that are explained here.
        own, blank, after = rest.partition("\n\n")
        value = f"{text}\nArgs:\n{own}\n" + "\n".join(lines) + blank + after
    else:
        value = f"{text}\n\nArgs:\n" + "\n".join(lines)
    function.docstring = _copied(value, function)


def _copied(value: str, parent: Object) -> Docstring:
    return Docstring(value, parent=parent, parser="google")
