"""Docstrings in the Google, NumPy and Sphinx styles."""

from __future__ import annotations

import pytest

from whyloop.tools.docstrings import docstring_of


def google() -> None:
    """Searches the register.

    Finds partners by name, also by part of it.

    Args:
        query: what to look for,
            over two lines
        limit (int): at most so many
        **kind: which kind: program or lead

    Returns:
        a list of names
    """


def numpy() -> None:
    """Searches the register.

    Finds partners by name, also by part of it.

    Parameters
    ----------
    query : str
        what to look for,
        over two lines
    limit : int, optional
        at most so many
    kind
        which kind: program or lead

    Returns
    -------
    list
        a list of names
    """


def sphinx() -> None:
    """Searches the register.

    Finds partners by name, also by part of it.

    :param query: what to look for,
        over two lines
    :param int limit: at most so many
    :param kind: which kind: program or lead
    :returns: a list of names
    :raises ValueError: never
    """


@pytest.mark.parametrize("function", [google, numpy, sphinx], ids=lambda f: f.__name__)
def test_the_text_is_kept_and_the_parameters_are_taken_out(function: object) -> None:
    text, parameters = docstring_of(function)
    assert text == "Searches the register.\n\nFinds partners by name, also by part of it."
    assert parameters == {
        "query": "what to look for, over two lines",
        "limit": "at most so many",
        "kind": "which kind: program or lead",
    }


def test_a_function_without_a_docstring_has_no_description() -> None:
    def bare() -> None: ...

    assert docstring_of(bare) == ("", {})


def test_text_after_the_parameters_is_kept_out_of_them() -> None:
    def function() -> None:
        """Sends a letter.

        Args:
            to: the receiver

        Nothing is sent twice.
        """

    text, parameters = docstring_of(function)
    assert parameters == {"to": "the receiver"}
    assert text == "Sends a letter.\n\nNothing is sent twice."


def test_a_colon_in_the_text_makes_no_parameter() -> None:
    def function() -> None:
        """Note: this sends a letter.

        Example: send("x")
        """

    text, parameters = docstring_of(function)
    assert parameters == {}
    assert text.startswith("Note: this sends a letter.")
    assert 'send("x")' in text
