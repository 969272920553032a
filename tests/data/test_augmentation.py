import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from tftrain.configuration import Augmentation
from tftrain.data import augmentation, decoding
from tftrain.data.augmentation import Augmenter
from tftrain.errors import UserError

HALF = 2**31


def random_words(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, shape, dtype=np.uint32)


def picture(height: int = 16, width: int = 24, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (height, width, channels), dtype=np.uint8)


def test_flip_mirrors_where_the_word_is_odd():
    images = np.stack([picture()] * 3)
    words = np.zeros((3, 32), np.uint32)
    words[:, 0] = [HALF, 1, 2**32 - 1]
    found = Augmenter(Augmentation(flip=True)).move(tf.constant(images), tf.constant(words)).numpy()
    np.testing.assert_array_equal(found, [images[0], images[0][:, ::-1], images[0][:, ::-1]])


def test_shift_moves_by_up_to_so_many_pixels_and_black_comes_in():
    images, words = np.stack([picture(6, 5, 1)] * 200), random_words(200, 32)
    found = Augmenter(Augmentation(shift=2)).move(tf.constant(images), tf.constant(words)).numpy()
    seen = set()
    for image, result, word in zip(images, found, words):
        down, right = (int(w) * 5 // 2**32 for w in word[1:3])
        padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
        np.testing.assert_array_equal(result, padded[down : down + 6, right : right + 5])
        seen.add((down, right))
    assert len(seen) == 25


def test_random_boxes_have_the_areas_and_shapes_asked_for():
    boxes = np.array([augmentation.random_box(400, 300, (0.1, 0.5), (0.5, 2), w) for w in random_words(500, 22)])
    left, top, right, bottom = boxes.T
    assert (left >= 0).all() and (top >= 0).all() and (right <= 400).all() and (bottom <= 300).all()
    areas = (right - left) * (bottom - top) / 120_000
    ratios = (right - left) / (bottom - top)
    assert 0.099 < areas.min() < 0.12 and 0.45 < areas.max() < 0.502
    assert 0.49 < ratios.min() < 0.55 and 1.8 < ratios.max() < 2.03
    assert abs(np.mean(areas) - 0.3) < 0.02  # uniform in the area
    assert abs(np.mean(np.log(ratios))) < 0.05  # as often wide as high
    assert left.std() > 40 and top.std() > 30


@pytest.mark.parametrize("size", [(1000, 10), (10, 1000), (1, 1)])
def test_an_image_that_no_box_fits_gives_its_middle(size):
    box = augmentation.random_box(*size, (1.0, 1.0), (3 / 4, 4 / 3), random_words(22))
    expected = {(1000, 10): (493, 0, 506, 10), (10, 1000): (0, 493, 10, 506), (1, 1): (0, 0, 1, 1)}
    assert box == expected[size]


def test_fit_without_options_is_what_evaluation_sees():
    augmenter = Augmenter(Augmentation())
    assert not augmenter.fits
    np.testing.assert_array_equal(
        augmenter.fit(picture(), 9, random_words(augmenter.words)), decoding.resize_and_crop(picture(), 9)
    )


def test_fit_is_a_function_of_the_words_alone():
    options = Augmentation(random_crop=True, randaugment=(2, 9), colour_jitter=0.4)
    augmenter = Augmenter(options)
    words = random_words(20, augmenter.words)
    first = [augmenter.fit(picture(40, 50), 16, word) for word in words]
    again = [augmenter.fit(picture(40, 50), 16, word) for word in words]
    np.testing.assert_array_equal(first, again)
    assert len({image.tobytes() for image in first}) == 20
    assert {image.shape for image in first} == {(16, 16, 3)}


def test_one_more_option_leaves_the_crops_as_they_are():
    words = random_words(40)
    plain = Augmenter(Augmentation(random_crop=True)).fit(picture(), 8, words)
    jittered = Augmenter(Augmentation(random_crop=True, colour_jitter=0.3)).fit(picture(), 8, words)
    np.testing.assert_array_equal(augmentation.colour_jitter(plain, 0.3, words[4:]), jittered)


def test_colour_jitter_multiplies_brightness_then_contrast_then_saturation():
    image = picture()
    words = np.array([0, HALF, 2**32 - 1], np.uint32)  # 1 - s, 1, 1 + s
    expected = ImageEnhance.Color(ImageEnhance.Brightness(Image.fromarray(image)).enhance(0.6)).enhance(1.4)
    found = augmentation.colour_jitter(image, 0.4, words)
    assert np.abs(found.astype(int) - np.asarray(expected).astype(int)).max() <= 1
    dark = augmentation.colour_jitter(image, 0.4, np.array([0, HALF, HALF], np.uint32))
    assert np.abs(dark - 0.6 * image).max() <= 1


def operation(number: int, magnitude: int, up: bool, image: np.ndarray) -> np.ndarray:
    """RandAugment with this one operation."""
    words = np.array([-(-number * 2**32 // 14), HALF if up else 0], np.uint32)
    return augmentation.randaugment(image, 1, magnitude, words)


def test_randaugment_has_the_fourteen_operations_at_their_strengths():
    image = picture()
    pillow = Image.fromarray(image)

    def same(number, magnitude, up, expected):
        np.testing.assert_array_equal(operation(number, magnitude, up, image), np.asarray(expected))

    assert len(augmentation.OPERATIONS) == 14
    same(0, 10, True, image)
    same(1, 10, True, ImageOps.autocontrast(pillow))
    same(2, 10, True, ImageOps.equalize(pillow))
    same(4, 5, True, np.where(image < 128, image, 255 - image))
    same(5, 10, True, image & 0xF0)
    same(6, 10, False, ImageEnhance.Color(pillow).enhance(0.1))
    same(7, 10, True, ImageEnhance.Contrast(pillow).enhance(1.9))
    same(8, 5, False, ImageEnhance.Brightness(pillow).enhance(0.55))
    same(9, 10, True, ImageEnhance.Sharpness(pillow).enhance(1.9))
    for number in (3, *range(5, 14)):
        same(number, 0, True, image)  # no strength, no change
    # 0.45 of 24 pixels at magnitude 10: 5 at magnitude 5, towards the left where the sign is up; grey comes in.
    moved = operation(12, 5, True, image)
    np.testing.assert_array_equal(moved[:, :18], image[:, 5:23])
    assert (moved[:, 19:] == 128).all()
    np.testing.assert_array_equal(operation(13, 10, False, image)[7:], image[:9])
    # A shear moves each row by 0.3 of its distance from the middle.
    sheared = operation(10, 10, True, image)
    for y in range(16):
        offset = 0.3 * (y + 0.5 - 8)
        sources = np.floor(np.arange(24) + 0.5 + offset).astype(int)
        inside = (sources >= 0) & (sources < 24)
        np.testing.assert_array_equal(sheared[y, inside], image[y, sources[inside]])
        assert (sheared[y, ~inside] == 128).all()


def test_rotation_is_about_the_middle_by_thirty_degrees():
    image = picture(21, 21)
    for up, angle in ((True, -30), (False, 30)):
        expected = np.asarray(Image.fromarray(image).rotate(angle, fillcolor=(128, 128, 128)))
        assert (operation(3, 10, up, image) != expected).any(axis=2).mean() < 0.01


@pytest.mark.parametrize("number", range(14))
def test_operations_take_grey_images(number):
    assert operation(number, 9, True, picture(8, 8, 1)).shape == (8, 8, 1)


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"shift": -1}, "--shift=-1: should be a whole number of at least 0"),
        ({"crop_scale": (0.5, 0.2)}, "--crop_scale=0.5,0.2: should be two numbers"),
        ({"crop_scale": (0.5, 1.5)}, "at most 1"),
        ({"crop_ratio": (float("nan"), 1)}, "--crop_ratio=nan,1"),
        ({"randaugment": (2,)}, "--randaugment=2: should be N,M"),
        ({"randaugment": (2, 11)}, "--randaugment=2,11: should be N,M"),
        ({"colour_jitter": 1.0}, "--colour_jitter=1.0"),
    ],
)
def test_options_that_cannot_be_are_refused(options, expected):
    with pytest.raises(UserError) as caught:
        Augmentation(**options)
    assert expected in str(caught.value)
