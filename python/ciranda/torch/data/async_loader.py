"""Batches that a thread reads ahead, with Horovod's class names (horovod.data)."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_EXIT_S = 5.0  # how long the interpreter's end waits for a thread that is in the middle of a batch


class BaseDataLoader:
    """What a loader of one's own defines: __len__(), and _iterate(), which yields the batches."""

    def __len__(self) -> int:
        """Batches of an epoch."""
        raise NotImplementedError

    def _iterate(self) -> Iterable[Any]:
        raise NotImplementedError

    def _process_batch(self, batch: Any) -> Any:
        """Called with each batch where it is taken, such as to move it to a GPU."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """Put before a BaseDataLoader, it runs _iterate() in a thread, some batches ahead.

        class AsyncLoader(AsyncDataLoaderMixin, Loader): ...

    `async_loader_queue_size`: how many batches; 0 for no thread. `debug_data_loader` is accepted
    for Horovod's scripts. An error of _iterate() is raised where batches are taken. The thread
    begins with an iteration and ends with it, also with one that is left in the middle; unlike
    Horovod's it does not go on to the next epoch, whose order set_epoch() has still to say.
    """

    def __init__(
        self,
        async_loader_queue_size: int = 64,
        debug_data_loader: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if async_loader_queue_size < 0:
            raise ValueError(
                "AsyncDataLoaderMixin: async_loader_queue_size must be at least 0, not "
                f"{async_loader_queue_size}"
            )
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._readers: weakref.WeakSet[_Reader] = weakref.WeakSet()
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """Ends what is being read; an iteration that is going on ends. Blocks until the thread is
        done with its batch. Another iteration may begin afterwards."""
        for reader in list(self._readers):
            reader.close()

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size == 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        reader = _Reader(self._iterate, self.async_loader_queue_size)  # type: ignore[attr-defined]
        self._readers.add(reader)
        try:
            for batch in reader:
                yield self._process_batch(batch)  # type: ignore[attr-defined]
        finally:  # also of an iteration that is left in the middle
            reader.close()


class _End:
    """The last thing in a queue: nothing follows, or an error does."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Reader:
    """A thread, and the queue that it fills."""

    def __init__(self, read: Callable[[], Iterable[Any]], ahead: int) -> None:
        self._batches: queue.Queue[Any] = queue.Queue(ahead)
        self._left = threading.Event()  # nobody takes batches any more
        self._thread = threading.Thread(
            target=_fill, args=(read, self._batches, self._left), name="ciranda-loader", daemon=True
        )
        self._thread.start()
        # At the interpreter's end, where a thread that runs on may crash it.
        weakref.finalize(self, _close, self._batches, self._left, self._thread, _EXIT_S)

    def __iter__(self) -> Iterator[Any]:
        while not isinstance(batch := self._batches.get(), _End):
            yield batch
        if batch.error is not None:
            raise batch.error

    def close(self) -> None:
        _close(self._batches, self._left, self._thread, None)


def _fill(
    read: Callable[[], Iterable[Any]], batches: queue.Queue[Any], left: threading.Event
) -> None:
    end = _End()
    try:
        for batch in read():
            if left.is_set():
                return
            batches.put(batch)
    except BaseException as error:
        end = _End(error)
    if not left.is_set():
        batches.put(end)


def _close(
    batches: queue.Queue[Any],
    left: threading.Event,
    thread: threading.Thread,
    timeout: float | None,
) -> None:
    """Whatever the thread puts after `left` is set finds room, and it puts once at most."""
    left.set()
    if thread is threading.current_thread():
        return  # which collects garbage in the middle of a put(), and would wait for itself
    _empty(batches)
    thread.join(timeout)
    _empty(batches)
    with contextlib.suppress(queue.Full):
        batches.put_nowait(_End())  # for who is waiting for a batch


def _empty(batches: queue.Queue[Any]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            batches.get_nowait()
