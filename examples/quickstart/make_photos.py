"""Makes about 2,000 JPEG crops in 10 classes from photographs that ship with two Python packages.

Run: ``python -m examples.quickstart.make_photos [ROOT]``. Nothing is downloaded. The same bytes
come out on every run: each crop is drawn from a generator keyed by its class and number.
"""

from __future__ import annotations

import sys
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 500, 375
QUALITY = 85
PER_CLASS = 200
#: Class to the package and file of its photograph; all of them lie in the wheels.
SOURCES: dict[str, tuple[str, str]] = {
    "astronaut": ("skimage.data", "astronaut.png"),
    "cat": ("skimage.data", "chelsea.png"),
    "coffee": ("skimage.data", "coffee.png"),
    "flower": ("sklearn.datasets", "images/flower.jpg"),
    "galaxies": ("skimage.data", "hubble_deep_field.jpg"),
    "motorcycle": ("skimage.data", "motorcycle_left.png"),
    "retina": ("skimage.data", "retina.jpg"),
    "rocket": ("skimage.data", "rocket.jpg"),
    "temple": ("sklearn.datasets", "images/china.jpg"),
    "tissue": ("skimage.data", "ihc.png"),
}
_SEED = 2
_COMPLETE = ".complete"


def make(root: Path, per_class: int = PER_CLASS) -> int:
    """Writes the crops to ``root/<class>/<number>.jpg`` unless they are there; returns how many."""
    marker = root / _COMPLETE
    wanted = f"{per_class}"
    if not (marker.exists() and marker.read_text() == wanted):
        for number, name in enumerate(SOURCES):
            _make_class(root / name, _open(name), number, per_class)
        marker.write_text(wanted)
    return per_class * len(SOURCES)


def _make_class(folder: Path, photograph: Image.Image, number: int, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        rng = np.random.Generator(np.random.Philox([_SEED, number << 32 | index]))
        crop(photograph, rng).save(folder / f"{index:04}.jpg", quality=QUALITY)


def crop(photograph: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A 4:3 part of the photograph, 60 to 100 % of what fits, mirrored or not, at 500x375."""
    fits = min(photograph.width / WIDTH, photograph.height / HEIGHT)
    scale = fits * rng.uniform(0.6, 1.0)
    width, height = int(WIDTH * scale), int(HEIGHT * scale)
    left = int(rng.integers(photograph.width - width + 1))
    top = int(rng.integers(photograph.height - height + 1))
    part = photograph.resize(
        (WIDTH, HEIGHT), Image.Resampling.BICUBIC, (left, top, left + width, top + height)
    )
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else part


def _open(name: str) -> Image.Image:
    package, file = SOURCES[name]
    with as_file(files(package).joinpath(file)) as path:
        return Image.open(path).convert("RGB")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo/photos")
    print(f"{make(target)} photographs of {WIDTH}x{HEIGHT} in {target}")
