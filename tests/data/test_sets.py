import pytest

from tests.data.sets_on_disk import write_set
from tftrain.data import sets
from tftrain.errors import UserError

ROWS = [{"text": word, "label": number % 2} for number, word in enumerate(["one", "zwei", "三", "four"])]


@pytest.mark.parametrize("file_format", ["array_record", "tfrecord"])
def test_read_gives_columns_and_label_names(tmp_path, file_format):
    folder = write_set(tmp_path, "text", {"train": ROWS, "test": ROWS[:1]}, ["even", "odd"], file_format)
    table, names = sets.read(folder, "train", ("text", "label"))
    assert names == ["even", "odd"]
    assert sorted(zip((text.decode() for text in table["text"]), table["label"])) == sorted(
        (row["text"], row["label"]) for row in ROWS
    )


def test_two_reads_have_one_order(tmp_path):
    folder = write_set(tmp_path, "text", {"train": ROWS}, ["even", "odd"], "tfrecord")
    assert sets.read(folder, "train", ("text", "label")) == sets.read(folder, "train", ("text", "label"))


def test_what_a_set_lacks_is_refused(tmp_path):
    folder = write_set(tmp_path, "text", {"train": ROWS}, ["even", "odd"])
    with pytest.raises(UserError, match=r"no column 'image'; it has (label, text|text, label)$"):
        sets.read(folder, "train", ("image", "label"))
    with pytest.raises(UserError, match="no split 'test'; it has train"):
        sets.read(folder, "test", ("text", "label"))


def test_labels_that_are_no_classes_are_refused(tmp_path):
    folder = write_set(tmp_path, "text", {"train": ROWS}, None)
    with pytest.raises(UserError, match=r"'label' is .*; a ClassLabel is needed"):
        sets.read(folder, "train", ("text", "label"))


@pytest.mark.parametrize(
    "rows, names, message",
    [
        (
            [{"text": "a", "label": 0}, {"text": "b", "label": -1}],
            ["x", "y"],
            "row 1: label -1; it should be from 0 to 1",
        ),
        ([{"text": "a", "label": 0}], ["x"], "has 1 class; two are needed"),
    ],
)
def test_labels_that_cannot_be_trained_on_are_refused(tmp_path, rows, names, message):
    folder = write_set(tmp_path, "text", {"train": rows}, names)
    with pytest.raises(UserError, match=message):
        sets.read(folder, "train", ("text", "label"))


def test_a_set_that_is_broken_is_refused(tmp_path):
    folder = write_set(tmp_path, "text", {"train": ROWS}, ["even", "odd"], "tfrecord")
    (data,) = folder.glob("*train*")
    data.write_bytes(data.read_bytes()[:-10])
    with pytest.raises(UserError, match="split 'train' cannot be read"):
        sets.read(folder, "train", ("text", "label"))
    (folder / "dataset_info.json").write_text("{")
    with pytest.raises(UserError, match="TFDS cannot read it"):
        sets.read(folder, "train", ("text", "label"))


def test_find_takes_a_name_or_a_folder(tmp_path):
    folder = write_set(tmp_path, "text", {"train": ROWS}, ["even", "odd"])
    assert sets.find(str(folder), {}) == folder
    found = sets.find("fashion", {"fashion": "fashion_mnist_subset/1.0.0"})
    assert (found / "dataset_info.json").is_file()


def test_find_says_what_ships_and_what_a_folder_needs(tmp_path):
    with pytest.raises(UserError, match=r"--dataset=absent: neither a data set that ships \(a, b\) nor a folder"):
        sets.find("absent", {"a": "a/1.0.0", "b": "b/1.0.0"})
    with pytest.raises(UserError, match=r"no dataset_info\.json in it"):
        sets.find(str(tmp_path), {})
