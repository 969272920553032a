import dataclasses

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from tests.data.sets_on_disk import write_set
from tftrain.configuration import Augmentation, DataSource
from tftrain.data import fashion_mnist, image_cache, image_sets
from tftrain.data.image_sets import ImageData
from tftrain.data.images import Arrays
from tftrain.errors import UserError


@dataclasses.dataclass(eq=False)
class Facts:
    facts: np.ndarray

    def __post_init__(self):
        self.facts = np.asarray(self.facts, np.int32)
        self.labels = np.zeros(len(self.facts), np.int32)

    def read(self, row):
        raise NotImplementedError


def data(train, test=None) -> ImageData:
    return ImageData(Facts(train), Facts(test or train), ["a", "b"])


@pytest.mark.parametrize(
    "facts, size, channels, expected",
    [
        ([(32, 24, 3)] * 2, None, "auto", (24, 32, 3)),
        ([(32, 24, 1)] * 2, None, "auto", (24, 32, 1)),
        ([(32, 24, 1)] * 2, None, "3", (24, 32, 3)),
        ([(32, 24, 1), (32, 24, 3)], None, "auto", (24, 32, 3)),
        ([(32, 24, 3)] * 2, 48, "1", (48, 48, 1)),
        ([(256, 256, 3)] * 2, None, "auto", (256, 256, 3)),
        ([(4000, 3000, 3)] * 2, None, "auto", (128, 128, 3)),
        ([(400, 300, 3), (300, 500, 3)], None, "auto", (128, 128, 3)),
        ([(40, 50, 1), (37, 90, 1), (35, 35, 1)], None, "auto", (40, 40, 1)),
    ],
)
def test_the_shape_is_the_images_own_or_the_documented_one(facts, size, channels, expected):
    assert image_sets.choose_shape(data(facts), size, channels)[0] == expected


def test_the_test_images_count_for_the_shape():
    both = data([(28, 28, 1)], [(28, 30, 3)])
    shape, text = image_sets.choose_shape(both, None, "auto")
    assert shape == (32, 32, 3)
    assert text == "32x32, RGB, from sides of 28 to 30 pixels (--image_size)"


def test_a_folder_is_class_folders_or_a_tfds_set_by_what_is_in_it(tmp_path):
    for name in ("train/a", "train/b", "test/a", "test/b"):
        (tmp_path / "own" / name).mkdir(parents=True)
        Image.new("L", (5, 4)).save(tmp_path / "own" / name / "1.png")
    found = image_sets.find(DataSource(dataset=str(tmp_path / "own")), 0, "refuse")
    assert found.label_names == ["a", "b"] and len(found.train.labels) == 2
    rows = [{"image": np.zeros((4, 4, 3), np.uint8), "label": i} for i in range(2)]
    folder = write_set(tmp_path, "image", {"train": rows, "test": rows[:1]}, ["x", "y"])
    source = DataSource(dataset=str(folder))
    found = image_sets.read_set(image_sets.find(source, 0, "refuse"), source, 0)
    assert found.label_names == ["x", "y"] and len(found.train.labels) == 2 and len(found.test.labels) == 1
    with pytest.raises(UserError, match=f"did you mean {folder}"):
        image_sets.find(DataSource(dataset=str(folder.parent)), 0, "refuse")
    with pytest.raises(UserError, match="is not there; give a data set that ships"):
        image_sets.find(DataSource(dataset="no-such-set"), 0, "refuse")


def test_a_tfds_set_without_a_test_part_has_some_held_out(tmp_path):
    rows = [{"image": np.full((4, 4, 1), i, np.uint8), "label": i % 2} for i in range(20)]
    feature = tfds.features.Image(shape=(4, 4, 1))
    folder = write_set(tmp_path, "image", {"train": rows}, ["x", "y"], feature=feature)
    source = DataSource(dataset=str(folder), hold_out=0.2)
    found = image_sets.read_set(image_sets.find(source, 0, "refuse"), source, 0)
    assert np.bincount(found.test.labels).tolist() == [2, 2]
    values = np.concatenate([part.images[:, 0, 0, 0] for part in (found.train, found.test)])
    assert sorted(values) == list(range(20))


def test_fashion_mnist_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(fashion_mnist, "installed", lambda: False)
    with pytest.raises(UserError, match="apt-get install dataset-fashion-mnist"):
        image_sets.find(DataSource(dataset="fashion_mnist"), 0, "refuse")
    part = fashion_mnist.Images(np.zeros((3, 28, 28, 1), np.uint8), np.zeros(3, np.int32))
    monkeypatch.setattr(fashion_mnist, "installed", lambda: True)
    monkeypatch.setattr(fashion_mnist, "read", lambda split: part)
    found = image_sets.find(DataSource(dataset="fashion_mnist"), 0, "refuse")
    assert found.train is part and len(found.label_names) == 10
    shape, text = image_sets.choose_shape(found, None, "auto")
    assert (shape, text) == ((28, 28, 1), "28x28, grey")
    training, _, note = image_sets.make_examples(found, shape, Augmentation(flip=True), "auto")
    assert training._whole is not None and note == "not needed: all images are in memory, 4.6 KiB"


def test_the_cache_is_divided_by_what_each_part_takes():
    both = data([(10, 10, 3)] * 30, [(20, 20, 3)] * 10)
    training, testing, note = image_sets.make_examples(both, (8, 8, 3), Augmentation(), "memory")
    assert (training._cache._limit, testing._cache._limit) == (30 * 192, 10 * 192)
    assert note.startswith("in memory, 7.5 KiB, at most 7.5 KiB")
    # Parts are cut from whole images, which are kept then.
    training, testing, _ = image_sets.make_examples(both, (8, 8, 3), Augmentation(random_crop=True), "memory")
    assert (training._cache._limit, testing._cache._limit) == (30 * 300, 10 * 192)
    assert image_sets.make_examples(both, (8, 8, 3), Augmentation(), "none")[0]._cache is None


def test_auto_keeps_what_takes_a_small_share_of_the_free_memory():
    plan = image_cache.plan("auto", 100, free=400)
    assert (plan.kind, plan.limit, plan.text) == (
        "memory",
        100,
        "in memory, 100 bytes (auto: below 25% of 400 bytes free)",
    )
    assert image_cache.plan("auto", 101, free=400).kind == "none"
    assert image_cache.plan("memory", 1000, free=400).limit == 320
    assert image_cache.plan("none", 1, free=400).kind == "none"


def test_a_disk_that_is_too_small_is_one_line(monkeypatch):
    with pytest.raises(UserError, match=r"--cache=disk: .* are needed, and .* has"):
        image_cache.plan("disk", 2**60)


def test_images_with_other_channels_are_taken_as_they_are_or_refused():
    part = Arrays(np.zeros((2, 8, 8, 4), np.uint8), np.zeros(2, np.int32), "set")
    both = ImageData(part, part, ["a", "b"])
    shape, _ = image_sets.choose_shape(both, None, "auto")
    assert image_sets.make_examples(both, shape, Augmentation(flip=True), "auto")[0].shape == (8, 8, 4)
    with pytest.raises(UserError, match="set, row 0: 4 channels, and the network takes 4"):
        image_sets.make_examples(both, (16, 16, 4), Augmentation(), "auto")
