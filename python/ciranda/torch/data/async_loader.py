"""Loaders whose thread reads batches ahead, with Horovod's class names (horovod.data)."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_EXIT_S = 5.0  # how long the interpreter's exit waits for a thread in the middle of a batch


class BaseDataLoader:
    """A loader. Your own defines __len__(), and _iterate(), which yields the batches."""

    def __len__(self) -> int:
        """Returns the number of batches of an epoch."""
        raise NotImplementedError

    def _iterate(self) -> Iterable[Any]:
        raise NotImplementedError

    def _process_batch(self, batch: Any) -> Any:
        """Returns the batch as the consumer gets it, for example moved to a GPU.

        It runs in the consumer's thread.
        """
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """Runs the _iterate() of a BaseDataLoader in a thread, some batches ahead.

    Put it before the loader in the list of base classes:

        class AsyncLoader(AsyncDataLoaderMixin, Loader): ...

    `async_loader_queue_size`: number of batches to read ahead; 0 for no thread. `debug_data_loader`
    is accepted for Horovod's scripts and ignored. The consumer gets the errors of _iterate(). The
    thread begins and ends with an iteration, also with one that is left in the middle. Unlike
    Horovod's, it does not continue with the next epoch, because set_epoch() has still to set its
    order. Raises ValueError for a negative size.
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
        """Ends running iterations. Blocks until the thread is done with its batch.

        Another iteration may begin afterwards.
        """
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
        finally:  # also if the iteration is left in the middle
            reader.close()


class _End:
    """The last item of a queue: the end of the batches, or an error."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Reader:
    """A thread, and the queue that it fills."""

    def __init__(self, read: Callable[[], Iterable[Any]], ahead: int) -> None:
        self._batches: queue.Queue[Any] = queue.Queue(ahead)
        self._left = threading.Event()  # the consumer takes no more batches
        self._thread = threading.Thread(
            target=_fill, args=(read, self._batches, self._left), name="ciranda-loader", daemon=True
        )
        self._thread.start()
        # Runs at the interpreter's exit, where a running thread could crash it.
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
    """Ends the thread. It puts at most one more item after `left` is set, and finds room for it."""
    left.set()
    if thread is threading.current_thread():
        return  # garbage collection during a put(): it would wait for itself
    _empty(batches)
    thread.join(timeout)
    _empty(batches)
    with contextlib.suppress(queue.Full):
        batches.put_nowait(_End())  # for a consumer that waits for a batch


def _empty(batches: queue.Queue[Any]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            batches.get_nowait()
