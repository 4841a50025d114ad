"""torchvision's layout and order; an index that stays shared after a fork; errors with paths."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from loaderd_server.datasets import ImageError, ImageFolder, image_folder


def write(path: Path, shade: int = 7) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 9, 3), shade, np.uint8)).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for shade, name in enumerate(
        ["dog/b.png", "dog/a.png", "dog/A.PNG", "cat/z.png", "cat/deep/1.png", "cat/deep/0.jpg"]
    ):
        write(tmp_path / name, shade * 40)
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    (tmp_path / "README").write_text("no class")
    return tmp_path


def test_samples_lie_in_torchvisions_order(root: Path) -> None:
    dataset = ImageFolder(root)
    assert dataset.classes == ["cat", "dog"]
    assert dataset.class_to_idx == {"cat": 0, "dog": 1}
    assert [str(dataset.path(i).relative_to(root)) for i in range(len(dataset))] == [
        "cat/z.png", "cat/deep/0.jpg", "cat/deep/1.png", "dog/A.PNG", "dog/a.png", "dog/b.png",
    ]  # fmt: skip
    assert dataset.targets.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_sample_is_pixels_and_an_int(root: Path) -> None:
    image, target = ImageFolder(root)[5]
    assert image.shape == (8, 9, 3)
    assert image.dtype == np.uint8
    assert (image == 0).all()
    assert type(target) is int
    assert target == 1


def test_indices_count_from_the_end_and_have_bounds(root: Path) -> None:
    dataset = ImageFolder(root)
    assert dataset.path(-1) == dataset.path(5)
    assert dataset[-6][1] == 0
    for index in (6, -7):
        with pytest.raises(IndexError, match=f"index {index} of a dataset of 6 images"):
            dataset[index]


def test_the_index_holds_no_list_of_objects(root: Path) -> None:
    dataset = ImageFolder(root)
    assert isinstance(dataset._names, bytes)
    assert isinstance(dataset._bounds, np.ndarray)
    assert isinstance(dataset.targets, np.ndarray)


def test_names_that_are_no_utf8_and_links_are_found(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "x.png")
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "b").symlink_to(tmp_path / "elsewhere")
    os.rename(tmp_path / "elsewhere" / "x.png", os.fsencode(root / "a") + b"/\xff.png")
    write(tmp_path / "elsewhere" / "y.png")
    dataset = ImageFolder(root)
    assert [dataset[i][1] for i in range(2)] == [0, 1]


def test_extensions_choose(root: Path) -> None:
    assert len(ImageFolder(root, extensions=[".JPG"], allow_empty=True)) == 1


def test_it_travels_to_a_spawned_process(root: Path) -> None:
    again = pickle.loads(pickle.dumps(ImageFolder(root)))
    assert len(again) == 6
    assert again[1][0].shape == (8, 9, 3)


def test_a_missing_root_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no folder '.*nowhere'.*looked for from .*root"):
        ImageFolder(tmp_path / "nowhere")


def test_a_file_as_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file"):
        ImageFolder(tmp_path / "file")


def test_a_root_without_classes_says_how_to_lay_it_out(tmp_path: Path) -> None:
    write(tmp_path / "loose.png")
    with pytest.raises(FileNotFoundError, match=r"no class folder .*<class>/<name>\.jpg"):
        ImageFolder(tmp_path)


def test_empty_classes_are_named(root: Path) -> None:
    (root / "eel").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no image in 1 of 3 classes .*: eel\. Looked for"):
        ImageFolder(root)
    assert ImageFolder(root, allow_empty=True).classes == ["cat", "dog", "eel"]


def test_min_side_has_bounds(root: Path) -> None:
    with pytest.raises(ValueError, match="min_side is 0; it is 1 or more pixels"):
        ImageFolder(root, min_side=0)


def test_short_side_bounds_every_format_and_enlarges_none(tmp_path: Path) -> None:
    shapes = {"a/0.jpg": (300, 400), "a/1.png": (200, 90), "a/2.png": (20, 30), "a/3.png": (1, 999)}
    for name, shape in shapes.items():
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.fromarray(np.full((*shape, 3), 90, np.uint8)).save(tmp_path / name)
    dataset = ImageFolder(tmp_path, short_side=60)
    assert [dataset[i][0].shape[:2] for i in range(4)] == [(60, 80), (133, 60), (20, 30), (1, 999)]
    assert all((abs(dataset[i][0].astype(int) - 90) <= 2).all() for i in range(4))


def test_short_side_has_bounds(root: Path) -> None:
    with pytest.raises(ValueError, match="short_side is 0; it is 1 or more pixels"):
        ImageFolder(root, short_side=0)


@pytest.mark.parametrize("short_side", [None, 4])
def test_a_sample_is_its_file_decoded(root: Path, short_side: int | None) -> None:
    dataset = ImageFolder(root, short_side=short_side)
    for index in range(len(dataset)):
        encoded = dataset.load_encoded(index)
        assert encoded.tobytes() == dataset.path(index).read_bytes()
        for form in (encoded, encoded.tobytes()):
            image, target = dataset.decode(index, form)
            np.testing.assert_array_equal(image, dataset[index][0])
            assert target == dataset[index][1]


def test_its_fingerprint_changes_with_the_files_alone(root: Path) -> None:
    first = ImageFolder(root).fingerprint()
    assert ImageFolder(root).fingerprint() == ImageFolder(root, min_side=4).fingerprint() == first
    seen = {first}

    def changed(what: str) -> None:
        assert ImageFolder(root).fingerprint() not in seen, what
        seen.add(ImageFolder(root).fingerprint())

    write(root / "dog" / "c.png")
    changed("a file more")
    (root / "dog" / "c.png").rename(root / "dog" / "d.png")
    changed("another name")
    os.utime(root / "dog" / "d.png", ns=(1, 1))
    changed("another time")
    (root / "dog" / "d.png").write_bytes(b"")
    os.utime(root / "dog" / "d.png", ns=(1, 1))
    changed("another size")
    (root / "cat").rename(root / "cow")
    changed("another class")


def test_a_file_that_vanished_changes_the_fingerprint_and_raises_nothing(root: Path) -> None:
    dataset = ImageFolder(root)
    first = dataset.fingerprint()
    (root / "cat" / "z.png").unlink()
    assert dataset.fingerprint() != first


def test_very_many_files_are_looked_at_evenly(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_folder, "MOST_STATS", 3)
    dataset = ImageFolder(root)
    first = dataset.fingerprint()
    os.utime(dataset.path(1), ns=(1, 1))
    assert dataset.fingerprint() == first
    os.utime(dataset.path(2), ns=(1, 1))
    assert dataset.fingerprint() != first


def test_a_hint_of_what_is_coming_never_raises(root: Path) -> None:
    dataset = ImageFolder(root)
    (root / "cat" / "z.png").unlink()
    dataset.will_need(np.arange(-3, 99))
    dataset.will_need(np.empty(0, np.int64))


@pytest.mark.parametrize(
    ("content", "found"),
    [(b"", "empty file"), (b"plain text", "text of 10 bytes"), (b"\xff\xd8\xff\xe0", "a JPEG")],
)
def test_a_bad_file_is_an_error_with_its_path(root: Path, content: bytes, found: str) -> None:
    (root / "cat" / "bad.jpg").write_bytes(content)
    dataset = ImageFolder(root)
    with pytest.raises(ImageError, match=f"cat/bad.jpg: .*{found}"):
        dataset[0]
    with pytest.raises(ImageError, match=f"cat/bad.jpg: .*{found}"):
        dataset.decode(0, dataset.load_encoded(0))


def test_a_file_that_vanished_is_an_error_with_its_path(root: Path) -> None:
    dataset = ImageFolder(root)
    (root / "cat" / "z.png").unlink()
    for load in (dataset.__getitem__, dataset.load_encoded):
        with pytest.raises(FileNotFoundError, match=r"cat/z\.png"):
            load(0)
