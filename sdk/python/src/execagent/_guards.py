"""What a value of a document is, for the type checkers."""

from __future__ import annotations

from typing import Any, TypeGuard


def is_table(value: object) -> TypeGuard[dict[str, Any]]:
    """Report whether a value of a document is an object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Report whether a value of a document is a list."""
    return isinstance(value, list)


def is_texts(value: object) -> TypeGuard[list[str]]:
    """Report whether a value of a document is a list of texts."""
    return is_list(value) and all(type(each) is str for each in value)
