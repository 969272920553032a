import numpy as np
import pytest
import tensorflow as tf

from tests.data.sets_on_disk import write_set
from tftrain.configuration import DataSource
from tftrain.data import images, sets
from tftrain.errors import UserError


def test_flip_mirrors_left_to_right_where_the_lowest_bit_is_set():
    pictures = np.arange(4 * 2 * 3 * 1, dtype=np.uint8).reshape(4, 2, 3, 1)
    words = np.array([[0, 1, 1, 1], [1, 0, 0, 0], [2**32 - 1, 0, 0, 0], [2**32 - 2, 9, 9, 9]], np.uint32)
    found = images.flip(tf.constant(pictures), lambda count: tf.constant(words)[:, :count]).numpy()
    expected = np.stack([pictures[0], np.fliplr(pictures[1]), np.fliplr(pictures[2]), pictures[3]])
    np.testing.assert_array_equal(found, expected)


def read(folder, split="train"):
    source = DataSource(dataset=str(folder))
    return images.read(sets.TfdsSet(sets.find(source, {}), source), split)


def test_read_gives_the_images_and_labels_of_a_split(tmp_path):
    generator = np.random.default_rng(0)
    pictures = generator.integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)
    rows = [{"image": picture, "label": i % 2} for i, picture in enumerate(pictures)]
    examples = read(write_set(tmp_path, "image", {"train": rows, "test": rows[:2]}, ["cat", "dog"]))
    # A set on disk has an order of its own.
    found = {(label, picture.tobytes()) for picture, label in zip(examples.images, examples.labels)}
    assert found == {(row["label"], row["image"].tobytes()) for row in rows}


def test_images_of_several_shapes_are_refused(tmp_path):
    rows = [{"image": np.zeros((4, width, 3), np.uint8), "label": 0} for width in (4, 5, 6)]
    folder = write_set(tmp_path, "image", {"train": rows}, ["a", "b"])
    with pytest.raises(UserError, match=r"3 shapes \(4x4x3, 4x5x3, 4x6x3\); one is needed"):
        read(folder)


def test_inputs_are_the_rows_asked_for():
    pictures = np.arange(3 * 2 * 2, dtype=np.uint8).reshape(3, 2, 2, 1)
    examples = images.ImageExamples(pictures, np.zeros(3, np.int32))
    np.testing.assert_array_equal(examples.inputs(tf.constant([2, 0, 2])), pictures[[2, 0, 2]])
