"""A folder of classes of images, laid out and numbered as torchvision's ``ImageFolder``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loaderd_server.datasets.images import ImageError, Pixels, decode

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class ImageFolder:
    """Images at ``root/<class>/**/<name>.<extension>``; sample = (image, class index).

    The image is uint8 RGB of shape (height, width, 3), upright by its EXIF orientation (see
    docs/datasets.md for what becomes of other kinds); the class index is an int. Classes are the
    sorted names of root's folders, samples go class by class, then by folder and name.

    ``min_side``: lets a JPEG be decoded at 1/2, 1/4 or 1/8 as long as its short side keeps at least
    so many pixels; much faster for large photographs that are resized anyway. ``extensions``:
    which names are images, case ignored. ``allow_empty``: a class may have no image.

    Raises: FileNotFoundError, NotADirectoryError, ValueError. An image that cannot be decoded is
    an ImageError of that sample, with its path.
    """

    #: No global random generator is drawn from, so none needs to be seeded for a sample.
    uses_only_given_rng = True
    #: ``dataset[i]`` is always the same, so it may be kept.
    cacheable = True

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        min_side: int | None = None,
        extensions: Iterable[str] = EXTENSIONS,
        allow_empty: bool = False,
    ) -> None:
        if min_side is not None and min_side < 1:
            raise ValueError(f"min_side is {min_side}; it is 1 or more pixels, or None")
        self.root = Path(root)
        self.min_side = min_side
        self.extensions = tuple(extension.lower() for extension in extensions)
        self.classes = _classes(self.root)
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        self._index(allow_empty)

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        path = self._path(index)
        with open(path, "rb", buffering=0) as file:
            data = file.readall()
        try:
            return decode(data, self.min_side), int(self._targets[index])
        except ImageError as error:
            raise ImageError(f"{os.fsdecode(path)}: {error}") from error.__cause__

    @property
    def targets(self) -> npt.NDArray[np.int64]:
        """The class index of every sample, for weighted samplers."""
        return self._targets

    def path(self, index: int) -> Path:
        """Where a sample's file is."""
        return Path(os.fsdecode(self._path(index)))

    def _path(self, index: int) -> bytes:
        count = len(self._targets)
        if not -count <= index < count:
            raise IndexError(f"index {index} of a dataset of {count} images in {self.root}")
        at = index % count
        return self._prefix + self._names[self._bounds[at] : self._bounds[at + 1]]

    def _index(self, allow_empty: bool) -> None:
        """Paths as one bytes object and their bounds in it.

        A list of str would be copied page by page into every forked worker, as reading an element
        changes its reference count.
        """
        names: list[bytes] = []
        targets: list[int] = []
        empty: list[str] = []
        for target, name in enumerate(self.classes):
            found = [os.fsencode(path) for path in self._files(name)]
            names += found
            targets += [target] * len(found)
            if not found:
                empty.append(name)
        if empty and not allow_empty:
            raise FileNotFoundError(
                f"no image in {len(empty)} of {len(self.classes)} classes of {str(self.root)!r}: "
                f"{', '.join(empty[:5])}{', ...' if len(empty) > 5 else ''}. Looked for "
                f"{', '.join(self.extensions)}; remove the folders, pass extensions, or "
                f"allow_empty: true."
            )
        self._prefix = os.fsencode(self.root) + b"/"
        self._names = b"".join(names)
        lengths = np.fromiter((len(name) for name in names), np.int64, len(names))
        self._bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        self._targets = np.array(targets, np.int64)

    def _files(self, class_name: str) -> Iterator[str]:
        """Paths below root of a class's images, in torchvision's order."""
        for folder, _, files in sorted(os.walk(self.root / class_name, followlinks=True)):
            inside = os.path.relpath(folder, self.root)
            for file in sorted(files):
                if file.lower().endswith(self.extensions):
                    yield f"{inside}/{file}"


def _classes(root: Path) -> list[str]:
    if not root.exists():
        raise FileNotFoundError(
            f"there is no folder {str(root)!r} (looked for from {os.getcwd()!r}); correct `root`, "
            f"which is best given as an absolute path"
        )
    if not root.is_dir():
        raise NotADirectoryError(
            f"{str(root)!r} is a file; `root` is a folder with a folder a class"
        )
    with os.scandir(root) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    if not names:
        raise FileNotFoundError(
            f"no class folder in {str(root)!r}; put each class's images in a folder of its own: "
            f"{root}/<class>/<name>.jpg"
        )
    return names
