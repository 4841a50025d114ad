"""Every kind of image becomes upright uint8 RGB, or an error that says what was found."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from loaderd_server.datasets import images
from loaderd_server.datasets.images import ImageError, decode, exif_orientation, shrink_factor


def picture(height: int = 40, width: int = 60) -> np.ndarray:
    """Smooth colours that tell every corner apart."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 // width, y * 255 // height, 255 - x * 255 // width], 2).astype("u1")


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def jpeg(image: Image.Image | None = None, **options: object) -> bytes:
    return encoded(image or Image.fromarray(picture()), "JPEG", **options)


def with_orientation(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return jpeg(exif=exif)


def by_pillow(data: bytes) -> np.ndarray:
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


@pytest.mark.parametrize(
    "data",
    [
        jpeg(),
        jpeg(quality=30),
        jpeg(progressive=True),
        jpeg(subsampling=0),
        jpeg(Image.fromarray(picture()).convert("L")),
        jpeg(Image.fromarray(picture()).convert("CMYK")),
        encoded(Image.fromarray(picture()), "PNG"),
        encoded(Image.fromarray(picture()), "WEBP", lossless=True),
        encoded(Image.fromarray(picture()), "BMP"),
        encoded(Image.fromarray(picture()), "TIFF"),
        encoded(Image.fromarray(picture()).convert("1"), "PNG"),
        encoded(Image.fromarray(picture()).quantize(16), "PNG"),
    ],
    ids=[
        "jpeg", "low", "progressive", "4:4:4", "gray", "cmyk", "png", "webp", "bmp", "tiff",
        "bits", "palette",
    ],
)  # fmt: skip
def test_pixels_equal_pillows(data: bytes) -> None:
    pixels = decode(data)
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    np.testing.assert_array_equal(pixels, by_pillow(data))


def test_the_usual_jpeg_never_reaches_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_data: bytes) -> np.ndarray:
        raise AssertionError("Pillow was asked")

    monkeypatch.setattr(images, "_decode_by_pillow", refuse)
    assert decode(jpeg()).shape == (40, 60, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_jpeg_comes_out_upright(orientation: int) -> None:
    data = with_orientation(orientation)
    assert exif_orientation(data) == orientation
    np.testing.assert_array_equal(decode(data), by_pillow(data))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_png_comes_out_upright(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(picture()), "PNG", exif=exif)
    np.testing.assert_array_equal(decode(data), by_pillow(data))


def test_big_endian_exif_is_read_and_a_damaged_one_says_nothing() -> None:
    def block(tiff: bytes) -> bytes:
        body = b"Exif\x00\x00" + tiff
        return b"\xff\xd8\xff\xe1" + struct.pack(">H", len(body) + 2) + body

    entry = struct.pack(">HHIHH", 0x0112, 3, 1, 6, 0)
    assert exif_orientation(block(b"MM\x00*" + struct.pack(">IH", 8, 1) + entry)) == 6
    assert exif_orientation(block(b"MM\x00*" + struct.pack(">IH", 8, 9) + entry)) == 6
    for damaged in (b"", b"MM", b"XX\x00*\x00\x00\x00\x08", b"MM\x00*\xff\xff\xff\xff", b"II*\x00"):
        assert exif_orientation(block(damaged)) == 1


def test_sixteen_bits_keep_their_high_byte() -> None:
    values = (np.arange(24, dtype=np.uint16) * 2731).reshape(4, 6)
    pixels = decode(encoded(Image.fromarray(values), "PNG"))
    np.testing.assert_array_equal(pixels, np.repeat((values >> 8).astype("u1")[:, :, None], 3, 2))


def test_transparency_is_dropped_and_colours_stay() -> None:
    rgba = np.dstack([picture(), np.zeros((40, 60), np.uint8)])
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(rgba), "PNG")), picture())


def test_a_palette_with_transparency_keeps_its_colours() -> None:
    paletted = Image.fromarray(picture()).quantize(8)
    data = encoded(paletted, "PNG", transparency=bytes([0, 128] + [255] * 6))
    np.testing.assert_array_equal(decode(data), np.asarray(paletted.convert("RGB")))


def test_floating_point_pixels_are_refused() -> None:
    data = encoded(Image.fromarray(np.ones((3, 3), np.float32)), "TIFF")
    with pytest.raises(ImageError, match="floating-point"):
        decode(data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", r"not an image: an empty file \(0 bytes\)"),
        (b"hello, this is no photograph", "not an image: text of 28 bytes that begins with b'hel"),
        (b"\x00\x01\x02\x03" * 9, "not an image: unknown data of 36 bytes"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        (jpeg()[:400], "cannot be decoded: .*; found a JPEG of 400 bytes"),
        (jpeg()[:3], "a JPEG of 3 bytes"),
        (encoded(Image.fromarray(picture()), "PNG")[:90], "found a PNG of 90 bytes"),
    ],
    ids=["empty", "text", "binary", "lfs", "cut jpeg", "mark only", "cut png"],
)
def test_what_is_no_image_is_described(data: bytes, text: str) -> None:
    with pytest.raises(ImageError, match=text):
        decode(data)


def test_every_truncation_of_a_jpeg_is_an_error_or_its_pixels() -> None:
    data = jpeg()
    whole = decode(data)
    for length in range(0, len(data) - 2, 7):
        with pytest.raises(ImageError):
            decode(data[:length])
    np.testing.assert_array_equal(decode(data + b"\x00" * 10), whole)


def test_a_header_that_asks_for_too_many_pixels_is_refused_unread() -> None:
    data = bytearray(jpeg())
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 65000, 65000)
    with pytest.raises(ImageError, match="pixels"):
        decode(bytes(data))


@pytest.mark.parametrize(
    ("short", "least", "factor"),
    [(375, 224, 1), (448, 224, 2), (447, 224, 2), (446, 224, 1), (4000, 224, 8), (1000, 224, 4),
     (100, 224, 1), (8, 1, 8)],
)  # fmt: skip
def test_shrink_factors_keep_the_short_side(short: int, least: int, factor: int) -> None:
    assert shrink_factor(short, least) == factor
    assert factor == 1 or -(-short // factor) >= least


@pytest.mark.parametrize(("height", "width"), [(448, 600), (901, 1203), (2001, 450), (224, 224)])
def test_min_side_decodes_at_the_factor_by_dct(height: int, width: int) -> None:
    data = jpeg(Image.fromarray(picture(height, width)), quality=95)
    factor = shrink_factor(min(height, width), 224)
    pixels = decode(data, min_side=224)
    assert pixels.shape == (-(-height // factor), -(-width // factor), 3)
    assert min(pixels.shape[:2]) >= 224
    near = np.asarray(Image.fromarray(picture(height, width)).resize(pixels.shape[1::-1]))
    assert np.abs(pixels.astype(int) - near).mean() < 4


def test_min_side_holds_for_rotated_and_gray_jpegs_too() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    rotated = decode(jpeg(Image.fromarray(picture(500, 800)), exif=exif), min_side=200)
    assert rotated.shape == (400, 250, 3)
    gray = decode(jpeg(Image.fromarray(picture(500, 800)).convert("L")), min_side=200)
    assert gray.shape == (250, 400, 3)


def test_simplejpeg_agrees_with_pillow_bit_by_bit_on_noise() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (97, 131, 3), dtype=np.uint8)
    data = jpeg(Image.fromarray(noise), quality=85)
    np.testing.assert_array_equal(simplejpeg.decode_jpeg(data), by_pillow(data))
