"""The sweep's memory, without trials. What could break: a second call repeats what is done, leaves
out what is not, or mixes two sweeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ciranda.launch.errors import LaunchError
from ciranda.sweep.settings import COMPLETE, FAILED, INTERRUPTED, PRUNED, SweepSettings
from ciranda.sweep.space import parse_space

pytest.importorskip("optuna")

from ciranda.sweep.study import Study, open_study


@pytest.fixture
def settings(tmp_path: Path) -> SweepSettings:
    space = parse_space(["lr=1e-4..1e-1:log", "batch=32,64"])
    return SweepSettings(
        ("true", "{lr}", "{batch}"), space, "loss", False, trials=4, sampler="random", out=tmp_path
    )


def grid_of(settings: SweepSettings, trials: int | None = None) -> SweepSettings:
    space = parse_space(["lr=0.1,0.2", "batch=1..2"])
    return replace(settings, sampler="grid", space=space, trials=trials)


def run(study: Study, state: str = COMPLETE, at_most: int = 100) -> list[dict[str, object]]:
    """Asks and tells; the value is the trial's number."""
    tried: list[dict[str, object]] = []
    while len(tried) < at_most and (trial := study.ask()) is not None:
        value = float(trial.number) if state == COMPLETE else None
        study.tell(trial.number, state, seconds=1.5, value=value)
        tried.append(dict(trial.parameters))
    return tried


def test_a_grid_is_tried_exactly_once(settings: SweepSettings) -> None:
    with open_study(grid_of(settings)) as study:
        tried = run(study)
    assert tried == [{"lr": lr, "batch": batch} for lr in ("0.1", "0.2") for batch in (1, 2)]
    with open_study(grid_of(settings)) as study:
        assert study.ask() is None


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_a_second_call_goes_on(settings: SweepSettings, sampler: str) -> None:
    settings = grid_of(settings, 4) if sampler == "grid" else replace(settings, sampler=sampler)
    with open_study(settings) as study:
        first = run(study, at_most=3)
    with open_study(settings) as study:
        assert study.left == 1
        second = run(study)
        assert [each.number for each in study.results()] == [0, 1, 2, 3]
    assert second[0] not in first


@pytest.mark.parametrize("state", [COMPLETE, PRUNED, FAILED])
def test_a_trial_that_has_ended_is_not_tried_again(settings: SweepSettings, state: str) -> None:
    with open_study(settings) as study:
        run(study, state)
    with open_study(settings) as study:
        assert study.ask() is None
        assert [each.state for each in study.results()] == [state] * 4


@pytest.mark.parametrize("kind", ["free", "grid"])
def test_interrupted_trials_are_tried_again_first(settings: SweepSettings, kind: str) -> None:
    settings = grid_of(settings) if kind == "grid" else settings
    with open_study(settings) as study:
        done = run(study, at_most=1)
        told = run(study, INTERRUPTED, at_most=1)
        killed = study.ask()  # and never told
        assert killed is not None
    with open_study(settings) as study:
        assert [each.state for each in study.results()] == [COMPLETE, INTERRUPTED, INTERRUPTED]
        again = run(study)
        assert study.ask() is None
    assert again[:2] == [*told, dict(killed.parameters)]
    assert len(again) == 3
    assert done[0] not in again


def test_a_seed_draws_the_same_again_and_others_after_a_restart(settings: SweepSettings) -> None:
    seeded = replace(settings, seed=5)
    with open_study(replace(seeded, out=settings.out / "a")) as study:
        whole = run(study)
    with open_study(replace(seeded, out=settings.out / "b")) as study:
        half = run(study, at_most=2)
    with open_study(replace(seeded, out=settings.out / "b")) as study:
        rest = run(study)
    assert half == whole[:2]
    assert not any(each in half for each in rest)


def test_the_best_is_the_least_or_the_most(settings: SweepSettings) -> None:
    for maximize, best in ((False, 0), (True, 3)):
        out = settings.out / str(maximize)
        with open_study(replace(settings, maximize=maximize, out=out)) as study:
            run(study)
            found = study.best()
            assert found is not None
            assert (found.number, found.seconds) == (best, 1.5)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"space": parse_space(["lr=1..2", "batch=32,64"])}, "other parameters: 'lr=0.0001..0.1"),
        ({"metric": "error"}, "other goal: 'minimize loss', not 'minimize error'"),
        ({"maximize": True}, "other goal: 'minimize loss', not 'maximize loss'"),
        ({"command": ("true", "{lr}", "{batch}", "-v")}, "other command"),
        ({"np": 2}, "other ranks a trial: '1', not '2'"),
    ],
)
def test_another_sweep_is_not_mixed_in(
    settings: SweepSettings, change: dict[str, object], sentence: str
) -> None:
    with open_study(settings) as study:
        run(study, at_most=1)
    with pytest.raises(LaunchError) as caught, open_study(replace(settings, **change)):  # type: ignore[arg-type]
        pass
    assert sentence in str(caught.value)


def test_two_sweeps_do_not_share_a_journal_at_a_time(settings: SweepSettings) -> None:
    with (
        open_study(settings),
        pytest.raises(LaunchError, match="another sweep is using it now"),
        open_study(settings),
    ):
        pass


def test_a_file_of_somebody_else_is_left_alone(settings: SweepSettings) -> None:
    file = settings.out / "notes.txt"
    file.write_text("mine")
    with (
        pytest.raises(LaunchError, match="not the journal of a sweep"),
        open_study(replace(settings, storage=file)),
    ):
        pass
    assert file.read_text() == "mine"


def test_what_a_killed_sweep_was_writing_is_dropped(settings: SweepSettings) -> None:
    with open_study(settings) as study:
        run(study, at_most=2)
    with open(settings.journal, "a") as file:
        file.write('{"op_code":')
    Path(f"{settings.journal}.lock").symlink_to(settings.journal)
    with open_study(settings) as study:
        assert len(run(study)) == 2
    with open_study(settings) as study:
        assert len(study.results()) == 4
