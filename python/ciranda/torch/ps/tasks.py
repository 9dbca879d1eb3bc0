"""Tasks that a coordinator gives to workers, which train with parameter servers."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, overload

from ciranda import _C
from ciranda.errors import InvalidArgumentError, TaskFailedError

_COORDINATOR = "CIRANDA_COORDINATOR"
_TEXT_BYTES_MAX = 60_000  # of a result or failure; servers take a little more

P = ParamSpec("P")
R = TypeVar("R")


class Future(Generic[R]):
    """The result that a task will have."""

    def __init__(self, coordinator: _Coordinator, task: int) -> None:
        self._coordinator = coordinator
        self._task = task

    def done(self) -> bool:
        """Returns True if a worker has done the task. Blocks for an answer of server 0."""
        return bool(self._coordinator.ask(self._task, waits=False)[1])

    def result(self) -> R:
        """Returns the task's result, which went through JSON. Blocks until there is one.

        Raises TaskFailedError if the task has raised.
        """
        told = self._coordinator.ask(self._task, waits=True)
        self._coordinator.check(told)
        return json.loads(told[4])  # type: ignore[no-any-return]


class Task(Generic[P, R]):
    """A function that workers may run for the coordinator; calling it runs it here."""

    def __init__(self, function: Callable[P, R], name: str, place: str, copies: int) -> None:
        self._function = function
        self.name = name
        self.place = place  # where it is defined: a reload defines no other task
        self.copies = copies
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)


class _Coordinator:
    """The tasks that main() has scheduled so far."""

    def __init__(self) -> None:
        self._calls: list[str] = []
        self._settled = 0
        self._raised: set[int] = set()  # failed tasks for which join() has raised

    def schedule(self, name: str, copies: int, args: Any, kwargs: Any) -> int:
        try:
            call = json.dumps([name, args, kwargs])
        except (TypeError, ValueError) as problem:
            raise InvalidArgumentError(
                f"schedule: the arguments of task {name} must be JSON values (numbers, strings, "
                f"lists, dicts, None): {problem}"
            ) from None
        task = _C.schedule_task(call, copies)
        self._calls.append(call)
        return task

    def ask(self, task: int, *, waits: bool, failures: int | None = None) -> Any:
        told = _C.ask_task(task, waits, failures)
        self._settled = max(self._settled, told[3])
        return told

    def check(self, told: Any) -> None:
        task, _, failed, _, text = told
        if failed:
            name, args, kwargs = json.loads(self._calls[task - 1])
            words = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
            raise TaskFailedError(f"task {task}, {name}({', '.join(words)}), failed: {text}")

    def join(self) -> None:
        while self._calls:
            next_task = min(self._settled + 1, len(self._calls))
            told = self.ask(next_task, waits=True, failures=len(self._raised))
            number, failed = told[0], told[2]
            if failed and number not in self._raised:
                self._raised.add(number)
                self.check(told)
            elif self._all_settled():
                return

    def done(self) -> bool:
        if not self._all_settled():
            self.ask(len(self._calls), waits=False)
        return self._all_settled()

    def _all_settled(self) -> bool:
        """Returns True if all scheduled tasks are done; an earlier life may have scheduled more."""
        return self._settled >= len(self._calls)


_tasks: dict[str, Task[Any, Any]] = {}
_makers: list[_PerWorker[Any]] = []
_coordinator: _Coordinator | None = None  # while run() runs main()
_in_task = False


def is_coordinator() -> bool:
    """Returns True in the process that `ciranda run --coordinator` has started beside the workers.

    It gives them tasks. May be called before init().
    """
    return os.environ.get(_COORDINATOR) == "1"


@overload
def task(function: Callable[P, R]) -> Task[P, R]: ...
@overload
def task(*, name: str | None = None, copies: int = 1) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(function: Any = None, *, name: str | None = None, copies: int = 1) -> Any:
    """Makes a function of a module a task, which schedule() has a worker run.

    Its arguments and its result go through JSON: numbers, texts, lists, dicts, None. The arguments
    have at most 64 KiB, the result 60,000 bytes. Workers find it by its name, so no code travels.

    name: replaces the function's own name. A named function may be defined within another function,
    which all processes have to call before run().

    The task's pushes count once, also if its worker dies in it and another worker runs it again:
    the n-th push of the task is one push, whichever worker makes it. So a task has to make the same
    number of pushes each time.

    copies: number of workers that may run it at the same time. If no other task is left, a further
    worker starts it too, and the first one to finish counts.

    Raises InvalidArgumentError for a function without a module-level name, and for a name that
    another function has.
    """
    if isinstance(copies, bool) or not isinstance(copies, int) or copies < 1:
        raise InvalidArgumentError(f"task: copies must be a whole number from 1, not {copies!r}")
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidArgumentError(f"task: name must be a string, not {name!r}")

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        return _register(function, name, copies)

    return decorate if function is None else decorate(function)


def _register(function: Callable[P, R], name: str | None, copies: int) -> Task[P, R]:
    own = getattr(function, "__qualname__", repr(function))
    if not callable(function) or (name is None and "<" in own):
        raise InvalidArgumentError(
            f"task: {own} is not a function of a module, so workers cannot find it by that name; "
            "give the task a name, as in @ps.task(name='train')"
        )
    name = own if name is None else name
    known = _tasks.get(name)
    place = f"{function.__module__}.{own}"
    if known is not None and known.place != place:
        raise InvalidArgumentError(
            f"task: there are two with the name {name}, {known.place} and {place}; give one "
            "another name"
        )
    made = Task(function, name, place, copies)
    _tasks[name] = made
    return made


class _PerWorker(Generic[R]):
    def __init__(self, make: Callable[[], R]) -> None:
        self._make = make
        self._made: list[R] = []
        self.__doc__ = make.__doc__

    def __call__(self) -> R:
        if is_coordinator():
            raise InvalidArgumentError(
                f"{self._make.__qualname__}: each worker makes its own value, and this process "
                "is the coordinator; call it in a task"
            )
        if not self._made:
            self._made.append(self._make())
        return self._made[0]


def per_worker(make: Callable[[], R]) -> Callable[[], R]:
    """Gives each worker one object that `make` returns, such as its model or its data.

    run() makes these objects in the order in which the functions were defined, before the first
    task. The returned function gives the same object each time. It raises InvalidArgumentError in
    the coordinator, which has none.
    """
    made = _PerWorker(make)
    _makers.append(made)
    return made


def schedule(function: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
    """Has some worker run the task with these arguments; does not wait.

    Call it in the coordinator, within main() of run(). Workers start tasks in the order in which
    they were scheduled. If a task's worker dies, or says nothing for a lease, another worker gets
    the task. Raises InvalidArgumentError for arguments that JSON cannot hold.
    """
    coordinator = _the_coordinator("schedule")
    if not isinstance(function, Task):
        raise InvalidArgumentError(
            f"schedule: {function!r} is no task; decorate the function with @ps.task"
        )
    return Future(coordinator, coordinator.schedule(function.name, function.copies, args, kwargs))


def join() -> None:
    """Blocks until all tasks that were scheduled so far are done.

    Raises TaskFailedError as soon as a task has raised, once for each; other tasks continue.
    """
    _the_coordinator("join").join()


def done() -> bool:
    """Returns True if all tasks that were scheduled so far are done.

    Blocks for an answer of server 0.
    """
    return _the_coordinator("done").done()


def run(main: Callable[[], object]) -> None:
    """Runs main() in the coordinator, and tasks in a worker. Blocks.

    In the coordinator it calls main(), which schedules tasks, and waits for the last of them. In a
    worker it calls the functions of per_worker(), and runs tasks until main() has ended.

    A worker's parameters are the newest at the start of each task. A coordinator that is killed and
    started again runs main() from its beginning. It has to schedule the same tasks, otherwise it
    gets a MismatchError; tasks that are done have their results.

    An exception of main() is raised here. An exception of a task is raised in the coordinator, see
    join().
    """
    global _coordinator
    if is_coordinator():
        _coordinator = _Coordinator()
        try:
            main()
            _coordinator.join()
        finally:
            _coordinator = None
        _C.close_tasks()
        return
    for each in _makers:
        each()
    _C.end_task()  # earlier pushes belong to no task
    failed, text = False, ""
    while True:
        number, call = _C.take_task(failed, text)
        if number == 0:
            return
        failed, text = _do(call)


def refuse_in_task(what: str) -> None:
    """Raises InvalidArgumentError in a task: workers make `what` before their first task."""
    if _in_task:
        raise InvalidArgumentError(
            f"{what}: workers make it before their first task; make it in a function with "
            "@ps.per_worker"
        )


def _the_coordinator(what: str) -> _Coordinator:
    if _coordinator is not None:
        return _coordinator
    raise InvalidArgumentError(
        f"{what}: only the coordinator schedules tasks, in the function that ps.run() is given; "
        "start it by ciranda run --coordinator"
    )


def _do(call: str) -> tuple[bool, str]:
    """Runs a task. Returns True and the error, or False and the result, as text."""
    global _in_task
    _in_task = True
    try:
        name, args, kwargs = json.loads(call)
        if name not in _tasks:
            raise InvalidArgumentError(
                f"this worker has no task {name}; decorate the function when its module is loaded"
            )
        _C.begin_task()
        try:
            returned = _tasks[name](*args, **kwargs)
        finally:
            _C.end_task()
        try:
            text = json.dumps(returned)
        except (TypeError, ValueError) as problem:
            raise InvalidArgumentError(
                f"the result of task {name} must be a JSON value: {problem}"
            ) from None
        if len(text) > _TEXT_BYTES_MAX:
            raise InvalidArgumentError(
                f"task {name} returns {len(text)} bytes; the limit is {_TEXT_BYTES_MAX}; write "
                "large results to files"
            )
        return False, text
    except Exception as problem:
        text = f"{type(problem).__name__}: {problem}\n{traceback.format_exc()}"
        return True, text.encode()[:_TEXT_BYTES_MAX].decode(errors="ignore")
    finally:
        _in_task = False
