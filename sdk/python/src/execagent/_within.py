"""Bounds of waiting."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
from collections.abc import AsyncGenerator, Callable

from ._errors import AgentError, TimeoutError

CLEANUP = 10.0
"""For how many seconds a request is waited for that ends something at the agent."""


@contextlib.asynccontextmanager
async def within(limit: float | None, late: Callable[[], Exception]) -> AsyncGenerator[None]:
    """Bound the waiting in a block, in seconds; None: do not. If it takes longer, raise what late returns."""
    time = asyncio.timeout(limit)
    try:
        async with time:
            yield
    except builtins.TimeoutError as error:
        if isinstance(error, AgentError) or not time.expired():
            raise
        raise late() from None


def unanswered(method: str, limit: float) -> TimeoutError:
    """Return the error of a request that takes too long."""
    return TimeoutError(f"the agent did not answer {method} within {limit:g} s")
