"""Files that are no good images, served: case 24."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.support.serving import Daemon, serving

import loaderd

BAD = {
    "b_empty.jpg": b"",
    "c_text.jpg": b"this is no photograph",
}


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def picture() -> Image.Image:
    y, x = np.mgrid[0:32, 0:32]
    return Image.fromarray(np.stack([x * 8, y * 8, 255 - x * 8], 2).astype(np.uint8))


def good_files() -> dict[str, bytes]:
    """One of every kind, each 32x32 once it is upright."""
    rotated = Image.Exif()
    rotated[0x0112] = 6
    deep = Image.fromarray((np.arange(1024, dtype=np.uint16) * 64).reshape(32, 32))
    clear = picture().quantize(8)
    return {
        "d_cmyk.jpg": encoded(picture().convert("CMYK"), "JPEG"),
        "e_gray.jpg": encoded(picture().convert("L"), "JPEG"),
        "f_deep.png": encoded(deep, "PNG"),
        "g_palette.png": encoded(clear, "PNG", transparency=bytes([0] * 8)),
        "h_rotated.jpg": encoded(picture(), "JPEG", exif=rotated),
    }


def write(root: Path) -> list[str]:
    bad = {**BAD, "a_cut.jpg": encoded(picture(), "JPEG")[:-200]}
    files = {**bad, **good_files()}
    (root / "class").mkdir(parents=True)
    for name, content in files.items():
        (root / "class" / name).write_bytes(content)
    return sorted(files)


def config(root: Path, on_error: str) -> str:
    return f"""
workers: {{count: 1}}
datasets:
  images: {{target: "loaderd_server.datasets:ImageFolder", args: {{root: {root}}}}}
streams:
  train: {{dataset: images, batch_size: 1, sampler: sequential, on_error: {on_error}}}
"""


def pids(daemon: Daemon) -> set[int]:
    return {process.pid for process in daemon.workers()}


def test_case_24_a_bad_image_is_its_own_error_and_no_worker_dies(tmp_path: Path) -> None:
    names = write(tmp_path / "images")
    with (
        serving(config(tmp_path / "images", "raise"), tmp_path) as daemon,
        loaderd.connect("train", address=daemon.run_dir, timeout_s=30) as loader,
    ):
        batches = iter(loader)
        for name, found in zip(
            names[:3], ("a JPEG of", "an empty file", "text of 21 bytes"), strict=True
        ):
            with pytest.raises(Exception, match=rf"{name}: .*{found}") as error:
                next(batches)
            assert str(tmp_path / "images" / "class" / name) in str(error.value)
        workers = pids(daemon)
        shapes = [tuple(images.shape) for images, _ in batches]
        assert shapes == [(1, 32, 32, 3)] * 5
        assert pids(daemon) == workers


def test_case_24_bad_images_can_be_skipped_and_are_reported(tmp_path: Path) -> None:
    names = write(tmp_path / "images")
    with (
        serving(config(tmp_path / "images", "skip"), tmp_path) as daemon,
        loaderd.connect("train", address=daemon.run_dir, timeout_s=30) as loader,
    ):
        assert len(list(loader)) == 5
        assert [failed.index for failed in loader.failures] == [0, 1, 2]
        for failed, name in zip(loader.failures, names, strict=False):
            assert name in failed.text
