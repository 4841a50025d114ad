"""Decoders and transforms on one core: what the built-in datasets are made of, and why.

Run: ``python -m benchmarks.decoders``. Times are CPU seconds of this thread, the least of three runs.
"""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import cv2
import numpy as np
import simplejpeg
from benchmarks.sources import Transformed, photographs
from PIL import Image

from loaderd_server.datasets.images import decode

T = TypeVar("T")
_IMPORT = """
import os, time, numpy
def rss(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before, began = rss(), time.perf_counter()
import {module}
print(f"{{(time.perf_counter() - began) * 1e3:.0f}} ms, {{(rss() - before) / 2**20:.0f}} MiB")
"""


def _pillow(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def _opencv(data: bytes) -> Any:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


def _resize(interpolation: int, part: Any) -> Any:
    return cv2.resize(part, (224, 224), interpolation=interpolation)


def _large(data: bytes) -> bytes:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(data)).resize((1024, 768)).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def microseconds(work: Callable[[T], object], items: Sequence[T]) -> float:
    """The CPU time of one call, in us."""
    work(items[0])
    best = float("inf")
    for _ in range(3):
        began = time.thread_time()
        for item in items:
            work(item)
        best = min(best, time.thread_time() - began)
    return best / len(items) * 1e6


def _report(title: str, work: Callable[[T], object], items: Sequence[T]) -> None:
    took = microseconds(work, items)
    print(f"| {title} | {took:,.0f} | {1e6 / took:,.0f} |")


def main() -> None:
    """Prints a markdown table."""
    cv2.setNumThreads(1)
    root = photographs()
    small = [path.read_bytes() for path in sorted(root.glob("*/*.jpg"))[::10]]
    large = [_large(data) for data in small[::4]]
    print("| what | us | a second |\n| --- | --- | --- |")
    for size, files in (("500x375", small), ("1024x768", large)):
        _report(f"simplejpeg, {size}", simplejpeg.decode_jpeg, files)
        _report(f"opencv, {size}", _opencv, files)
        _report(f"Pillow, {size}", _pillow, files)
        _report(f"ImageFolder's decode, {size}", decode, files)
    _report("the same with min_side 224, 1024x768", lambda data: decode(data, 224), large)
    images = [decode(data) for data in small]
    parts = [image[50:300, 60:350] for image in images]
    for name in ("LINEAR", "AREA", "CUBIC"):
        title = f"opencv resize 290x250 to 224x224, {name.lower()}"
        _report(title, partial(_resize, getattr(cv2, f"INTER_{name}")), parts)
    _report(
        "Pillow resize of the same, bilinear",
        lambda image: Image.fromarray(image).resize((224, 224), 2, (60, 50, 350, 300)),
        images,
    )
    squares = [np.ascontiguousarray(image[:224, :224]) for image in images]
    into = np.empty_like(squares[0])
    _report("flip: view, copied into the batch", lambda x: np.copyto(into, x[:, ::-1]), squares)
    _report("flip: opencv, copied", lambda x: np.copyto(into, cv2.flip(x, 1)), squares)
    whole = Transformed(str(root))
    _report("read, decode, random crop, flip", whole.__getitem__, range(0, 2000, 10))
    same = sum(
        np.array_equal(simplejpeg.decode_jpeg(data), _pillow(data))
        and np.array_equal(_opencv(data), _pillow(data))
        for data in small
    )
    print(f"\nPixels equal in all three decoders: {same} of {len(small)} files.")
    for module in ("simplejpeg", "PIL.Image", "cv2"):
        command = [sys.executable, "-c", _IMPORT.format(module=module)]
        print(f"import {module}: {subprocess.check_output(command, text=True).strip()}")


if __name__ == "__main__":
    main()
