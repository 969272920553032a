import dataclasses
import io
import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

from tests import helpers
from tests.data.sets_on_disk import write_set
from tftrain.configuration import Augmentation, DataSource
from tftrain.data import decoding, image_cache, images, sets
from tftrain.data.augmentation import Augmenter
from tftrain.data.batching import Batches
from tftrain.data.images import Arrays, ImageExamples
from tftrain.errors import UserError

FULL = Augmentation(flip=True, shift=1, random_crop=True, randaugment=(2, 5), colour_jitter=0.3)
KEPT = [
    None,
    image_cache.Plan("memory", 2**20, ""),
    image_cache.Plan("memory", 500, ""),
    image_cache.Plan("disk", 2**20, ""),
]


@dataclasses.dataclass(eq=False)
class Files:
    """A source of encoded images of mixed sizes, which counts how often each is read."""

    files: list[bytes]
    labels: np.ndarray
    facts: np.ndarray

    def __post_init__(self):
        self.reads = []

    def read(self, row: int) -> bytes:
        self.reads.append(row)
        if not self.files[row]:
            raise OSError(5, os.strerror(5))
        return self.files[row]

    def name(self, row: int) -> str:
        return f"place/{row}.png"


def files(count: int = 12) -> Files:
    generator = np.random.default_rng(3)
    encoded, facts = [], []
    for i in range(count):
        file = io.BytesIO()
        height, width = 9 + i, 20 - i
        Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file, "PNG")
        encoded.append(file.getvalue())
        facts.append((width, height, 3))
    return Files(encoded, np.arange(count, dtype=np.int32) % 3, np.array(facts, np.int32))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(8, 8), (6, 10)])
def test_evaluation_sees_the_middle_of_each_image(size, channels):
    source = files()
    examples = ImageExamples(source, size, channels)
    found = examples.inputs(tf.constant([5, 0, 11, 5], tf.int64))
    expected = [decoding.resize_and_crop(decoding.decode(source.files[row], channels), size) for row in (5, 0, 11, 5)]
    assert found.dtype == tf.uint8
    np.testing.assert_array_equal(found, expected)
    examples.check()


@pytest.mark.parametrize("options", [FULL, dataclasses.replace(FULL, random_crop=False), Augmentation(flip=True)])
@pytest.mark.parametrize("kept", KEPT)
def test_training_images_are_changed_by_their_words_whatever_is_kept(options, kept):
    source = files()
    rows = np.array([3, 3, 7, 1])
    augmenter = Augmenter(options)
    words = np.random.default_rng(0).integers(0, 2**32, (4, augmenter.words), dtype=np.uint32)
    fitted = [augmenter.fit(decoding.decode(source.files[row], 3), (8, 8), word) for row, word in zip(rows, words)]
    expected = augmenter.move(tf.constant(np.stack(fitted)), tf.constant(words)).numpy()
    examples = ImageExamples(source, (8, 8), 3, options, kept)
    for _ in range(3):
        found = examples.inputs(tf.constant(rows), None, lambda count: tf.constant(words)[:, :count])
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kept", KEPT[1::2])
def test_what_is_kept_is_read_once(kept):
    source = files()
    examples = ImageExamples(source, (8, 8), 3, cache=kept)
    for _ in range(3):
        examples.inputs(tf.range(12, dtype=tf.int64))
    assert sorted(source.reads) == list(range(12))


def test_an_image_that_cannot_be_read_is_told_by_name():
    source = files()
    source.files[4] = b""
    source.files[6] = source.files[6][:-30]
    examples = ImageExamples(source, (8, 8), 3)
    examples.inputs(tf.constant([0, 1], tf.int64))
    examples.check()
    batch = examples.inputs(tf.constant([3, 4], tf.int64)).numpy()
    assert batch[0].any() and not batch[1].any()
    with pytest.raises(UserError, match=r"^place/4.png: cannot be read \(Input/output error\)$"):
        examples.check()
    examples = ImageExamples(source, (8, 8), 3)
    examples.inputs(tf.constant([6], tf.int64))
    with pytest.raises(UserError, match=r"^place/6.png: a damaged image"):
        examples.check()


def test_arrays_of_the_right_size_are_gathered_as_they_are():
    pictures = np.arange(3 * 2 * 2, dtype=np.uint8).reshape(3, 2, 2, 1)
    examples = ImageExamples(Arrays(pictures, np.zeros(3, np.int32)))
    np.testing.assert_array_equal(examples.inputs(tf.constant([2, 0, 2])), pictures[[2, 0, 2]])
    assert examples._whole is not None
    coloured = ImageExamples(Arrays(pictures, np.zeros(3, np.int32)), (2, 2), 3)
    np.testing.assert_array_equal(coloured.inputs(tf.constant([2, 0])), np.repeat(pictures[[2, 0]], 3, axis=3))


@pytest.mark.parametrize("replicas", [2, 4])
def test_any_number_of_replicas_sees_the_same_images(replicas):
    def seen(replicas):
        examples = ImageExamples(files(11), (8, 8), 3, FULL, image_cache.Plan("memory", 2**20, ""))
        steps = helpers.elements(Batches(examples, 4, seed=5), replicas, 7)
        rows = [helpers.real_rows(step) for step in steps]
        return rows, [np.concatenate([part["inputs"][part["weights"] == 1] for part in step]) for step in steps]

    (rows, pictures), (expected_rows, expected) = seen(replicas), seen(1)
    assert rows == expected_rows
    for epoch in (rows[:3], rows[3:6]):
        assert sorted(row for step in epoch for row in step) == list(range(11))
    for found, wanted in zip(pictures, expected):
        np.testing.assert_array_equal(found, wanted)


def test_a_resumed_run_reads_nothing_of_the_steps_before():
    source = files()
    (whole,) = helpers.elements(Batches(ImageExamples(source, (8, 8), 3), 1, seed=5), 1, 1, first_step=9)
    assert whole[0]["rows"][0] in source.reads
    later = helpers.elements(Batches(helpers.vectors(12), 1, seed=5), 1, 8, first_step=9)  # as many as are made ahead
    assert set(source.reads) <= {int(step[0]["rows"][0]) for step in later}


def read(folder, split="train"):
    source = DataSource(dataset=str(folder))
    return images.read(sets.TfdsSet(sets.find(source, {}), source), split)


def test_read_gives_the_images_and_labels_of_a_split(tmp_path):
    generator = np.random.default_rng(0)
    pictures = generator.integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)
    rows = [{"image": picture, "label": i % 2} for i, picture in enumerate(pictures)]
    feature = tfds.features.Image(shape=(4, 6, 3))
    source = read(write_set(tmp_path, "image", {"train": rows}, ["cat", "dog"], feature=feature))
    assert source.images.dtype == np.uint8 and source.labels.dtype == np.int32
    # A set on disk has an order of its own.
    found = {(label, picture.tobytes()) for picture, label in zip(source.images, source.labels)}
    assert found == {(row["label"], row["image"].tobytes()) for row in rows}


def test_images_of_several_shapes_are_read_one_by_one(tmp_path):
    rows = [{"image": np.full((4, width, 3), width, np.uint8), "label": 0} for width in (4, 5, 6)]
    source = read(write_set(tmp_path, "image", {"train": rows}, ["a", "b"]))
    found = ImageExamples(source, (8, 8), 3).inputs(tf.range(3, dtype=tf.int64)).numpy()
    widths = [width for width, _, _ in source.facts.tolist()]
    np.testing.assert_array_equal(found, np.broadcast_to(np.reshape(widths, (3, 1, 1, 1)), (3, 8, 8, 3)))
