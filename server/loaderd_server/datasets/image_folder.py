"""A folder of classes of images, laid out and numbered as torchvision's ``ImageFolder``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loaderd_server.datasets import readahead
from loaderd_server.datasets.images import ImageError, Pixels, decode
from loaderd_server.datasets.statting import digest, stat_of

#: More files than this are not all looked at for a fingerprint: a look takes 2 us on a local disk.
MOST_STATS = 1_000_000
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class ImageFolder:
    """Images at ``root/<class>/**/<name>.<extension>``; sample = (image, class index).

    The image is uint8 RGB of shape (height, width, 3), upright by its EXIF orientation (see
    docs/datasets.md for what becomes of other kinds); the class index is an int. Classes are the
    sorted names of root's folders, samples go class by class, then by folder and name.

    ``min_side``: lets a JPEG be decoded at 1/2, 1/4 or 1/8 as long as its short side keeps at least
    so many pixels; much faster for large photographs that are resized anyway. ``short_side``: an
    image with a longer short side is resized to this one, whatever its format. ``extensions``:
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
        short_side: int | None = None,
        extensions: Iterable[str] = EXTENSIONS,
        allow_empty: bool = False,
    ) -> None:
        for name, side in (("min_side", min_side), ("short_side", short_side)):
            if side is not None and side < 1:
                raise ValueError(f"{name} is {side}; it is 1 or more pixels, or None")
        if short_side is not None:
            # Imported before the workers are forked, so that they share it.
            from loaderd_server.datasets import shrinking  # noqa: F401
        self.root = Path(root)
        self.min_side = min_side
        self.short_side = short_side
        self.extensions = tuple(extension.lower() for extension in extensions)
        self.classes = _classes(self.root)
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        self._index(allow_empty)

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        return self._sample(index, self._read(index))

    def load_encoded(self, index: int) -> Pixels:
        """The file of a sample as it is: uint8 of shape (bytes,), read-only."""
        return np.frombuffer(self._read(index), np.uint8)

    def decode(self, index: int, encoded: Pixels | bytes) -> tuple[Pixels, int]:
        """The sample that ``load_encoded`` gave the file of: the same as ``dataset[index]``."""
        return self._sample(index, bytes(encoded))

    def fingerprint(self) -> str:
        """Changes when a file is added, removed, renamed or written: a digest of names and stats.

        All names count; of more than a million files, the stats of a million, evenly spread.
        """
        count = len(self)
        looked_at = range(0, count, -(-count // MOST_STATS)) if count else ()
        names = [os.fsencode(self.root.resolve()), self._names, self._bounds.tobytes()]
        return digest(names, (stat_of(self._path(index)) for index in looked_at))

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Has the kernel read these samples' files ahead, within the bounds of ``readahead``."""
        count = len(self)
        readahead.files(self._path(index) for index in indices.tolist() if 0 <= index < count)

    @property
    def targets(self) -> npt.NDArray[np.int64]:
        """The class index of every sample, for weighted samplers."""
        return self._targets

    def path(self, index: int) -> Path:
        """Where a sample's file is."""
        return Path(os.fsdecode(self._path(index)))

    def _read(self, index: int) -> bytes:
        with open(self._path(index), "rb", buffering=0) as file:
            return file.readall()

    def _sample(self, index: int, data: bytes) -> tuple[Pixels, int]:
        try:
            image = decode(data, self.min_side, self.short_side)
        except ImageError as error:
            path = os.fsdecode(self._path(index))
            raise ImageError(f"{path}: {error}") from error.__cause__
        return image, int(self._targets[index])

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
