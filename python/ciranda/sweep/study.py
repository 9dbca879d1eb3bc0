"""Stores trials and chooses the next: Optuna with a journal. Only this module imports it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from ciranda.launch.errors import LaunchError
from ciranda.sweep.reports import Report
from ciranda.sweep.settings import (
    COMPLETE,
    INTERRUPTED,
    PRUNED,
    SweepSettings,
    TrialResult,
    best_first,
)
from ciranda.sweep.space import Parameter, Range, Value, grid

_STUDY = "ciranda-sweep"
_SWEEP, _SECONDS, _WHY, _STATE = "sweep", "seconds", "why", "state"  # attributes in the journal


@contextlib.contextmanager
def open_study(settings: SweepSettings) -> Iterator[Study]:
    """Opens the study in the settings' journal, or makes a new one.

    Raises LaunchError if the journal is another sweep's or in use.
    """
    path = settings.journal
    with _quiet(), _journal_alone(path):
        try:
            backend = JournalFileBackend(str(path))
            study = optuna.create_study(
                study_name=_STUDY,
                storage=JournalStorage(backend),
                pruner=_pruner(settings),
                direction="maximize" if settings.maximize else "minimize",
                load_if_exists=True,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LaunchError(f"--storage {path}: this is not the journal of a sweep") from error
        yield Study(study, settings)


class Study:
    def __init__(self, study: optuna.Study, settings: SweepSettings) -> None:
        _check_is_same(study, settings)
        self._study = study
        self._maximize = settings.maximize
        self._distributions = {
            name: _distribution(parameter) for name, parameter in settings.space.items()
        }
        self._running: dict[int, Trial] = {}
        self._close_interrupted()
        trials = self.results()
        # A continued sweep needs another seed; with the same seed it would draw the same values
        # again.
        seed = None if settings.seed is None else settings.seed + len(trials)
        study.sampler = _sampler(settings.sampler, seed)
        self._to_do, self._free = _what_is_left(settings, trials)

    @property
    def left(self) -> int:
        """Returns the number of trials that are still to be started."""
        return len(self._to_do) + self._free

    def ask(self) -> TrialResult | None:
        """Returns the next trial, which runs from now on; None if there is no other."""
        if self.left == 0:
            return None
        if self._to_do:
            self._study.enqueue_trial(self._to_do.pop(0))
        else:
            self._free -= 1
        trial = self._study.ask(self._distributions)
        self._running[trial.number] = trial
        return TrialResult(trial.number, dict(trial.params), "running", None, None, 0)

    def should_stop(self, number: int, report: Report) -> bool:
        """Records a report of a running trial; returns true if others were better at that step."""
        step, value = report
        trial = self._running[number]
        trial.report(value, step)
        return trial.should_prune()

    def tell(
        self, number: int, state: str, *, seconds: float, value: float | None = None, why: str = ""
    ) -> TrialResult:
        """Records the end of a trial; returns its result."""
        trial = self._running.pop(number)
        trial.set_user_attr(_SECONDS, round(seconds, 3))
        trial.set_user_attr(_STATE, state)
        trial.set_user_attr(_WHY, why)
        if state == COMPLETE:
            told = self._study.tell(trial, value)
        else:
            of_optuna = TrialState.PRUNED if state == PRUNED else TrialState.FAIL
            told = self._study.tell(trial, state=of_optuna)
        return _result(told)

    def results(self) -> list[TrialResult]:
        """Returns the results of all ended trials, by number."""
        trials = self._study.get_trials(deepcopy=False)
        return [_result(each) for each in trials if each.state.is_finished()]

    def best(self) -> TrialResult | None:
        return next(iter(best_first(self.results(), self._maximize)), None)

    def _close_interrupted(self) -> None:
        """Closes trials that a killed sweep has left open."""
        waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        for _ in waiting:
            self._study.ask(self._distributions)
        for each in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._study.tell(each.number, state=TrialState.FAIL)


def _what_is_left(
    settings: SweepSettings, trials: Sequence[TrialResult]
) -> tuple[list[dict[str, Value]], int]:
    """Returns the parameters to try, and how many more trials the sampler may choose.

    Interrupted trials do not count, and are tried again.
    """
    done = [each for each in trials if each.state != INTERRUPTED]
    room = max(0, settings.planned() - len(done))
    known = [each.parameters for each in done]
    again: list[dict[str, Value]] = []
    for each in trials:
        if each.state == INTERRUPTED and each.parameters not in [*known, *again]:
            again.append(dict(each.parameters))
    if settings.sampler != "grid":
        return again[:room], max(0, room - len(again))
    points = [each for each in grid(settings.space) if each not in known and each not in again]
    return [*again, *points][:room], 0


def _result(trial: FrozenTrial) -> TrialResult:
    """Returns the result of an ended trial; without our attributes, a killed sweep has left it."""
    seconds = trial.user_attrs.get(_SECONDS)
    value = trial.value
    if value is None and trial.intermediate_values:
        value = trial.intermediate_values[max(trial.intermediate_values)]
    return TrialResult(
        number=trial.number,
        parameters=dict(trial.params),
        state=str(trial.user_attrs.get(_STATE, INTERRUPTED)),
        value=value,
        seconds=None if seconds is None else float(seconds),
        steps=len(trial.intermediate_values),
        why=str(trial.user_attrs.get(_WHY, "")),
    )


def _distribution(parameter: Parameter) -> BaseDistribution:
    if not isinstance(parameter, Range):
        return CategoricalDistribution(parameter.texts)
    # Optuna requires the last value that the steps reach.
    high = parameter.high if parameter.step is None else parameter.values()[-1]
    if parameter.is_integer:
        return IntDistribution(
            int(parameter.low), int(high), log=parameter.log, step=int(parameter.step or 1)
        )
    return FloatDistribution(
        float(parameter.low), float(high), log=parameter.log, step=parameter.step
    )


def _sampler(name: str, seed: int | None) -> optuna.samplers.BaseSampler:
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)  # a grid never asks it


def _pruner(settings: SweepSettings) -> optuna.pruners.BasePruner:
    if settings.prune == "median":
        return optuna.pruners.MedianPruner(n_warmup_steps=settings.prune_after)
    if settings.prune == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=max(1, settings.prune_after))
    return optuna.pruners.NopPruner()


# The journal


def _check_is_same(study: optuna.Study, settings: SweepSettings) -> None:
    """Raises LaunchError if the journal is of another sweep, so that their trials do not mix."""
    ours = {
        "parameters": " ".join(f"{name}={each}" for name, each in settings.space.items()),
        "goal": settings.goal,
        "command": shlex.join(settings.command),
        "ranks a trial": str(settings.np),
        "options of ciranda run": shlex.join(settings.run_options),
    }
    theirs = study.user_attrs.get(_SWEEP)
    if theirs is None:
        study.set_user_attr(_SWEEP, ours)
        return
    for what, text in ours.items():
        if theirs.get(what) != text:
            raise LaunchError(
                f"{settings.journal} holds a sweep with other {what}: {theirs.get(what)!r}, not "
                f"{text!r}; choose another --out or --storage for a new one"
            )


@contextlib.contextmanager
def _journal_alone(path: Path) -> Iterator[None]:
    """Locks the journal, and undoes the unfinished work of a killed sweep."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise LaunchError(f"--storage {path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LaunchError(f"--storage {path}: another sweep is using it now") from None
        _check_format(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}.lock")  # Optuna's own lock, for which it would wait half a minute
        _drop_torn_line(file)
        yield
    finally:
        os.close(file)


def _check_format(path: Path) -> None:
    """Raises LaunchError if the file is no journal; called before anything is written."""
    with open(path, "rb") as file:
        first = file.readline()
    try:
        known = not first or "op_code" in json.loads(first)
    except (ValueError, TypeError):
        known = False
    if not known:
        raise LaunchError(f"--storage {path}: this is not the journal of a sweep")


def _drop_torn_line(file: int) -> None:
    content = os.pread(file, os.fstat(file).st_size, 0)
    os.ftruncate(file, content.rfind(b"\n") + 1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences Optuna about each trial, because the sweep reports them."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
