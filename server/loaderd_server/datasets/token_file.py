"""A flat file of token ids, read as windows for language models."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loaderd_server.datasets import readahead
from loaderd_server.datasets.statting import digest, stat_of

Tokens = npt.NDArray[np.int64]
Window = tuple[Tokens, Tokens]
_DTYPES = ("uint16", "uint32")


class TokenFile:
    """Windows of a memory-mapped file of little-endian token ids; sample = (x, y).

    ``x`` holds ``window`` tokens from position ``index * stride`` on, ``y`` the same moved on by
    one: the targets of next-token prediction. Both are int64 of shape (window,), what
    ``torch.nn.Embedding`` and ``cross_entropy`` take, and share no memory. ``stride`` (tokens) defaults to ``window``:
    every token is a target once; what is left at the end and fills no window is not served.

    It says nothing of ``cacheable``, so no cache is made for it unless one is asked for: the file
    is mapped, and what was read of it is in the kernel's page cache already.

    Raises: FileNotFoundError, ValueError.
    """

    #: No global random generator is drawn from, so none needs to be seeded for a batch.
    uses_only_given_rng = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        window: int,
        dtype: str = "uint16",
        stride: int | None = None,
    ) -> None:
        if dtype not in _DTYPES:
            raise ValueError(f"dtype is {dtype!r}; it is one of {', '.join(_DTYPES)}")
        if window < 1:
            raise ValueError(f"window is {window}; it is 1 token or more")
        if stride is not None and stride < 1:
            raise ValueError(f"stride is {stride}; it is 1 token or more, or None for the window")
        self.path = Path(path)
        self.window = window
        self.dtype = dtype
        self.stride = window if stride is None else stride
        self._stat = stat_of(self.path)
        self._file = _map(self.path, np.dtype(dtype).newbyteorder("<"), window)
        tokens = np.frombuffer(self._file, np.dtype(dtype).newbyteorder("<"))
        windows = np.lib.stride_tricks.sliding_window_view(tokens, window + 1)
        #: Row i is window i with the target of its last token; a view on the file.
        self._windows = windows[:: self.stride]

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> Window:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} windows in {self.path}")
        row = self._windows[index]
        return row[:-1].astype(np.int64), row[1:].astype(np.int64)

    def __getitems__(self, indices: Sequence[int]) -> list[Window]:
        """The samples of a batch, gathered by one numpy call."""
        chosen = np.asarray(indices, np.int64)
        if chosen.size and not (-len(self) <= chosen.min() and chosen.max() < len(self)):
            wrong = next(index for index in indices if not -len(self) <= index < len(self))
            raise IndexError(f"index {wrong} of {len(self)} windows in {self.path}")
        rows = self._windows[chosen]
        x, y = rows[:, :-1].astype(np.int64), rows[:, 1:].astype(np.int64)
        return list(zip(x, y, strict=True))

    def fingerprint(self) -> str:
        """Changes when the file is written or replaced: a digest of path, size and time of change."""
        return digest([os.fsencode(self.path.resolve())], [self._stat])

    def will_need(self, indices: Tokens) -> None:
        """Has the kernel read these windows ahead: the ranges of the file, joined, within bounds."""
        chosen = np.sort(indices[(indices >= 0) & (indices < len(self))])
        token_bytes = np.dtype(self.dtype).itemsize
        starts = chosen * (self.stride * token_bytes)
        for start, end in readahead.merged(starts, starts + (self.window + 1) * token_bytes):
            page = start - start % mmap.PAGESIZE
            with contextlib.suppress(OSError):
                self._file.madvise(mmap.MADV_WILLNEED, page, end - page)

    def __reduce__(self) -> tuple[Callable[[], TokenFile], tuple[()]]:
        """Travels to a spawned process as its arguments; the file is mapped there anew."""
        again = partial(
            TokenFile, self.path, window=self.window, dtype=self.dtype, stride=self.stride
        )
        return again, ()


def _map(path: Path, dtype: np.dtype[np.unsignedinteger], window: int) -> mmap.mmap:
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {str(path)!r} (looked for from {os.getcwd()!r}); correct `path`, "
            f"which is best given as an absolute path"
        )
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise ValueError(
            f"{path} has {size} bytes, no whole number of {dtype.name} tokens "
            f"({dtype.itemsize} bytes each); is dtype right, and the file complete?"
        )
    tokens = size // dtype.itemsize
    if tokens < window + 1:
        raise ValueError(
            f"{path} has {tokens} {dtype.name} tokens; one window of {window} and its last target "
            f"need {window + 1}. Choose a smaller window, or another file."
        )
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
