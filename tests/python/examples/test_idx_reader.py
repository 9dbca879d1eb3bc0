"""The main job reads files that others wrote: each way they can be wrong is one sentence."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from idx_files import header, write_gzip, write_idx, write_small_data_set

DEBIAN_DIR = Path("/usr/share/datasets/fashion-mnist")


def test_reads_images_in_row_major_order(fashion_mnist: ModuleType, tmp_path: Path) -> None:
    path = write_idx(tmp_path / "images.gz", (2, 3, 4), bytes(range(24)))
    images = fashion_mnist.read_idx(path)
    assert images.dtype == torch.uint8
    assert torch.equal(images, torch.arange(24, dtype=torch.uint8).view(2, 3, 4))


def test_reads_labels(fashion_mnist: ModuleType, tmp_path: Path) -> None:
    labels = fashion_mnist.read_idx(write_idx(tmp_path / "labels.gz", (5,), b"\0\1\2\3\x09"))
    assert labels.tolist() == [0, 1, 2, 3, 9]


@pytest.mark.skipif(not DEBIAN_DIR.is_dir(), reason="dataset-fashion-mnist is not installed")
def test_reads_the_real_files(fashion_mnist: ModuleType) -> None:
    split = fashion_mnist.read_split(
        DEBIAN_DIR, fashion_mnist.FILES["test_images"], fashion_mnist.FILES["test_labels"]
    )
    assert split.images.shape == (10_000, 1, 28, 28)
    assert torch.bincount(split.labels).tolist() == [1000] * 10
    assert abs(split.images.mean().item()) < 0.05
    assert abs(split.images.std().item() - 1) < 0.05


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "ends inside the magic number"),
        (b"\0\0\x08", "ends inside the magic number"),
        (header((3,), zeros=1) + bytes(3), "is not an IDX file of bytes"),
        (header((3,), element=0x0D) + bytes(12), "is not an IDX file of bytes"),
        (header(()), "is not an IDX file of bytes"),
        (header((1, 1, 1, 1)) + bytes(1), "is not an IDX file of bytes"),
        (header((2, 3, 4))[:9], "ends inside the header"),
        (header((2, 3)) + bytes(5), "holds less than the 6 bytes"),
        (header((2, 3)) + bytes(7), "holds more than the 6 bytes"),
        (header((0, 28, 28)), "is empty or over"),
        (header((0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF)), "is empty or over"),
        (header((60_000, 28_000, 28)), "is empty or over"),
    ],
)
def test_says_what_is_wrong_inside(
    fashion_mnist: ModuleType, tmp_path: Path, content: bytes, sentence: str
) -> None:
    path = write_gzip(tmp_path / "wrong.gz", content)
    with pytest.raises(ValueError, match=sentence) as caught:
        fashion_mnist.read_idx(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.99])
def test_a_file_cut_short_is_damaged(
    fashion_mnist: ModuleType, tmp_path: Path, keep: float
) -> None:
    path = write_idx(tmp_path / "cut.gz", (10, 28, 28), bytes(i * i % 251 for i in range(7840)))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(ValueError, match="damaged gzip file"):
        fashion_mnist.read_idx(path)


def test_a_file_that_is_not_gzip_is_damaged(fashion_mnist: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "plain.gz"
    path.write_bytes(header((3,)) + bytes(3))
    with pytest.raises(ValueError, match="damaged gzip file"):
        fashion_mnist.read_idx(path)


def test_a_flipped_byte_is_damaged(fashion_mnist: ModuleType, tmp_path: Path) -> None:
    path = write_idx(tmp_path / "flipped.gz", (10, 28, 28))
    content = bytearray(path.read_bytes())
    content[-6] ^= 0xFF  # inside the checksum
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged gzip file"):
        fashion_mnist.read_idx(path)


def test_images_and_labels_must_belong_together(fashion_mnist: ModuleType, tmp_path: Path) -> None:
    folder = write_small_data_set(tmp_path, train=30, test=10)
    names = fashion_mnist.FILES
    with pytest.raises(ValueError, match=r"\(30, 28, 28\) images, \(10,\) labels"):
        fashion_mnist.read_split(folder, names["train_images"], names["test_labels"])


def test_a_label_out_of_range_is_refused(fashion_mnist: ModuleType, tmp_path: Path) -> None:
    write_idx(tmp_path / "images.gz", (2, 28, 28))
    write_idx(tmp_path / "labels.gz", (2,), b"\x03\x0a")
    with pytest.raises(ValueError, match="a label is over 9"):
        fashion_mnist.read_split(tmp_path, "images.gz", "labels.gz")
