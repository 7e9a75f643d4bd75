"""Functions that may block run in threads of their own.

The executor of an event loop has few threads, so functions that block for long keep others waiting. And the end of the
loop waits for them.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")


async def in_thread(function: Callable[[], T], ended: Callable[[], None] = lambda: None) -> T:
    """Run a function in a new thread, and return its result. Python does not wait for the thread at its end.

    The event loop calls ended when the function has returned, also if nobody waits for the result any more.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def finish(value: T | None, error: BaseException | None) -> None:
        ended()
        if not outcome.done():
            outcome.set_result((value, error))

    def work() -> None:
        value: T | None = None
        caught: BaseException | None = None
        try:
            value = context.run(function)
        except BaseException as error:
            caught = error
        try:
            loop.call_soon_threadsafe(finish, value, caught)
        except RuntimeError:
            pass  # the loop has ended

    try:
        threading.Thread(target=work, name="execagent", daemon=True).start()
    except BaseException:
        ended()
        raise
    value, error = await outcome
    if error is not None:
        raise error
    return cast("T", value)
