"""Encoded bytes to RGB pixels: a fast path for the usual JPEG, Pillow for everything else.

Why these decoders, and what becomes of every kind of image: docs/datasets.md.
"""

from __future__ import annotations

import io
import struct
import warnings

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, UnidentifiedImageError

Pixels = npt.NDArray[np.uint8]
#: A larger image is refused unread: a header of a few bytes can ask for 12 GB.
MAX_PIXELS = 178_956_970
_JPEG = b"\xff\xd8\xff"
_EXIF = b"Exif\x00\x00"
_APP1, _START_OF_SCAN = 0xE1, 0xDA
_FAST_SPACES = ("YCbCr", "RGB", "Gray")
#: Pillow's names for a single channel of 16 bits.
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (_JPEG, "a JPEG"),
    (b"\x89PNG\r\n\x1a\n", "a PNG"),
    (b"GIF8", "a GIF"),
    (b"BM", "a BMP"),
    (b"RIFF", "a RIFF file (WebP?)"),
    (b"II*\x00", "a TIFF"),
    (b"MM\x00*", "a TIFF"),
    (b"\x1f\x8b", "gzip data"),
    (b"PK\x03\x04", "a zip archive"),
    (b"%PDF", "a PDF"),
    (b"version https://git-lfs", "a Git LFS pointer: run `git lfs pull`"),
)


class ImageError(ValueError):
    """Bytes that are no image which can be decoded; the text says what they are."""


def decode(data: bytes, min_side: int | None = None, short_side: int | None = None) -> Pixels:
    """The image in ``data`` as uint8 RGB of shape (height, width, 3), upright.

    ``min_side``: a JPEG may come out smaller by 2, 4 or 8, as long as its short side keeps at
    least so many pixels; other formats keep their size. ``short_side``: what is larger is resized
    until its short side has so many pixels.

    Raises: ImageError.
    """
    if short_side is None:
        return _decode(data, min_side)
    # cv2 costs a process 16 MiB: it is for those who bound their images.
    from loaderd_server.datasets.shrinking import with_short_side_within

    return with_short_side_within(_decode(data, max(min_side or 0, short_side)), short_side)


def _decode(data: bytes, min_side: int | None) -> Pixels:
    if data.startswith(_JPEG):
        pixels = _decode_usual_jpeg(data, min_side)
        if pixels is not None:
            return pixels
    return _decode_by_pillow(data)


def _decode_usual_jpeg(data: bytes, min_side: int | None) -> Pixels | None:
    """None for what needs Pillow's care, damaged files among it: its verdict is the error's text."""
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        if space not in _FAST_SPACES or height * width > MAX_PIXELS:
            return None
        factor = 1 if min_side is None else shrink_factor(min(height, width), min_side)
        if factor == 1:
            pixels: Pixels = simplejpeg.decode_jpeg(data)
        else:
            pixels = simplejpeg.decode_jpeg(
                data,
                min_height=-(-height // factor),
                min_width=-(-width // factor),
                min_factor=factor,
            )
    except ValueError:
        return None
    orientation = exif_orientation(data)
    return pixels if orientation == 1 else upright(pixels, orientation)


def shrink_factor(short_side: int, min_side: int) -> int:
    """The largest of 8, 4, 2, 1 that leaves a short side of at least ``min_side`` pixels."""
    return next((factor for factor in (8, 4, 2) if -(-short_side // factor) >= min_side), 1)


def exif_orientation(data: bytes) -> int:
    """The orientation (1 to 8) that a JPEG's EXIF block gives, 1 where there is none."""
    block = _exif_block(data)
    try:
        order = {b"II": "<", b"MM": ">"}[block[:2]]
        (directory,) = struct.unpack_from(order + "I", block, 4)
        (count,) = struct.unpack_from(order + "H", block, directory)
        for entry in range(directory + 2, directory + 2 + 12 * count, 12):
            tag, _kind, _count, value = struct.unpack_from(order + "HHIH", block, entry)
            if tag == 0x0112:
                return value if 1 <= value <= 8 else 1
    except (KeyError, struct.error):
        pass  # no EXIF block, or a damaged one, which says nothing
    return 1


def _exif_block(data: bytes) -> bytes:
    """The TIFF structure of the first EXIF segment before the scan, or nothing.

    Going from segment to segment takes 2 us; a search through the file takes 20.
    """
    at, end = 2, len(data) - 10
    while at < end and data[at] == 0xFF and data[at + 1] != _START_OF_SCAN:
        size = data[at + 2] << 8 | data[at + 3]
        if data[at + 1] == _APP1 and data.startswith(_EXIF, at + 4):
            return data[at + 4 + len(_EXIF) : at + 2 + size]
        at += 2 + size
    return b""


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """Pixels stored in an EXIF orientation (1 to 8), as they are to be seen."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def _decode_by_pillow(data: bytes) -> Pixels:
    try:
        with warnings.catch_warnings():
            # What Pillow warns of (many pixels, odd EXIF) is either decided here or harmless.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                _check_size(image)
                return upright(_rgb(image), image.getexif().get(0x0112, 1))
    except UnidentifiedImageError:
        raise ImageError(f"not an image: {describe(data)}") from None
    except ImageError:
        raise
    except Exception as error:
        # Pillow's readers raise OSError, SyntaxError, struct.error and more on damaged files.
        raise ImageError(f"cannot be decoded: {error}; found {describe(data)}") from error


def _check_size(image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise ImageError(
            f"{image.width}x{image.height} pixels; images of more than {MAX_PIXELS} are refused"
        )


def _rgb(image: Image.Image) -> Pixels:
    """8 bits a channel: of 16 the high ones are kept; transparency is dropped, colours stay."""
    if image.mode in _SIXTEEN_BITS or image.mode == "I":
        return _gray(np.asarray(image))
    if image.mode == "F":
        raise ImageError("an image of floating-point pixels, whose range is not known")
    if image.mode == "P":
        # By way of RGBA, as a palette with transparency has no direct way to RGB.
        image = image.convert("RGBA")
    return np.asarray(image.convert("RGB"))


def _gray(values: npt.NDArray[np.generic]) -> Pixels:
    high = (np.clip(values.astype(np.int64), 0, 65535) >> 8).astype(np.uint8)
    return np.repeat(high[:, :, None], 3, axis=2)


def describe(data: bytes) -> str:
    """What the bytes of a file look like, for an error's text."""
    if not data:
        return "an empty file (0 bytes)"
    for signature, name in _SIGNATURES:
        if data.startswith(signature):
            return f"{name} of {len(data)} bytes"
    start = data[:32]
    kind = "text" if start.isascii() and b"\x00" not in start else "unknown data"
    return f"{kind} of {len(data)} bytes that begins with {start!r}"
