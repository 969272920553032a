"""From the bytes of an image file to pixels, and from pixels to a network's square.

Files are told by content, not by name, and only the formats of FORMATS are opened. What becomes of them:
  - the first frame, turned upright as EXIF says;
  - grey and black-and-white files have one value for all channels; colours become grey by ITU-R 601-2 luma;
  - what is transparent stands on white (RGBA, grey with alpha, palettes and colours marked transparent);
  - CMYK becomes RGB by Pillow's formula; colour profiles are not applied;
  - of 16 bits the upper 8 count, for grey as for colours. Files of 32-bit integers or floats are refused: nothing in
    them says which value is white.
A file that breaks off, or that declares more than MAX_PIXELS pixels, is refused; the latter before it is decoded.

Resizing is Pillow's BILINEAR: triangles as wide as the reduction (antialiased), in two passes with 8-bit values
between them. Results depend on the bytes and on Pillow's version alone.
"""

import contextlib
import io
import logging
import warnings

import numpy as np
from PIL import ExifTags, Image

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")
# Pillow's own limit, where it warns of a "decompression bomb": a quarter of a GiB in RGB.
MAX_PIXELS = 89_478_485
_TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Pillow speaks of damaged metadata, which do no harm, and of what is raised here as an error.
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").setLevel(logging.CRITICAL)


class ImageError(ValueError):
    """Why some bytes are no image that can be read; the text goes after a file's name and a colon."""


def decode(data: bytes, channels: int) -> np.ndarray:
    """Decode an image file.

    Args:
      data: the file's bytes.
      channels: 1 for grey, 3 for RGB.

    Returns:
      uint8 [height, width, channels].

    Raises:
      ImageError: it is no image, is damaged, or has too many pixels.
    """
    return to_array(load(data, channels))


def load(data: bytes, channels: int) -> Image.Image:
    """As `decode`, but a Pillow image of mode "L" or "RGB", which the functions below take as well."""
    with _opened(data) as image:
        image.load()
        return _on_white(_upright(image)).convert("L" if channels == 1 else "RGB")


def inspect(data: bytes) -> tuple[int, int, int]:
    """Read an image file to its end without making its pixels, which for JPEG takes a fraction of the time.

    Returns:
      the width and height that `decode` gives, and 1 where the file is grey, else 3.

    Raises:
      ImageError: as `decode` does.
    """
    with _opened(data) as image:
        width, height = image.size
        image.draft(None, (1, 1))  # JPEG: an eighth of each side, yet every byte is read
        image.load()
        turned = image.size == (height, width)  # TIFF turns itself when it is loaded
        if turned or _orientation(image) >= 5:
            width, height = height, width
        _check_mode(image)
    return width, height, 1 if image.mode in ("1", "L", "LA", "La") or image.mode.startswith("I;16") else 3


@contextlib.contextmanager
def _opened(data: bytes):
    """The image in some bytes, of whose file only the header is read; whatever goes wrong is an ImageError."""
    if not data:
        raise ImageError("an empty file")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise Image.DecompressionBombError
            yield image
    except ImageError:
        raise
    except Image.DecompressionBombError:
        raise ImageError(f"declares more than {MAX_PIXELS:,} pixels") from None
    except Image.UnidentifiedImageError:
        raise ImageError(f"not an image by its content ({', '.join(FORMATS)} can be read)") from None
    except Exception as error:  # Pillow's parsers raise nearly anything on damaged files
        raise ImageError(f"a damaged image ({' '.join(str(error).split()) or type(error).__name__})") from None


def _check_mode(image: Image.Image) -> None:
    if image.mode in ("I", "F"):
        raise ImageError("32 bits a pixel; 8 or 16 are needed, in which white has a known value")


def _orientation(image: Image.Image) -> int:
    """How EXIF says that the image is turned, from 1 (upright) to 8."""
    try:
        found = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # Pillow's parsers raise nearly anything; the pixels are sound
        return 1
    return found if found in _TRANSPOSITIONS else 1


def _upright(image: Image.Image) -> Image.Image:
    """The loaded image turned as EXIF says."""
    orientation = _orientation(image)
    if orientation == 1:
        return image
    turned = image.transpose(_TRANSPOSITIONS[orientation])
    turned.info = image.info  # a transparent colour, say
    return turned


def _on_white(image: Image.Image) -> Image.Image:
    """The image with 8 bits a channel and nothing transparent."""
    if image.mode.startswith("I;16"):
        values = np.asarray(image)
        upper = (values >> 8).astype(np.uint8)
        if "transparency" in image.info:
            upper[values == image.info["transparency"]] = 255
        return Image.fromarray(upper)
    _check_mode(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image)
    return image


def to_array(image: Image.Image | np.ndarray) -> np.ndarray:
    """uint8 [height, width, channels] of an image of mode "L" or "RGB"."""
    values = np.asarray(image)
    return values[:, :, np.newaxis] if values.ndim == 2 else values


def to_image(image: Image.Image | np.ndarray) -> Image.Image:
    """A Pillow image of mode "L" or "RGB" of uint8 [height, width, channels]."""
    if isinstance(image, Image.Image):
        return image
    return Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)


def resize_and_crop(image: Image.Image | np.ndarray, size: int | tuple[int, int]) -> np.ndarray:
    """The middle of an image, resized in proportion until it just covers `size`, and cut to it.

    Args:
      image: uint8 [height, width, channels], or from `load`.
      size: in pixels, of a square, or height and width.

    Returns:
      uint8 [height, width, channels].
    """
    image = to_image(image)
    height, width = (size, size) if isinstance(size, int) else size
    scale = min(image.width / width, image.height / height)
    left, top = (image.width - scale * width) / 2, (image.height - scale * height) / 2
    return crop_and_resize(image, (left, top, image.width - left, image.height - top), size)


def crop_and_resize(
    image: Image.Image | np.ndarray, box: tuple[float, float, float, float], size: int | tuple[int, int]
) -> np.ndarray:
    """A part of an image, resized.

    Only what the box needs is computed, however long the image. At its edges the pixels beside it count too, as if
    the whole image had been resized and then cut.

    Args:
      image: uint8 [height, width, channels], or from `load`.
      box: left, top, right, bottom in pixels, fractions allowed, inside the image.
      size: in pixels, of a square, or height and width.

    Returns:
      uint8 [height, width, channels].
    """
    height, width = (size, size) if isinstance(size, int) else size
    return to_array(to_image(image).resize((width, height), Image.Resampling.BILINEAR, box=box))
