"""Checkpoints of one process: breaks when a state does not come back to the bit, when a damaged or
torn file is loaded, when a failure is lost, or when stock torch cannot read the file."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import warm
from bits import bits
from disks import needs_root, small_disk

import ciranda.torch as hvd
from ciranda.errors import CirandaError, InvalidArgumentError
from ciranda.torch.checkpoints import reader
from ciranda.torch.checkpoints.folder import DiskFolder, name_of


def made(seed: int = 0, width: int = 8) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(width, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    scaler = torch.amp.GradScaler("cpu")
    average = torch.zeros(3, dtype=torch.bfloat16)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
        "average": average,
        "best": 0.0,
        "seen": [(1, "a"), {"b": None}],
    }


def train(state: dict[str, Any]) -> None:
    state["optimizer"].zero_grad()
    width = state["model"][0].in_features
    state["model"](torch.randn(6, width)).square().mean().backward()
    state["optimizer"].step()
    state["scheduler"].step()
    state["average"] += random.random()
    state["best"] += float(numpy.random.rand())


def saved(folder: Path, steps: int = 3, **options: Any) -> dict[str, Any]:
    """Trains and saves after each step."""
    state = made()
    with hvd.Checkpoints(folder, every_steps=1, **{"keep": 9, **options}) as checkpoints:
        for _ in range(steps):
            train(state)
            assert checkpoints.step(state)
            checkpoints.wait()
    return state


def test_a_training_goes_on_to_the_bit_and_draws_the_same_numbers(tmp_path: Path) -> None:
    state = saved(tmp_path)
    for _ in range(2):
        train(state)
    other = made(seed=7)
    train(other)
    with hvd.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.restore(other) == 3
    for _ in range(2):
        train(other)
    assert bits(other) == bits(state)


def test_an_empty_folder_restores_nothing(tmp_path: Path) -> None:
    state = made()
    before = bits(state)
    assert hvd.Checkpoints(tmp_path / "new").restore(state) is None
    assert bits(state) == before and not (tmp_path / "new").exists()


def test_stock_torch_and_unzip_read_the_file(tmp_path: Path) -> None:
    state = saved(tmp_path)
    path = tmp_path / name_of(3)
    for mmap in (False, True):
        found = torch.load(path, weights_only=True, mmap=mmap)
        assert sorted(found) == sorted([*state, "ciranda"]) and found["ciranda"]["step"] == 3
        assert torch.equal(found["model"]["0.weight"], state["model"][0].weight)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    model = made(seed=3)["model"]
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
    assert bits({"model": model}) == bits({"model": state["model"]})


def test_dtypes_shapes_and_ties_come_back(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    state = {
        "t": {
            "none": torch.zeros(0, 3),
            "scalar": torch.tensor(5),
            "turned": base.T,
            "part": base[1:, 1:],
            "spread": torch.ones(1).expand(5),
            "flags": torch.tensor([True, False]),
            "complex": torch.tensor([1 + 2j]),
            "small": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
            "wide": torch.tensor([1, 2], dtype=torch.uint16),
            "again": base.T,
        },
        "size": torch.Size([3]),
        "dtype": torch.float16,
        "set": {1, 2},
        "bytes": bytes(range(256)),
        "number": numpy.float64(2.5),
    }
    with hvd.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state)
    found = torch.load(tmp_path / name_of(0), weights_only=True)
    for name, value in state["t"].items():
        assert (found["t"][name].dtype, found["t"][name].shape) == (value.dtype, value.shape)
        assert found["t"][name].tolist() == value.tolist(), name
    assert found["t"]["turned"].data_ptr() == found["t"]["again"].data_ptr()
    for name in ("size", "dtype", "set", "bytes", "number"):
        assert found[name] == state[name] and type(found["number"]) is float


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda: 3, "'x.y' is a function"),
        (object(), "'x.y' is a object"),
        (torch.zeros(3).to_sparse(), "'x.y' is sparse"),
        (torch.zeros(3, device="meta"), "'x.y' has no values yet"),
        (numpy.zeros(3), "'x.y' is a ndarray"),
    ],
)
def test_what_stock_torch_could_not_load_is_named(tmp_path: Path, value: Any, said: str) -> None:
    checkpoints = hvd.Checkpoints(tmp_path)
    with pytest.raises(InvalidArgumentError, match=re.escape(said)):
        checkpoints.save({"x": {"y": value}})
    checkpoints.save({"x": {"y": 1}})
    checkpoints.close()
    assert sorted(os.listdir(tmp_path)) == ["owner", name_of(0)]


def flip(path: Path, where: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(where * (len(content) - 1))] ^= 0x10
    path.write_bytes(content)


def cut(path: Path, where: float) -> None:
    os.truncate(path, int(where * path.stat().st_size))


def test_a_flipped_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    with hvd.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save({"x": torch.arange(5), "y": torch.zeros(2), "n": 3})
    path = tmp_path / name_of(0)
    whole = path.read_bytes()
    reader.verify(str(path))
    random.seed(1)
    for at in [*range(0, 400), *random.sample(range(400, len(whole)), 400), len(whole) - 1]:
        broken = bytearray(whole)
        broken[at] ^= 1 << random.randrange(8)
        path.write_bytes(broken)
        with pytest.raises(reader.DamagedError, match="is damaged"):
            reader.verify(str(path))
    for size in [0, 1, 100, len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(reader.DamagedError):
            reader.verify(str(path))
    path.write_bytes(whole + b"x")
    with pytest.raises(reader.DamagedError):
        reader.verify(str(path))


@pytest.mark.parametrize("harm", [flip, cut])
def test_a_damaged_file_is_passed_over(tmp_path: Path, harm: Any) -> None:
    saved(tmp_path)
    harm(tmp_path / name_of(3), 0.5)
    state = made(seed=2)
    checkpoints = hvd.Checkpoints(tmp_path, every_steps=1, keep=1)
    with pytest.warns(UserWarning, match=rf"{name_of(3)} is damaged .*the one before is taken"):
        assert checkpoints.restore(state) == 2
    train(state)
    checkpoints.step(state)
    checkpoints.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hvd.Checkpoints(tmp_path).restore(made()) == 3


def test_if_all_are_damaged_nothing_begins_anew_in_silence(tmp_path: Path) -> None:
    saved(tmp_path, steps=2)
    for step in (1, 2):
        cut(tmp_path / name_of(step), 0.5)
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(CirandaError, match="is whole, so nothing is restored"),
    ):
        hvd.Checkpoints(tmp_path).restore(made())


def test_another_format_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / name_of(1), "w") as archive:
        archive.writestr("checkpoint/ciranda.json", json.dumps({"format": 2}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CirandaError, match="has format 2, and this ciranda reads format 1"):
            hvd.Checkpoints(tmp_path).restore(made())


def test_checkpoints_of_servers_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-3").mkdir()
    with pytest.raises(CirandaError, match=r"parameter servers.*ps.load_checkpoint"):
        hvd.Checkpoints(tmp_path).restore(made())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("scaler"), "has 'scaler', which the training does not register"),
        (lambda s: s.update(extra=1), "has no 'extra'"),
        (lambda s: s.update(average=torch.zeros(4)), r"'average' is \(3,\) in the checkpoint"),
        (
            lambda s: s.update(model=made(width=9)["model"]),
            r"'0.weight' of 'model' is \(4, 8\) in the checkpoint and \(4, 9\) in the training",
        ),
        (
            lambda s: s.update(model=torch.nn.Linear(8, 4)),
            "has no 'weight' of 'model'",
        ),
        (
            lambda s: s.update(optimizer=torch.optim.SGD([torch.zeros(1)])),
            r"'optimizer' has groups of \[1\] parameters in the training and of \[6\]",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused_before_it_changes(
    tmp_path: Path, change: Any, said: str
) -> None:
    saved(tmp_path, steps=1)
    state = made(seed=4)
    change(state)
    before = bits(state)
    with pytest.raises(InvalidArgumentError, match=said):
        hvd.Checkpoints(tmp_path).restore(state)
    assert bits(state) == before


def test_a_folder_with_a_later_training_is_not_overwritten(tmp_path: Path) -> None:
    saved(tmp_path, steps=3)
    state, checkpoints = made(), hvd.Checkpoints(tmp_path, every_steps=1)
    with pytest.raises(CirandaError, match="has a checkpoint of step 3, and this training is at"):
        checkpoints.step(state)
    checkpoints.close()


def test_the_newest_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, steps=5, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["owner", name_of(4), name_of(5)]


def test_a_slow_disk_puts_checkpoints_off_and_save_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    write, go = DiskFolder.write, threading.Event()

    def slow(self: DiskFolder, *arguments: Any) -> None:
        assert go.wait(20)
        write(self, *arguments)

    monkeypatch.setattr(DiskFolder, "write", slow)
    state, checkpoints = made(), hvd.Checkpoints(tmp_path, every_steps=2, keep=9)
    begun = []
    for _ in range(5):
        train(state)
        begun.append(checkpoints.step(state))
    assert begun == [False, True, False, False, False]  # that of step 4 waits for the disk
    go.set()
    checkpoints.wait()
    train(state)
    assert checkpoints.step(state)  # step 6
    train(state)
    assert not checkpoints.step(state)
    checkpoints.save(state)  # step 7; it waits for that of step 6
    checkpoints.close()
    assert sorted(os.listdir(tmp_path)) == ["owner", *map(name_of, (2, 6, 7))]
    assert torch.load(tmp_path / name_of(7), weights_only=True)["best"] == state["best"]


@needs_root
def test_a_full_disk_is_told_and_the_whole_ones_stay(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        state = {"x": torch.arange(50_000.0)}
        checkpoints = hvd.Checkpoints(disk, every_steps=1, keep=9)
        with pytest.raises(CirandaError, match=r"step \d failed on rank 0 .*no space is left for"):
            for _ in range(20):
                checkpoints.step(state)
                checkpoints.wait()
        whole = sorted(os.listdir(disk))
        assert whole[0] == "owner" and len(whole) >= 3 and whole[-1].endswith(".pt")
        # Not lost where nobody waits; and there is room again after the user has made some.
        checkpoints.step(state)
        with pytest.raises(CirandaError, match="no space is left"):
            checkpoints.save(state)
        (disk / whole[1]).unlink()
        checkpoints.save(state)
        checkpoints.close()
        assert hvd.Checkpoints(disk).restore({"x": torch.zeros(50_000)}) is not None


@needs_root
def test_a_folder_that_may_not_be_written_is_told(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(CirandaError, match="may not be written by this user"):
            hvd.Checkpoints(disk / "run", every_steps=1).step({"x": 1})


def test_a_failure_is_raised_by_the_next_step(tmp_path: Path) -> None:
    state, checkpoints = {"x": torch.zeros(3)}, hvd.Checkpoints(tmp_path, every_steps=2)
    checkpoints.step(state)
    (tmp_path / "owner").unlink()
    os.rmdir(tmp_path)
    with pytest.raises(CirandaError, match="is not there"):
        checkpoints.step(state)  # it cannot make its file
    checkpoints.close()


@pytest.mark.parametrize("url", ["memory://run", "local://{folder}/run", "file://{folder}/run"])
def test_urls_of_fsspec(tmp_path: Path, url: str) -> None:
    import fsspec

    url = url.format(folder=tmp_path)
    state = made()
    with hvd.Checkpoints(url, every_steps=1, keep=2) as checkpoints:
        for _ in range(3):
            train(state)
            checkpoints.step(state)
            checkpoints.wait()
    files, path = fsspec.core.url_to_fs(url)
    names = {os.path.basename(each) for each in files.ls(path, detail=False)} - {"owner"}
    assert names == {name_of(2), name_of(3)}
    other = made(seed=5)
    assert hvd.Checkpoints(url).restore(other) == 3
    assert bits(other) == bits(state)
    with files.open(f"{path}/{name_of(3)}", "r+b" if "memory" not in url else "rb") as file:
        content = bytearray(file.read())
    content[len(content) // 2] ^= 1
    files.pipe_file(f"{path}/{name_of(3)}", bytes(content))
    with pytest.warns(UserWarning, match="is damaged"):
        assert hvd.Checkpoints(url).restore(other) == 2
    files.rm(path, recursive=True)


def test_urls_without_fsspec_or_of_nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match="nosuch"):
        hvd.Checkpoints("nosuch://place")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InvalidArgumentError, match="pip install fsspec"):
        hvd.Checkpoints("memory://place")


def test_wrong_use_is_told(tmp_path: Path) -> None:
    for options, said in [
        ({"every_steps": 0}, "every_steps=0"),
        ({"every_s": -1}, "every_s=-1"),
        ({"keep": 0}, "keep=0 would delete the only checkpoint"),
    ]:
        with pytest.raises(InvalidArgumentError, match=said):
            hvd.Checkpoints(tmp_path, **options)  # type: ignore[arg-type]
    checkpoints = hvd.Checkpoints(tmp_path)
    for state, said in [
        ([1], "the state is a list"),
        ({"ciranda": 1}, "'ciranda' cannot be the name"),
        ({3: 1}, "3 cannot be the name"),
    ]:
        with pytest.raises(InvalidArgumentError, match=said):
            checkpoints.save(state)  # type: ignore[arg-type]
    checkpoints.close()
    with pytest.raises(InvalidArgumentError, match="is closed"):
        checkpoints.save({"x": 1})


NOT_CLOSED = """
import sys, torch, ciranda.torch as hvd
hvd.Checkpoints(sys.argv[1]).save({"x": torch.ones(3_000_000)})
"""


def test_a_program_that_ends_without_close_has_its_checkpoint(tmp_path: Path) -> None:
    script, folder = tmp_path / "script.py", tmp_path / "folder"
    script.write_text(NOT_CLOSED)
    done = warm.run([str(script), str(folder)], env=dict(os.environ), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    state = {"x": torch.zeros(3_000_000)}
    assert hvd.Checkpoints(folder).restore(state) == 0 and bool(state["x"].all())
