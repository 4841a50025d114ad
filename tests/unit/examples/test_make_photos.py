"""The demo's photographs: the same bytes on every run, in ImageFolder's layout, from installed files."""

from __future__ import annotations

from pathlib import Path

from examples.quickstart.make_photos import SOURCES, make

from loaderd_server.datasets import ImageFolder


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.glob("*/*.jpg")}


def test_photographs_are_the_same_on_every_run(tmp_path: Path) -> None:
    assert make(tmp_path / "a", per_class=2) == 2 * len(SOURCES)
    make(tmp_path / "b", per_class=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert len(set(contents(tmp_path / "a").values())) == 2 * len(SOURCES)


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    make(tmp_path, per_class=1)
    (tmp_path / "cat" / "0000.jpg").write_bytes(b"kept")
    make(tmp_path, per_class=1)
    assert (tmp_path / "cat" / "0000.jpg").read_bytes() == b"kept"
    make(tmp_path, per_class=2)
    assert (tmp_path / "cat" / "0000.jpg").read_bytes() != b"kept"


def test_they_are_an_image_folder(tmp_path: Path) -> None:
    make(tmp_path, per_class=1)
    dataset = ImageFolder(tmp_path)
    assert dataset.classes == sorted(SOURCES)
    assert {dataset[i][0].shape for i in range(len(dataset))} == {(375, 500, 3)}
