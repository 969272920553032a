import io
import struct
import zlib

import numpy as np
import pytest
from PIL import ExifTags, Image

from tftrain.data import decoding
from tftrain.data.decoding import ImageError

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def saved(image: Image.Image, file_format: str, **options) -> bytes:
    """The bytes of an image file."""
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def picture(height: int = 20, width: int = 30) -> Image.Image:
    """A smooth colourful image."""
    y, x = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([8 * x, 12 * y, 250 - 4 * x - 6 * y], 2).clip(0, 255).astype(np.uint8))


def png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    """A PNG written by hand; `colour` is its colour type."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("file_format", decoding.FORMATS)
def test_each_format_is_told_by_its_content(file_format):
    exact = file_format in ("PNG", "BMP", "TIFF")
    options = {"quality": 95} if file_format in ("JPEG", "WEBP") else {}
    found = decoding.decode(saved(picture(), file_format, **options), 3)
    assert found.dtype == np.uint8 and found.shape == (20, 30, 3)
    error = np.abs(found.astype(int) - np.asarray(picture()).astype(int))
    assert error.max() == 0 if exact else error.mean() < 10


@pytest.mark.parametrize(
    "image, options, expected",
    [
        (Image.new("L", (2, 2), 100), {}, (100, 100, 100)),
        (Image.new("1", (2, 2), 1), {}, WHITE),
        (Image.new("RGBA", (2, 2), (255, 0, 0, 255)), {}, RED),
        (Image.new("RGBA", (2, 2), (255, 0, 0, 0)), {}, WHITE),
        (Image.new("RGBA", (2, 2), (0, 0, 0, 51)), {}, (204, 204, 204)),  # 0.2 black on white
        (Image.new("LA", (2, 2), (0, 51)), {}, (204, 204, 204)),
        (Image.new("RGB", (2, 2), BLUE).quantize(4), {}, BLUE),
        (Image.new("RGB", (2, 2), BLUE).quantize(4), {"transparency": b"\x00" * 4}, WHITE),
        (Image.new("RGB", (2, 2), GREEN), {"transparency": GREEN}, WHITE),
        (Image.new("L", (2, 2), 7), {"transparency": 7}, WHITE),
        (Image.fromarray(np.full((2, 2), 0xABCD, np.uint16)), {}, (0xAB,) * 3),
    ],
)
def test_every_kind_of_pixel_becomes_rgb(image, options, expected):
    found = decoding.decode(saved(image, "PNG", **options), 3)
    np.testing.assert_array_equal(found, np.broadcast_to(np.uint8(expected), (2, 2, 3)))


def test_sixteen_bit_colours_keep_their_upper_bits_like_grey():
    rows = b"".join(b"\0" + struct.pack(">6H", 0xFF80, 0x0180, 0x0000, 0x1234, 0xABCD, 0x00FF) for _ in range(2))
    found = decoding.decode(png(2, 2, 16, 2, rows), 3)
    np.testing.assert_array_equal(found, [[[0xFF, 0x01, 0x00], [0x12, 0xAB, 0x00]]] * 2)


def test_cmyk_becomes_sensible_colours():
    for ink, expected in (((0, 255, 255, 0), RED), ((255, 0, 255, 0), GREEN), ((0, 0, 0, 0), WHITE)):
        found = decoding.decode(saved(Image.new("CMYK", (16, 16), ink), "JPEG", quality=95), 3)
        assert np.abs(found.astype(int) - expected).max() <= 3


def test_one_channel_is_luma_and_three_of_grey_are_equal():
    np.testing.assert_array_equal(decoding.decode(saved(Image.new("RGB", (2, 2), RED), "PNG"), 1), [[[76]] * 2] * 2)
    assert decoding.decode(saved(Image.new("L", (3, 2), 9), "BMP"), 3).tolist() == [[[9] * 3] * 3] * 2


def test_exif_orientation_turns_the_image_upright():
    upright = np.zeros((2, 3, 3), np.uint8)
    upright[0, 0], upright[0, 2], upright[1, 0] = RED, GREEN, BLUE
    # What a camera stores for each orientation, by its definition: which edge row 0 and column 0 are.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright.transpose(1, 0, 2)[::-1],
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: upright.transpose(1, 0, 2)[:, ::-1],
    }
    for orientation, pixels in stored.items():
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        for file_format in ("PNG", "TIFF"):
            data = saved(Image.fromarray(np.ascontiguousarray(pixels)), file_format, exif=exif)
            np.testing.assert_array_equal(decoding.decode(data, 3), upright, err_msg=f"{orientation} {file_format}")
            assert decoding.inspect(data) == (3, 2, 3), f"{orientation} {file_format}"


def test_illegible_exif_is_ignored():
    data = saved(picture(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert decoding.decode(data, 3).shape == (20, 30, 3)


def test_the_first_frame_counts():
    first, second = Image.new("RGB", (4, 4), RED), Image.new("RGB", (4, 4), BLUE)
    for file_format in ("GIF", "TIFF", "WEBP", "PNG"):
        options = {"lossless": True} if file_format == "WEBP" else {}
        data = saved(first, file_format, save_all=True, append_images=[second], **options)
        assert decoding.decode(data, 3)[0, 0].tolist() == list(RED), file_format


@pytest.mark.parametrize("file_format", decoding.FORMATS)
def test_a_truncated_file_is_refused_wherever_it_ends(file_format):
    data = saved(picture(), file_format)
    whole = decoding.decode(data, 3)
    for size in range(1, len(data), 41):
        try:
            found = decoding.decode(data[:size], 3)
        except ImageError:
            with pytest.raises(ImageError):
                decoding.inspect(data[:size])
            continue
        assert decoding.inspect(data[:size]) == (30, 20, 3)
        # All pixels are there; what lacks is a mark of the end.
        np.testing.assert_array_equal(found, whole)
        assert size > len(data) - 41


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"", "an empty file"),
        (b"not an image\n", r"not an image by its content \(JPEG, PNG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image by its content"),
        (saved(picture(), "PPM"), "not an image by its content"),
        (saved(picture(), "PNG")[:60], r"a damaged image \(image file is truncated\)"),
        (png(30_000, 30_000, 8, 0, b""), "declares more than 89,478,485 pixels"),
        (png(10_000, 10_000, 8, 0, b""), "declares more than 89,478,485 pixels"),
        (saved(Image.new("F", (2, 2), 0.5), "TIFF"), "32 bits a pixel"),
    ],
    ids=["empty", "text", "postscript", "other format", "truncated", "bomb", "large", "float"],
)
def test_what_is_no_image_is_refused_with_the_reason(data, expected):
    with pytest.raises(ImageError, match=expected):
        decoding.decode(data, 3)
    with pytest.raises(ImageError, match=expected):
        decoding.inspect(data)


def test_damaged_bytes_raise_nothing_else():
    generator = np.random.default_rng(0)
    for file_format in decoding.FORMATS[:5]:  # libtiff writes its complaints to standard error
        data = np.frombuffer(saved(picture(), file_format), np.uint8)
        for _ in range(30):
            damaged = data.copy()
            damaged[generator.integers(0, len(data), 8)] = generator.integers(0, 256, 8)
            try:
                decoding.decode(damaged.tobytes(), 3)
            except ImageError as error:
                assert "\n" not in str(error)


def triangle_weights(size: int, start: float, stop: float, count: int) -> np.ndarray:
    """The weights [count, size] of antialiased bilinear resizing of [start, stop) of `size` pixels."""
    scale = (stop - start) / count
    support = max(scale, 1.0)
    weights = np.zeros((count, size))
    for i in range(count):
        centre = start + (i + 0.5) * scale
        places = np.arange(max(0, int(centre - support + 0.5)), min(size, int(centre + support + 0.5)))
        row = np.maximum(0, 1 - np.abs((places + 0.5 - centre) / support))
        weights[i, places] = row / row.sum()
    return weights


@pytest.mark.parametrize("shape, size", [((20, 30, 3), 8), ((30, 20, 1), 8), ((5, 7, 3), 12), ((9, 9, 3), 9)])
def test_resizing_keeps_the_aspect_ratio_and_cuts_the_middle(shape, size):
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    height, width, channels = shape
    side = min(height, width)
    top, left = (height - side) / 2, (width - side) / 2
    down = triangle_weights(height, top, top + side, size)
    across = triangle_weights(width, left, left + side, size)
    expected = np.einsum("yh,hwc,xw->yxc", down, image.astype(float), across)
    found = decoding.resize_and_crop(image, size)
    assert found.dtype == np.uint8 and found.shape == (size, size, channels)
    assert np.abs(found - expected).max() <= 1  # rounded once in each pass


@pytest.mark.parametrize("mode, channels", [("1", 1), ("L", 1), ("LA", 1), ("P", 3), ("RGB", 3), ("RGBA", 3)])
def test_inspect_tells_size_and_grey_from_colour(mode, channels):
    assert decoding.inspect(saved(picture().convert(mode), "PNG")) == (30, 20, channels)


def test_inspect_tells_the_size_of_a_turned_jpeg():
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    assert decoding.inspect(saved(picture(200, 300), "JPEG", exif=exif)) == (200, 300, 3)
    assert decoding.inspect(saved(picture(4, 5), "JPEG")) == (5, 4, 3)


def test_a_thin_image_costs_no_memory():
    # Its shorter side resized in proportion would make it 64 x 3.8 million.
    assert decoding.resize_and_crop(np.zeros((1, 60_000, 3), np.uint8), 64).shape == (64, 64, 3)


def test_results_repeat():
    data = saved(picture(), "JPEG")
    assert all(np.array_equal(decoding.decode(data, 3), decoding.decode(data, 3)) for _ in range(3))
