"""What a sandbox has refused to a process."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from ._record import Record

_MAX = 1024  # refusals of a process


class Refusal(NamedTuple):
    """Something that a process has tried, once or several times.

    ``layer`` is file, socket, network, program, limit or ceiling. ``needs`` and ``at`` say what would have to be
    allowed. ``text`` is all of it in one line, for a model.
    """

    layer: str
    operation: str
    subject: str
    reason: str
    needs: str
    at: str
    times: int
    text: str


class Refusals(NamedTuple):
    """What a sandbox has refused to a process, as far as it is known.

    ``more`` is how many refusals are not in ``list``. ``note`` says what the sandbox allows, if the process may have
    failed because of it and nothing is known.
    """

    list: tuple[Refusal, ...]
    more: int
    note: str


def refusals_of(r: Record) -> Refusals | None:
    """Read the member refusals, which may be absent."""
    member = r.record_or("refusals")
    if member is None:
        return None
    told = len(member.array("list"))
    listed = tuple(
        Refusal(
            each.text("layer"),
            each.text("operation"),
            each.text("subject"),
            each.text("reason"),
            each.text_or("needs"),
            each.text_or("at"),
            each.integer_or("times") or 0,
            each.text("text"),
        )
        for each in islice(member.records("list"), _MAX)
    )
    return Refusals(listed, (member.integer_or("more") or 0) + told - len(listed), member.text_or("note"))
