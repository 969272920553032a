"""Pictures of what a network sees and confuses, as the contents of PNG and SVG files of bounded size."""

import functools
import io
import logging
from collections.abc import Sequence

import numpy as np
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from tftrain.dashboards import shortened

DPI = 100
# The pictures of a grid, and the greatest side of each in pixels of the image itself.
GRID_IMAGES = 25
GRID_COLUMNS = 5
IMAGE_SIDE = 256
# With more classes than this a confusion matrix shows those with the most mistakes.
MATRIX_CLASSES = 40
# Up to so many classes the counts stand in the cells.
COUNTED_CLASSES = 20
# What draws the characters that matplotlib's own font lacks, where a system has it.
FALLBACK_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
)
CORRECT, WRONG = "#1b7837", "#b2182b"

logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)


def are_images(inputs) -> bool:
    """Whether a network's inputs are images that can be shown: [batch, height, width, 1 or 3 channels]."""
    return getattr(inputs, "ndim", 0) == 4 and inputs.shape[-1] in (1, 3)


def grid(images: np.ndarray, captions: Sequence[str], wrong: bool = False) -> bytes:
    """A PNG of the first GRID_IMAGES images, each above its caption.

    Args:
      images: [count, height, width, 1 or 3]; uint8, or floats, which are stretched to the range between the least and
        the greatest of each image.
      captions: one for each image; lines are cut to what fits.
      wrong: whether the captions tell mistakes.
    """
    count = min(len(images), GRID_IMAGES)
    rows = max(1, -(-count // GRID_COLUMNS))
    figure = _figure(1.9 * GRID_COLUMNS, 2.3 * rows)
    for place in range(count):
        axes = figure.add_subplot(rows, GRID_COLUMNS, place + 1)
        axes.imshow(_displayable(images[place]), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set_axis_off()
        lines = [drawable(shortened(line, 24)) for line in captions[place].splitlines()]
        axes.set_title("\n".join(lines), fontsize=8, color=WRONG if wrong else "black", parse_math=False)
    return _png(figure)


def confusion_matrix(counts: np.ndarray, names: Sequence[str]) -> bytes:
    """A PNG of the shares of each true class that were taken for each class.

    With more than MATRIX_CLASSES classes it shows those with the most mistakes, wrongly kept out and wrongly put in
    together; shares remain those of all examples of the class.

    Args:
      counts: int [classes, classes], by true and predicted class.
      names: of the classes.
    """
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    shown = np.arange(len(counts))
    title = f"{int(np.trace(counts)):,} of {int(counts.sum()):,} right"
    if len(counts) > MATRIX_CLASSES:
        mistakes = counts.sum(axis=0) + counts.sum(axis=1) - 2 * np.diag(counts)
        shown = np.sort(np.argsort(-mistakes, kind="stable")[:MATRIX_CLASSES])
        title += f"; the {MATRIX_CLASSES} of {len(counts):,} classes with the most mistakes"
    shares = shares[np.ix_(shown, shown)]
    side = min(11.0, 3.2 + 0.36 * len(shown))
    figure = _figure(side + 0.8, side)
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02)
    labels = [drawable(shortened(names[i], 20), f"class {i}") for i in shown]
    size = 8 if len(shown) <= COUNTED_CLASSES else 6
    axes.set_xticks(range(len(shown)), labels, rotation=90, fontsize=size, parse_math=False)
    axes.set_yticks(range(len(shown)), labels, fontsize=size, parse_math=False)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(title, fontsize=9)
    if len(shown) <= COUNTED_CLASSES:
        for (row, column), share in np.ndenumerate(shares):
            count = int(counts[shown[row], shown[column]])
            if count:
                colour = "white" if share > 0.5 else "black"
                axes.text(column, row, _brief(count), ha="center", va="center", fontsize=6, color=colour)
    return _png(figure)


def curves(lines: dict[str, list[tuple[int, float]]], title: str) -> str:
    """An SVG of one chart: values by training step, a line for each name.

    Args:
      lines: (step, value) in the order of steps; values that are not finite leave a gap.
      title: what the values are.
    """
    figure = _figure(4.6, 3.0)
    axes = figure.add_subplot()
    for name, points in lines.items():
        steps, values = zip(*points)
        axes.plot(steps, values, label=name, linewidth=1.4, marker="." if len(points) < 40 else None, markersize=4)
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.set_xlabel("step", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    if len(lines) > 1:
        axes.legend(fontsize=8)
    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    return "<svg" + buffer.getvalue().partition("<svg")[2]  # without the declaration that only a file may have


def drawable(text: str, otherwise: str | None = None) -> str:
    """The text if fonts have its characters; else `otherwise`, or the text with "?" for those that they lack."""
    known = _characters()
    if all(ord(character) in known or character == "\n" for character in text):
        return text
    return otherwise or "".join(character if ord(character) in known else "?" for character in text)


def _displayable(image: np.ndarray) -> np.ndarray:
    """uint8 [height, width] or [height, width, 3], thinned out to at most IMAGE_SIDE a side."""
    step = max(1, -(-max(image.shape[:2]) // IMAGE_SIDE))
    image = image[::step, ::step]
    if image.dtype != np.uint8:
        low, high = image.min(), image.max()
        image = ((image - low) / max(high - low, 1e-12) * 255).astype(np.uint8)
    return image[..., 0] if image.shape[-1] == 1 else image


def _brief(count: int) -> str:
    """A count in at most four characters or so."""
    return str(count) if count < 10_000 else f"{count / 1000:.0f}k"


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    for text in figure.findobj(lambda artist: hasattr(artist, "set_fontfamily")):
        text.set_fontfamily(_families())
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


@functools.cache
def _families() -> list[str]:
    """The fonts to draw with: matplotlib's own, then those of FALLBACK_FONTS that are installed."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in FALLBACK_FONTS if name in installed)]


@functools.cache
def _characters() -> frozenset[int]:
    """The characters that the fonts of `_families` have."""
    return frozenset().union(
        *(font_manager.get_font(font_manager.findfont(name)).get_charmap() for name in _families())
    )
