import json

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.data.sets_on_disk import write_set
from tftrain.configuration import DataSource
from tftrain.data import chinese_reviews, corpus
from tftrain.data.tables import Columns
from tftrain.errors import UserError

NONE = Columns()


def read(wanted=NONE, label_names=None, empty_cells="refuse", seed=0, **source):
    source = DataSource(
        **{name: str(value) if name.endswith(("data", "dataset")) else value for name, value in source.items()}
    )
    found = corpus.find(source)
    return corpus.read(found, source, wanted, empty_cells=empty_cells, seed=seed, label_names=label_names)


def write(path, rows: list[tuple], columns=("text", "label")):
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in [columns, *rows]), encoding="utf-8")
    return path


def test_two_files_give_two_parts_and_one_mapping(tmp_path):
    train = write(tmp_path / "a.tsv", [("x", "3"), ("y", "1.0"), ("z", "2")])
    test = write(tmp_path / "b.tsv", [("u", "1"), ("v", "3.0")])
    found = read(train_data=train, test_data=test)
    assert found.label_names == ["1", "2", "3"]
    assert (found.train.texts, found.train.labels.tolist()) == (["x", "y", "z"], [2, 0, 1])
    assert (found.test.texts, found.test.labels.tolist()) == (["u", "v"], [0, 2])
    assert found.train.labels.dtype == np.int32 and found.train.pairs is None
    notes = dict(found.notes)
    assert notes["columns"] == f"text 'text', label 'label' of {train} and {test}"
    assert notes["labels"] == "0 = 1, 1 = 2, 2 = 3"


def test_a_folder_gives_its_two_files(tmp_path):
    write(tmp_path / "train.tsv", [("x", "good"), ("y", "bad")])
    write(tmp_path / "dev.tsv", [("z", "good")])
    found = read(dataset=str(tmp_path))
    assert (found.test.texts, found.test.labels.tolist(), found.label_names) == (["z"], [1], ["bad", "good"])


def test_a_part_of_one_file_is_held_out_by_class_and_seed(tmp_path):
    file = write(tmp_path / "a.tsv", [(f"t{i}", i % 4 == 0) for i in range(200)])
    one, again, other = (read(dataset=str(file), hold_out=0.2, seed=seed) for seed in (1, 1, 2))
    assert sorted(one.train.texts + one.test.texts) == sorted(f"t{i}" for i in range(200))
    assert np.bincount(one.test.labels).tolist() == [30, 10]
    assert one.label_names == ["False", "True"]
    assert one.test.texts == again.test.texts != other.test.texts
    assert dict(one.notes)["held out"] == "40 of 200 texts to test on, 0.2 of each class"
    assert len(read(train_data=file).test.texts) == 20


def test_pairs_are_read_and_held_out_together(tmp_path):
    file = write(
        tmp_path / "a.tsv", [(f"a{i}", f"b{i}", i % 2) for i in range(40)], ("sentence1", "sentence2", "label")
    )
    found = read(dataset=str(file))
    assert found.columns == Columns("sentence1", "sentence2", "label")
    for part in (found.train, found.test):
        assert [text.replace("a", "b") for text in part.texts] == part.pairs
    assert dict(found.notes)["columns"].startswith("text 'sentence1' and 'sentence2', label 'label' of ")


def test_the_test_file_has_the_columns_of_the_training_file(tmp_path):
    train = write(tmp_path / "a.tsv", [("x", "0"), ("y", "1")], ("body", "label"))
    test = write(tmp_path / "b.tsv", [("x", "0")])
    with pytest.raises(UserError, match=r"b.tsv: no body column: it has no 'body', but 'text', 'label'"):
        read(Columns(text="body"), train_data=train, test_data=test)


def test_a_label_that_training_has_not_is_refused_with_file_and_line(tmp_path):
    train = write(tmp_path / "a.tsv", [("x", "0"), ("y", "1")])
    test = write(tmp_path / "b.tsv", [("x", "0"), ("z", "-1")])
    with pytest.raises(UserError, match=r"b.tsv, line 3: label '-1' is not among the training labels: 0, 1"):
        read(train_data=train, test_data=test)


def test_rows_with_empty_cells_are_named_where_they_are_dropped(tmp_path):
    file = write(tmp_path / "a.tsv", [("x", "0"), (" ", "1"), *[("y", "1"), ("z", "0")] * 5])
    with pytest.raises(UserError, match=r"a.tsv: an empty text or label in 1 row: line 3;"):
        read(dataset=str(file))
    found = read(dataset=str(file), empty_cells="drop")
    assert dict(found.notes)["left out"] == f"{file}: an empty text or label in 1 row: line 3"
    assert len(found.train.texts) + len(found.test.texts) == 11


def test_a_trained_network_s_classes_are_used_again(tmp_path):
    train = write(tmp_path / "a.tsv", [("x", "0"), ("y", "0")])
    test = write(tmp_path / "b.tsv", [("u", "2"), ("v", "0")])
    found = read(train_data=train, test_data=test, label_names=["2", "1", "0"])
    assert found.train is None
    assert found.test.labels.tolist() == [0, 2]


@pytest.mark.parametrize(
    "flag, value", [("train_split", "train[:9]"), ("test_split", "test"), ("tfds_dir", "/tmp"), ("hold_out", 0.1)]
)
def test_flags_that_files_have_no_use_for_are_refused(tmp_path, flag, value):
    write(tmp_path / "train.tsv", [("x", "0")])
    write(tmp_path / "test.tsv", [("x", "0")])
    with pytest.raises(UserError, match=f"--{flag}="):
        corpus.find(DataSource(dataset=str(tmp_path), **{flag: value}))


def test_a_tfds_set_keeps_the_names_of_its_classes(tmp_path):
    rows = [{"text": "a", "label": 0}, {"text": "é", "label": 1}]
    folder = write_set(tmp_path, "text", {"train": rows, "test": rows[:1]}, ["01", "02"])
    found = read(dataset=str(folder))
    assert (found.label_names, found.train.texts, found.train.labels.tolist()) == (["01", "02"], ["a", "é"], [0, 1])
    assert found.test.texts == ["a"]


def write_pairs(folder, splits: dict):
    """A TFDS set with the columns of GLUE's QNLI."""
    texts = tfds.features.Text()
    tfds.dataset_builders.store_as_tfds_dataset(
        name="tiny",
        version="1.0.0",
        data_dir=folder,
        features=tfds.features.FeaturesDict(
            {"question": texts, "sentence": texts, "answer": tfds.features.ClassLabel(names=["no", "yes"])}
        ),
        split_datasets={
            split: [(str(i), {"question": f"q{i}", "sentence": f"s{i}", "answer": i % 2}) for i in rows]
            for split, rows in splits.items()
        },
        disable_shuffling=True,
    )
    return folder / "tiny" / "1.0.0"


def test_a_tfds_set_gives_pairs_of_the_splits_asked_for(tmp_path):
    folder = write_pairs(tmp_path, {"train": range(10), "validation": range(10, 14)})
    found = read(dataset=folder, train_split="train[:60%]", wanted=Columns(label="answer"))
    assert sorted(found.train.texts) == [f"q{i}" for i in range(6)]
    assert [text.replace("q", "s") for text in found.test.texts] == found.test.pairs
    assert sorted(found.test.pairs) == [f"s{i}" for i in range(10, 14)]
    assert found.columns == Columns("question", "sentence", "answer")
    for text, label in zip(found.train.texts, found.train.labels):
        assert int(text[1:]) % 2 == label


def test_a_tfds_set_without_a_test_part_has_some_held_out(tmp_path):
    folder = write_pairs(tmp_path, {"train": range(20)})
    found = read(dataset=folder, hold_out=0.2, wanted=Columns(label="answer"))
    assert np.bincount(found.test.labels).tolist() == [2, 2]
    assert sorted(found.train.texts + found.test.texts) == sorted(f"q{i}" for i in range(20))
    assert "4 of 20 texts" in dict(found.notes)["held out"]


def test_classes_other_than_the_training_s_are_refused(tmp_path):
    folder = write_pairs(tmp_path, {"train": range(4), "test": range(4)})
    with pytest.raises(UserError, match="its classes are no, yes; those of the training were a, b"):
        read(dataset=folder, wanted=Columns(label="answer"), label_names=["a", "b"])


@pytest.mark.parametrize(
    "feature, value, found",
    [
        (tfds.features.Text(), b"\xff bad", "split 'train', row 1: no UTF-8 text"),
        (tfds.features.Scalar(np.int64), 7, "its column 'text' holds a int; a string is needed"),
    ],
)
def test_a_column_that_holds_no_texts_is_refused(tmp_path, feature, value, found):
    rows = [{"text": "fine" if value != 7 else 7, "label": 0}, {"text": value, "label": 1}]
    folder = write_set(tmp_path, "text", {"train": rows, "test": rows}, ["a", "b"], feature=feature)
    with pytest.raises(UserError, match=found):
        read(dataset=str(folder))


def test_the_chinese_reviews_are_divided_after_duplicates_are_dropped(tmp_path, monkeypatch):
    (tmp_path / "sentiment").mkdir()
    for name, letter in (("neg", "坏"), ("pos", "好")):
        lines = [f"{letter}{chr(0x4E00 + i)}\n" for i in range(30)] * 2
        (tmp_path / "sentiment" / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    monkeypatch.setattr(chinese_reviews, "find", lambda: tmp_path)
    found, other = (read(dataset="chinese_reviews", seed=seed) for seed in (0, 1))
    assert found.test.texts == other.test.texts  # the split is the set's own
    assert not set(found.test.texts) & set(found.train.texts)
    assert np.bincount(found.test.labels).tolist() == [3, 3]
    assert [text[0] for text in found.test.texts] == ["坏好"[label] for label in found.test.labels]
    assert found.label_names == ["negative", "positive"]
    assert dict(found.notes)["reviews"].startswith("120 lines; left out: 0 that stand in both classes, 60 duplicates")


def test_a_table_s_words_reach_the_network_s_classes(tmp_path):
    file = tmp_path / "a.jsonl"
    rows = [{"review": "x", "labels": label} for label in (1, 1.0, 0, 0.0)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read(dataset=str(file), hold_out=0.5)
    assert found.label_names == ["0", "1"]
    assert np.bincount(found.train.labels).tolist() == np.bincount(found.test.labels).tolist() == [1, 1]
