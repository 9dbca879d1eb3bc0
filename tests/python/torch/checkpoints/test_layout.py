"""The file's layout: breaks when a byte of the state is written twice or not at all, when torch or
unzip cannot read the file, or when its CRCs are not those of its bytes."""

from __future__ import annotations

import itertools
import pickle
import random
import zipfile
import zlib
from pathlib import Path

import pytest
import torch

from ciranda.torch.checkpoints.layout import ALIGNMENT, Layout, Piece, crc32_of_both


def test_the_crc_of_two_pieces_is_that_of_both() -> None:
    generator = random.Random(5)
    for first, second in [(0, 0), (0, 7), (7, 0), (1, 1), (1000, 3), (3, 70_000)]:
        a, b = generator.randbytes(first), generator.randbytes(second)
        assert crc32_of_both(zlib.crc32(a), zlib.crc32(b), second) == zlib.crc32(a + b)


@pytest.mark.parametrize("sizes", [[], [0], [5], [7, 0, 64, 1], [1] * 40, [1 << 33, 3]])
@pytest.mark.parametrize("own", [0, 1, 3])
def test_shares_cover_each_byte_once(sizes: list[int], own: int) -> None:
    layout = Layout(sizes, own)
    for ranks in (1, 2, 3, 7):
        shares = layout.shares(ranks)
        assert len(shares) == ranks and shares[0][0] == 0 and shares[-1][1] == layout.total
        assert all(left[1] == right[0] for left, right in itertools.pairwise(shares))
        assert shares[0][1] >= sum(sizes[:own])  # what only rank 0 has
        widths = [end - begin for begin, end in shares[1:]]
        assert not widths or max(widths) - min(widths) <= 1
        pieces = [piece for share in shares for piece in layout.pieces(*share)]
        layout.crcs((piece, 0) for piece in pieces)  # raises unless they cover everything
        assert sum(piece.size for piece in pieces) == layout.total == sum(sizes)


def test_shares_are_equal_if_rank_0_has_not_more_of_its_own() -> None:
    assert Layout([10, 990], own=1).shares(4) == [(0, 250), (250, 500), (500, 750), (750, 1000)]
    assert Layout([400, 600], own=1).shares(4) == [(0, 400), (400, 600), (600, 800), (800, 1000)]


def test_missing_and_overlapping_pieces_are_noticed() -> None:
    layout = Layout([10, 4])
    whole = [Piece(0, 0, 6), Piece(0, 6, 4), Piece(1, 0, 4)]
    layout.crcs((piece, 0) for piece in whole)
    for broken in (whole[:2], whole[1:], [*whole, whole[0]], [whole[0], whole[2]]):
        with pytest.raises(ValueError, match="has no byte"):
            layout.crcs((piece, 0) for piece in broken)


def written(path: Path, sizes: list[int], content: bytes) -> Layout:
    """Writes a file whose tensors are holes."""
    layout = Layout(sizes)
    crcs = [0] * len(sizes)
    known = [("data.pkl", content, zlib.crc32(content)), ("version", b"3\n", zlib.crc32(b"3\n"))]
    with path.open("wb") as file:
        for at, header in layout.headers(crcs):
            file.seek(at)
            file.write(header)
        file.seek(layout.end)
        file.write(layout.tail(crcs, known))
    return layout


def test_tensors_behind_4_gib_are_found(tmp_path: Path) -> None:
    """The file is sparse."""
    sizes = [5 << 30, 12, 3]
    layout = written(tmp_path / "large.pt", sizes, pickle.dumps({}, 2))
    with zipfile.ZipFile(tmp_path / "large.pt") as archive:
        found = [entry.file_size for entry in archive.infolist()[:3]]
        assert found == sizes
    reader = torch._C.PyTorchFileReader(str(tmp_path / "large.pt"))
    for number, record in enumerate(layout.records):
        assert record.data_at % ALIGNMENT == 0
        assert reader.get_record_offset(f"data/{number}") == record.data_at


def test_more_records_than_16_bits_count(tmp_path: Path) -> None:
    sizes = [1] * 66_000
    written(tmp_path / "many.pt", sizes, pickle.dumps({}, 2))
    with zipfile.ZipFile(tmp_path / "many.pt") as archive:
        assert len(archive.infolist()) == 66_002
