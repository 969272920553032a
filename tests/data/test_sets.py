import io
import json
import pathlib

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from tests.data.sets_on_disk import write_set
from tftrain.configuration import DataSource
from tftrain.data import sets
from tftrain.errors import UserError

ROWS = [{"text": word, "label": number % 2} for number, word in enumerate(["one", "zwei", "三", "four"])]
NAMES = ["even", "odd"]


def opened(folder, **source) -> sets.TfdsSet:
    source = DataSource(dataset=str(folder), **source)
    return sets.TfdsSet(sets.find(source, {}), source)


def place(parent: pathlib.Path, rows, path: str) -> pathlib.Path:
    """A prepared set at a path below `parent`, as TFDS would have it."""
    folder = write_set(parent / "made", "text", {"train": rows}, NAMES)
    target = parent / path
    target.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(target)
    return target


@pytest.mark.parametrize("file_format", ["array_record", "tfrecord"])
def test_read_gives_columns_and_label_names(tmp_path, file_format):
    folder = write_set(tmp_path, "text", {"train": ROWS, "test": ROWS[:1]}, NAMES, file_format)
    data = opened(folder)
    assert (data.label_names, data.train_split, data.test_split) == (NAMES, "train", "test")
    table = data.read("train", ("text",))
    assert sorted(zip((text.decode() for text in table["text"]), table["label"])) == sorted(
        (row["text"], row["label"]) for row in ROWS
    )
    assert table == opened(folder).read("train", ("text",))  # in one order


@pytest.mark.parametrize("file_format", ["array_record", "tfrecord"])
def test_splits_are_sliced_as_tfds_does_it(tmp_path, file_format):
    folder = write_set(tmp_path, "text", {"train": ROWS}, NAMES, file_format)
    data = opened(folder, train_split="train[:75%]", test_split="train[75%:]")
    train, test = (data.read(split, ("text",))["text"] for split in (data.train_split, data.test_split))
    assert (len(train), len(test)) == (3, 1)
    assert sorted(train + test) == sorted(row["text"].encode() for row in ROWS)


def test_the_test_part_is_the_first_that_has_labels(tmp_path):
    unlabelled = [{"text": "?", "label": -1}]
    both = write_set(tmp_path / "both", "text", {"train": ROWS, "test": unlabelled, "validation": ROWS[:2]}, NAMES)
    assert opened(both).test_split == "validation"
    none = write_set(tmp_path / "none", "text", {"train": ROWS, "test": unlabelled}, NAMES)
    assert opened(none).test_split is None
    assert opened(both, hold_out=0.25).test_split is None
    assert opened(both, test_split="test").test_split == "test"  # asked for; reading it says what is wrong
    with pytest.raises(UserError, match=r"row 0: label -1; .* the whole split seems to have no labels"):
        opened(both, test_split="test").read("test", ("text",))


@pytest.mark.parametrize(
    "split, message",
    [
        ("absent", r"no split 'absent' \(--train_split\): Unknown split .*; it has train"),
        ("train[", r"no split 'train\[' \(--train_split\): Error parsing"),
        ("train[:0%]", r"split 'train\[:0%\]' \(--train_split\) has no rows"),
        ("train[3:1]", r"split 'train\[3:1\]' \(--train_split\) has no rows"),
    ],
)
def test_a_split_that_cannot_be_is_refused(tmp_path, split, message):
    folder = write_set(tmp_path, "text", {"train": ROWS}, NAMES)
    with pytest.raises(UserError, match=message):
        opened(folder, train_split=split)


def test_what_a_set_lacks_is_refused(tmp_path):
    folder = write_set(tmp_path / "a", "text", {"train": ROWS}, NAMES)
    with pytest.raises(UserError, match=r"no column 'image'; it has label, text"):
        opened(folder).images("train")
    with pytest.raises(UserError, match=r"'label' is .*; a ClassLabel is needed"):
        opened(write_set(tmp_path / "b", "text", {"train": ROWS}, None))
    with pytest.raises(UserError, match="has 1 class; two are needed"):
        opened(write_set(tmp_path / "c", "text", {"train": [{"text": "a", "label": 0}]}, ["x"]))


def test_a_label_that_is_no_class_is_refused(tmp_path):
    rows = [{"text": "a", "label": 0}, {"text": "b", "label": -1}]
    folder = write_set(tmp_path, "text", {"train": rows}, NAMES)
    with pytest.raises(UserError, match=r"row 1: label -1; it should be from 0 to 1$"):
        opened(folder).read("train", ("text",))


def test_a_set_that_is_broken_is_refused(tmp_path):
    folder = write_set(tmp_path, "text", {"train": ROWS}, NAMES, "tfrecord")
    (data,) = folder.glob("*train*")
    data.write_bytes(data.read_bytes()[:-10])
    with pytest.raises(UserError, match="split 'train' cannot be read"):
        opened(folder).read("train", ("text",))
    (folder / sets.INFO).write_text("{")
    with pytest.raises(UserError, match=r"dataset_info\.json cannot be read"):
        opened(folder)


@pytest.mark.parametrize("key", ["pythonClassName", "python_class_name", "type"])
def test_a_set_that_names_code_of_its_own_is_refused(tmp_path, key, monkeypatch):
    folder = write_set(tmp_path, "text", {"train": ROWS}, NAMES)
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = folder / "features.json"
    features = json.loads(file.read_text())
    label = features["featuresDict"]["features"]["label"]
    label.pop("pythonClassName")
    label[key] = "evil.Label"
    file.write_text(json.dumps(features))
    with pytest.raises(
        UserError, match=r"features.json names 'evil.Label', which is not TFDS' own: it is not imported"
    ):
        opened(folder)


def test_a_set_whose_description_names_code_of_its_own_is_refused(tmp_path):
    folder = write_set(tmp_path, "text", {"train": ROWS}, NAMES)
    file = folder / sets.INFO
    file.write_text(json.dumps(json.loads(file.read_text()) | {"features": {"pythonClassName": "evil.Label"}}))
    with pytest.raises(UserError, match=r"dataset_info.json names 'evil.Label', which is not TFDS' own"):
        opened(folder)


@pytest.mark.parametrize("file_format", ["array_record", "tfrecord"])
@pytest.mark.parametrize("encoding", ["png", "jpeg"])
def test_images_are_files_with_labels(tmp_path, file_format, encoding):
    generator = np.random.default_rng(0)
    pictures = [generator.integers(0, 256, (4 + i, 6, 3), dtype=np.uint8) for i in range(5)]
    rows = [{"image": picture, "label": i % 2} for i, picture in enumerate(pictures)]
    feature = tfds.features.Image(shape=(None, None, 3), encoding_format=encoding)
    folder = write_set(tmp_path, "image", {"train": rows}, ["cat", "dog"], file_format, feature)
    source = opened(folder).images("train[1:4]")
    assert source.labels.dtype == np.int32 and len(source.labels) == 3
    heights = sorted(4 + i for i in range(5))
    assert len(source.facts) == 3 and {tuple(fact) for fact in source.facts} <= {(6, height, 3) for height in heights}
    assert source.take(np.array([2])).read(0) == source.read(2)
    assert source.name(2) == f"--dataset={folder}, train[1:4], row 2"
    for row, label in enumerate(source.labels):
        image = Image.open(io.BytesIO(source.read(row)))
        number = image.height - 4
        assert image.format == encoding.upper() and number % 2 == label
        if encoding == "png":
            np.testing.assert_array_equal(np.asarray(image), pictures[number])


def test_the_shape_of_images_is_known_where_it_is_fixed(tmp_path):
    rows = [{"image": np.zeros((4, 6, 1), np.uint8), "label": i % 2} for i in range(3)]
    folder = write_set(tmp_path, "image", {"train": rows}, NAMES, feature=tfds.features.Image(shape=(4, 6, 1)))
    assert opened(folder).images("train").facts.tolist() == [[6, 4, 1]]


@pytest.mark.parametrize(
    "feature, value",
    [
        (tfds.features.Text(), "a cat"),
        (tfds.features.Scalar(np.uint8), np.uint8(3)),
        (tfds.features.Tensor(shape=(4, 4), dtype=np.uint8), np.zeros((4, 4), np.uint8)),
        (tfds.features.Image(shape=(4, 4, 1), dtype=np.float32), np.zeros((4, 4, 1), np.float32)),
    ],
)
def test_a_column_that_holds_no_images_is_refused(tmp_path, feature, value):
    rows = [{"image": value, "label": i} for i in range(2)]
    folder = write_set(tmp_path, "image", {"train": rows}, NAMES, feature=feature)
    with pytest.raises(UserError, match=r"its column 'image' is .*; an Image of uint8 is needed"):
        opened(folder).images("train")


def find(dataset: str, embedded=None, **source) -> sets.Found:
    return sets.find(DataSource(dataset=dataset, **source), embedded or {})


def test_find_takes_what_ships_or_a_folder(tmp_path):
    folder = write_set(tmp_path, "text", {"train": ROWS}, NAMES)
    assert find(str(folder)).folder == folder
    assert (find("fashion", {"fashion": "fashion_mnist_subset/1.0.0"}).folder / sets.INFO).is_file()


def test_find_takes_names_of_prepared_sets(tmp_path, monkeypatch):
    for path in ("mine/1.9.0", "mine/1.10.0", "glue/sst2/2.0.0", "two/a/1.0.0", "two/b/1.0.0"):
        place(tmp_path, ROWS, path)
    base = str(tmp_path)
    assert find("mine", tfds_dir=base).folder == tmp_path / "mine/1.10.0"
    assert find("mine:1.9.0", tfds_dir=base).folder == tmp_path / "mine/1.9.0"
    assert find("glue/sst2", tfds_dir=base).folder == tmp_path / "glue/sst2/2.0.0"
    assert find("glue", tfds_dir=base).folder == tmp_path / "glue/sst2/2.0.0"
    monkeypatch.setenv("TFDS_DATA_DIR", base)
    assert find("glue/sst2:2.0.0").folder == tmp_path / "glue/sst2/2.0.0"
    with pytest.raises(UserError, match="has several of it; give one of two/a, two/b"):
        find("two")
    with pytest.raises(UserError, match=r"mine has the version 1\.9\.0, 1\.10\.0"):
        find("mine:3.0.0")
    assert opened("mine", tfds_dir=base).read("train", ("text",))["label"]


def test_find_says_what_would_be_right(tmp_path):
    with pytest.raises(UserError, match=r"neither a data set that ships \(a, b\), nor a folder, nor a name that TFDS"):
        find("absent_set", {"a": "a/1.0.0", "b": "b/1.0.0"}, tfds_dir=str(tmp_path))
    with pytest.raises(UserError, match=r"--dataset=./absent: is not there; give a data set that ships"):
        find("./absent")
    with pytest.raises(UserError, match="is not there"):
        find("huggingface:glue")  # a community's
    with pytest.raises(UserError, match=r"no dataset_info\.json in it"):
        find(str(tmp_path))
    place(tmp_path, ROWS, "mine/1.0.0")
    with pytest.raises(UserError, match=r"did you mean .*mine/1\.0\.0\?"):
        find(str(tmp_path / "mine"))
    with pytest.raises(UserError, match=r"--tfds_dir=.*: no such folder"):
        find("cifar10", tfds_dir=str(tmp_path / "absent"))


def test_a_set_that_cannot_be_fetched_is_refused(tmp_path, monkeypatch, capfd):
    def unreachable(*arguments, **keywords):
        raise OSError("Failed to resolve 'www.example.org'\nand more")

    monkeypatch.setattr("requests.Session.get", unreachable)
    found = find("cifar10", tfds_dir=str(tmp_path))
    assert found.folder is None
    with pytest.raises(
        UserError, match=r"nor can TFDS fetch it: Failed to resolve 'www.example.org'; prepare it where"
    ):
        sets.TfdsSet(found, DataSource(dataset="cifar10"))
    assert capfd.readouterr().out == ""
