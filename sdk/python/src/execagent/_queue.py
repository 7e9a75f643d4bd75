"""Items that have come for a consumer wait here until the consumer takes them, within bounds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from ._errors import again

T = TypeVar("T")

MAX_BYTES = 1 << 20
MAX_ITEMS = 256


class Changes:
    """Lets tasks wait for the next change of something."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        """Wake all that wait."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait(self, gone: asyncio.Future[None] | None = None) -> None:
        """Wait for the next change, or until gone is done."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            if gone is None:
                await waiter
            else:
                await asyncio.wait({waiter, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)


class Queue(Generic[T]):
    """A bounded queue of items, each with a number of bytes. An empty queue has room for any item."""

    def __init__(self) -> None:
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._times = 1  # its size, in usual sizes
        self._end: BaseException | None = None
        self._drop: Callable[[T], bool] | None = None
        self._changes = Changes()

    def _full(self, size: int, times: int = 1) -> bool:
        count, times = len(self._items), times * self._times
        return count > 0 and (count >= times * MAX_ITEMS or self._bytes + size > times * MAX_BYTES)

    def stretch(self, times: int) -> None:
        """Let the queue hold so many times what it usually holds."""
        self._times = times
        self._changes.notify()

    @property
    def overfull(self) -> bool:
        """Whether the queue holds twice its usual size. Nothing should be pushed to it then."""
        return self._end is None and self._full(0, 2)

    @property
    def failed(self) -> bool:
        """Whether the queue has ended."""
        return self._end is not None

    def try_put(self, item: T, size: int) -> bool:
        """Append an item, if there is room. An item that is dropped has room."""
        if self._end is None and (self._drop is None or not self._drop(item)):
            if self._full(size):
                return False
            self.push(item, size)
        return True

    async def put(self, item: T, size: int, gone: asyncio.Future[None] | None = None) -> None:
        """Append an item, and wait while the queue is full. Once gone is done, a full queue takes it, too."""
        while not self.try_put(item, size):
            if gone is not None and gone.done():
                self.push(item, size)
                return
            await self._changes.wait(gone)

    def push(self, item: T, size: int) -> None:
        """Append an item without waiting."""
        if self._end is not None or (self._drop is not None and self._drop(item)):
            return
        self._items.append((item, size))
        self._bytes += size
        self._changes.notify()

    async def wait_for_room(self) -> None:
        """Wait until the queue has room again, or has ended."""
        while self._end is None and self._full(0):
            await self._changes.wait()

    async def take(self) -> T:
        """Remove the first item, and wait while there is none. After the last item, raise what ended the queue."""
        while True:
            if self._items:
                item, size = self._items.popleft()
                self._bytes -= size
                self._changes.notify()
                return item
            if self._end is not None:
                raise again(self._end)
            await self._changes.wait()

    def fail(self, end: BaseException) -> None:
        """End the queue. Items in it can still be taken. Only the first call has an effect."""
        if self._end is None:
            self._end = end
            self._changes.notify()

    def discard(self, drop: Callable[[T], bool]) -> None:
        """Drop items for which drop is true: those in the queue, and later ones."""
        self._drop = drop
        kept = [(item, size) for item, size in self._items if not drop(item)]
        self._items = deque(kept)
        self._bytes = sum(size for _, size in kept)
        self._changes.notify()
