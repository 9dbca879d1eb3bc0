"""Sinks, read back with their own libraries; what a user gets wrong; a library that fails."""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from written import in_mlflow, in_tensorboard, parameters_in_tensorboard

from ciranda import sinks
from ciranda.sinks import Sinks

PARAMETERS = {"lr": 0.5, "batch": 32, "optimizer": "adam"}


def write(text: str, warn: Any = pytest.fail) -> None:
    """Two runs at a time, of which the second fails."""
    all_sinks = Sinks([text], "a-group", warn)
    good, bad = all_sinks.start("good: ×1", PARAMETERS), all_sinks.start("bad", {})
    good.write({"loss": 0.5, "accuracy": 10}, step=1)
    bad.write({"loss": 2.0}, step=1)
    good.write({"loss": 0.25}, step=7)
    good.close()
    with pytest.raises(KeyboardInterrupt), bad:
        raise KeyboardInterrupt


def test_tensorboard_has_runs_values_and_parameters(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    write(f"tensorboard:{tmp_path}")
    assert in_tensorboard(tmp_path) == {
        "a-group/bad": {"loss": [(1, 2.0)]},
        "a-group/good-1": {"loss": [(1, 0.5), (7, 0.25)], "accuracy": [(1, 10.0)]},
    }
    assert parameters_in_tensorboard(tmp_path / "a-group" / "good-1") == PARAMETERS
    write(f"tensorboard:{tmp_path}")
    assert "a-group/good-1-2" in in_tensorboard(tmp_path), "runs of one name would be mixed"


def test_mlflow_has_runs_values_and_parameters(mlflow_uri: str) -> None:
    write(f"mlflow:{mlflow_uri}")
    parameters = {"lr": "0.5", "batch": "32", "optimizer": "adam"}
    curves = {"loss": [(1, 0.5), (7, 0.25)], "accuracy": [(1, 10.0)]}
    assert in_mlflow(mlflow_uri, "a-group") == {
        "good: ×1": ("FINISHED", parameters, curves),
        "bad": ("FAILED", {}, {"loss": [(1, 2.0)]}),
    }
    write(f"mlflow:{mlflow_uri}")  # the experiment is there already


def test_wandb_has_runs_values_and_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    reason = "wandb is not installed (requirements-frameworks.txt)"
    pytest.importorskip("wandb", reason=reason)
    from wandb.proto.wandb_internal_pb2 import Record

    write("wandb:a-team/a-project")
    assert capfd.readouterr() == ("", ""), "the terminal is ours"
    runs = {}
    for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb"):
        records = whole_log(path, Record)
        [run] = [each.run for each in records if each.HasField("run")]
        runs[run.display_name] = run, [each for each in records if each.HasField("history")]
        assert (run.entity, run.project, run.run_group) == ("a-team", "a-project", "a-group")
        [end] = [each.exit for each in records if each.HasField("exit")]
        assert end.exit_code == (1 if run.display_name == "bad" else 0)
    run, history = runs["good: ×1"]
    config = {each.key: each.value_json for each in run.config.update}
    assert config.items() >= {"lr": "0.5", "batch": "32", "optimizer": '"adam"'}.items()
    values = [{i.key or i.nested_key[0]: i.value_json for i in h.history.item} for h in history]
    assert [(each["_step"], each["loss"]) for each in values] == [("1", "0.5"), ("7", "0.25")]


def whole_log(path: Path, kind: Any) -> list[Any]:
    """What W&B's own process writes of a run; it may come to the end after finish()."""
    deadline = time.monotonic() + 60
    while True:
        records = [kind.FromString(data) for data in log_records(path.read_bytes())]
        if any(each.HasField("exit") for each in records) or time.monotonic() > deadline:
            return records
        time.sleep(0.02)


def log_records(data: bytes) -> Iterator[bytes]:
    """LevelDB's format of logs: blocks of 32 KiB; parts of a record are marked 1, or 2, 3, 4."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if -at % 32768 < 7:
            at += -at % 32768
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        if at + 7 + size > len(data):  # still on its way
            return
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield record
            record = b""


@pytest.mark.parametrize("text", ["tensorboard", "tensorboard:", "csv:here", "runs", ""])
def test_what_is_no_sink_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no sink; write tensorboard:DIR, mlflow:URI or wandb"):
        Sinks([text], "a-group")


@pytest.mark.parametrize("library", ["tensorboard", "mlflow", "wandb"])
def test_a_sentence_says_which_library_is_missing(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ValueError) as caught:
        Sinks([f"{library}:here"], "a-group")
    sentence = f"'{library}:here' needs {library}, which is not installed: pip install {library}"
    assert str(caught.value) == sentence


def test_a_folder_that_cannot_be_made_is_found_at_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"^'tensorboard:.*/file': .*Not a directory"):
        Sinks([f"tensorboard:{tmp_path}/file"], "a-group")


def test_a_sink_that_fails_is_left_out_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    class Recorder:
        def __init__(self, run: str, parameters: Any) -> None:
            seen.append(run)

        def write(self, values: Any, step: int) -> None:
            seen.append((dict(values), step))

        def close(self, failed: bool) -> None:
            seen.append(failed)

    class Failing(Recorder):
        def write(self, values: Any, step: int) -> None:
            raise OSError("the disk is full\nand more")

    kinds = {"good": lambda *_: Recorder, "full": lambda *_: Failing}
    monkeypatch.setattr(sinks, "_LIBRARIES", kinds)
    warnings: list[str] = []
    both = Sinks(["full:x", "good:x"], "a-group", warnings.append)
    for run in (both.start("a", {}), both.start("b", {})):
        run.write({"loss": 1}, step=3)
        run.close()
        run.close(failed=True)  # it is closed already
    assert warnings == ["'full:x' gets no more figures: the disk is full"]
    written = [({"loss": 1.0}, 3), False]
    assert seen == ["a", "a", "b", "b", *written, *written]
