import io
import warnings

import numpy as np
import pytest
from PIL import Image

from tftrain import pictures

HOSTILE = ["$\\frac{", "a" * 500, "<b>&", "two\nlines", "", "汉字 \U0001f600 \x07"]


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def size(png: bytes) -> tuple[int, int]:
    image = Image.open(io.BytesIO(png))
    image.load()
    return image.size


@pytest.mark.parametrize("shape", [(1, 8, 8, 1), (30, 500, 700, 3)])
def test_a_grid_is_bounded_whatever_the_images(shape):
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    captions = [HOSTILE[i % len(HOSTILE)] for i in range(len(images))]
    width, height = size(pictures.grid(images, captions))
    assert width <= 1000 and height <= 1200
    assert size(pictures.grid(images / 7 - 3, captions, wrong=True)) == (width, height)


def test_a_grid_shows_the_images_themselves():
    images = np.zeros([1, 4, 4, 3], np.uint8)
    images[0, :2] = 255, 0, 0
    images[0, 2:] = 0, 0, 255
    shown = np.asarray(Image.open(io.BytesIO(pictures.grid(images, ["a"]))).convert("RGB")).astype(int)
    red = np.argwhere((shown == (255, 0, 0)).all(axis=-1))
    blue = np.argwhere((shown == (0, 0, 255)).all(axis=-1))
    assert len(red) > 1000 and len(red) == pytest.approx(len(blue), rel=0.05)
    assert red[:, 0].max() < blue[:, 0].min()


@pytest.mark.parametrize("classes", [1, 2, 20, 41, 300])
def test_a_confusion_matrix_is_readable_and_bounded(classes):
    counts = np.random.default_rng(0).integers(0, 10, (classes, classes)) + 100 * np.eye(classes, dtype=int)
    names = [HOSTILE[i % len(HOSTILE)] for i in range(classes)]
    width, height = size(pictures.confusion_matrix(counts, names))
    assert 300 <= width <= 1200 and 300 <= height <= 1200


def test_a_confusion_matrix_without_examples():
    size(pictures.confusion_matrix(np.zeros([3, 3], int), ["a", "b", "c"]))


def test_curves_are_one_svg_element():
    svg = pictures.curves({"train": [(1, 0.5), (9, float("nan"))], "<test>": [(5, 0.4)]}, "loss & $")
    assert svg.startswith("<svg") and svg.rstrip().endswith("</svg>")
    assert "<test>" not in svg


def test_characters_without_a_font_are_replaced():
    assert pictures.drawable("a\U0010fffd") == "a?"
    assert pictures.drawable("\U0010fffd", "class 3") == "class 3"
    assert pictures.drawable("$a_1$ é") == "$a_1$ é"
