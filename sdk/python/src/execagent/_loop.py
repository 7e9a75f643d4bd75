"""Event loops in threads of their own, for callers without a loop or with several."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from ._errors import ClosedError

T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.RLock()  # a signal handler may close the client at any time
        self._closer: int | None = None  # the thread that closes it
        self._last: asyncio.Future[None] | None = None
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="execagent", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    @property
    def forked(self) -> bool:
        """Whether this is a copy of the process that has the thread. Nothing may be locked or waited for here."""
        return os.getpid() != self._process

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and wait for it."""
        waiting = self._begin(work)
        try:
            return waiting.result()
        except concurrent.futures.CancelledError:
            raise ClosedError("the client is closed") from None
        except BaseException:
            waiting.cancel()  # such as a KeyboardInterrupt: nobody waits any more
            raise
        finally:
            self._end(waiting)

    async def acall(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and wait for it in another loop. If the caller is cancelled, so is the work."""
        waiting = self._begin(work)
        try:
            return await asyncio.wrap_future(waiting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if waiting.cancelled() and (task is None or not task.cancelling()):
                raise ClosedError("the client is closed") from None
            raise
        finally:
            self._end(waiting)

    def _begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self.forked:
            work.close()
            raise RuntimeError("this client belongs to the process that has forked this one: make a client here")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback in the event loop must not wait for its client: do it in another thread")
        with self._lock:
            if self._closer is not None:
                work.close()
                raise ClosedError("the client is closed")
            waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._waiting.add(waiting)
        return waiting

    def _end(self, waiting: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._waiting.discard(waiting)

    def soon(self, work: Callable[[], None]) -> None:
        """Run something short in the loop, and wait for it."""

        async def run() -> None:
            work()

        self.call(run())

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run one last coroutine, and end the loop and its thread. Closing again is no error."""
        if self.forked:
            return  # the connection belongs to the other process
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback in the event loop must not close its client: do it in another thread")
        with self._lock:
            closer, self._closer = self._closer, self._closer or threading.get_ident()
        if closer is not None:
            if closer != threading.get_ident():  # a signal handler must not wait for what it interrupts
                self._thread.join()
            return
        try:
            if last is not None:
                asyncio.run_coroutine_threadsafe(last(), self._loop).result()
        finally:
            with self._lock:
                waiting = list(self._waiting)
            # Whoever still waits in another thread gets an error from the closed client.
            concurrent.futures.wait(waiting, timeout=5)
            for each in waiting:
                each.cancel()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def close_soon(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do what close does without waiting, from any thread, also while garbage is collected."""
        if self.forked:
            return
        with self._lock:
            if self._closer is not None:
                return
            self._closer = threading.get_ident()

        def begin() -> None:
            self._last = asyncio.ensure_future(last())
            self._last.add_done_callback(lambda _: self._loop.stop())

        self._loop.call_soon_threadsafe(begin)


class Closing(Protocol):
    """Something that has such a loop."""

    def close(self) -> None:
        """End it. Closing again is no error."""


_open: weakref.WeakSet[Any] = weakref.WeakSet()


def close_at_exit(thing: Closing) -> None:
    """Close something when Python ends, if it still exists then."""
    _open.add(thing)


@atexit.register
def _close_all() -> None:
    for thing in list(_open):
        thing.close()
