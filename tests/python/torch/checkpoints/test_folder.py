"""The folder: breaks when two jobs write into one, when the only whole checkpoint is deleted, or
when a failure of the disk is not told in a sentence."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ciranda.torch.checkpoints import folder as folders
from ciranda.torch.checkpoints.folder import DiskFolder, FolderError, name_of, step_of, to_delete


def test_names() -> None:
    assert step_of(name_of(0)) == 0 and step_of(name_of(10**13)) == 10**13
    for other in ("owner", name_of(5) + ".ab.tmp", name_of(5) + ".ab.tmp.part-1", "step-5.pt"):
        assert step_of(other) is None


@pytest.mark.parametrize(
    ("steps", "newest", "keep", "deleted"),
    [
        ([1], 1, 1, []),
        ([1, 2], 2, 1, [1]),
        ([1, 2, 3], 3, 2, [1]),
        ([1, 2, 3], 3, 9, []),
        # The one of step 9 may be damaged; the newest is whole.
        ([5, 9], 5, 1, [9]),
        ([1, 5, 9], 5, 2, [1]),
    ],
)
def test_the_newest_stay(steps: list[int], newest: int, keep: int, deleted: list[int]) -> None:
    names = ["owner", *map(name_of, steps)]
    assert to_delete(names, name_of(newest), keep) == [name_of(each) for each in deleted]


def forked(work: Callable[[], None]) -> int:
    """Starts a process that does the work, and then sleeps; returns when it has done it."""
    done, tell = os.pipe()
    child = os.fork()
    if child == 0:
        work()
        os.write(tell, b".")
        time.sleep(60)
        os._exit(0)
    os.close(tell)
    assert os.read(done, 1) == b"."
    os.close(done)
    return child


def killed(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_another_job_is_refused_until_it_is_dead(tmp_path: Path) -> None:
    unfinished = tmp_path / (name_of(3) + ".1234.tmp")
    holder = forked(lambda: print(DiskFolder(str(tmp_path)).prepare("theirs")))
    unfinished.touch()
    folder = DiskFolder(str(tmp_path))
    with pytest.raises(FolderError, match=rf"used by another job \(process {holder} on"):
        folder.prepare("ours")
    assert unfinished.exists()
    killed(holder)
    folder.prepare("ours")
    assert os.listdir(tmp_path) == ["owner"], "what the dead job left behind"
    child = forked(lambda: None)  # a worker of a DataLoader, say
    folder.release()
    other = DiskFolder(str(tmp_path))
    other.prepare("next")  # the child does not hold the lock
    killed(child)
    with pytest.raises(FolderError, match="another Checkpoints of this process uses"):
        DiskFolder(str(tmp_path)).prepare("next")
    other.release()


def test_a_rank_that_sees_another_folder_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_SEEN_WITHIN_S", 0.1)
    mine, theirs = DiskFolder(str(tmp_path / "a")), DiskFolder(str(tmp_path / "b"))
    mark = mine.prepare("job")
    assert DiskFolder(str(tmp_path / "a")).sees(mark)
    assert not theirs.sees(mark)
    theirs.prepare("another")
    assert not DiskFolder(str(tmp_path / "b")).sees(mark)
    mine.release()
    theirs.release()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "no space is left for /x; a checkpoint needs 3 GiB"),
        (errno.EDQUOT, "no space is left for /x"),
        (errno.EACCES, "/x may not be written by this user"),
        (errno.EROFS, "/x may not be written by this user"),
        (errno.ENOENT, "/x is not there"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_failure_is_told_in_a_sentence(number: int, said: str) -> None:
    error = OSError(number, os.strerror(number))
    assert said in folders.explained(error, "/x", 3 << 30)
