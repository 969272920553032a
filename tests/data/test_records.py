import os
import pathlib
import threading

import numpy as np
import pytest

from tests.data.sets_on_disk import write_set
from tftrain.data import records
from tftrain.data.records import Part, RecordError, Records

COUNT = 9


@pytest.fixture(scope="module", params=["array_record", "tfrecord"])
def written(request, tmp_path_factory):
    """A set's one file, and whether it is ArrayRecord."""
    rows = [{"text": f"text {i}", "label": i % 3} for i in range(COUNT)]
    parent = tmp_path_factory.mktemp(request.param)
    folder = write_set(parent, "text", {"train": rows}, ["a", "b", "c"], request.param)
    (file,) = folder.glob("tiny-train*")
    return file, request.param == "array_record"


def texts(found: Records, rows) -> list[str]:
    from tensorflow.core.example import example_pb2

    examples = [example_pb2.Example.FromString(found[row]) for row in rows]
    return [example.features.feature["text"].bytes_list.value[0].decode() for example in examples]


def test_records_are_read_by_number_in_any_order(written):
    file, array_record = written
    found = Records([Part(str(file), 0, COUNT)], array_record)
    assert len(found) == COUNT
    whole = texts(found, range(COUNT))
    assert sorted(whole) == [f"text {i}" for i in range(COUNT)]
    assert texts(found, [7, 0, 8, 0]) == [whole[row] for row in (7, 0, 8, 0)]


def test_parts_stand_one_after_the_other(written):
    file, array_record = written
    whole = texts(Records([Part(str(file), 0, COUNT)], array_record), range(COUNT))
    parts = Records([Part(str(file), 6, 3), Part(str(file), 1, 2)], array_record)
    assert texts(parts, range(5)) == whole[6:9] + whole[1:3]
    expected = [int(text.split()[1]) % 3 for text in whole[6:9] + whole[1:3]]
    assert parts.labels("label").tolist() == expected


def test_labels_are_remembered_until_a_file_changes(written, tmp_path, monkeypatch):
    file, array_record = written
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    parts = [Part(str(file), 0, COUNT)]
    first = Records(parts, array_record).labels("label")
    monkeypatch.setattr(Records, "_find_labels", lambda self, column: pytest.fail("read again"))
    np.testing.assert_array_equal(Records(parts, array_record).labels("label"), first)
    for kept in pathlib.Path(tmp_path).rglob("*.npz"):
        kept.write_bytes(b"damaged")
    with pytest.raises(pytest.fail.Exception, match="read again"):
        Records(parts, array_record).labels("label")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    os.utime(file)
    np.testing.assert_array_equal(Records(parts, array_record).labels("label"), first)


def test_threads_read_at_the_same_time(written):
    file, array_record = written
    found = Records([Part(str(file), 0, COUNT)], array_record)
    expected = [found[row] for row in range(COUNT)]
    wrong = []

    def read():
        wrong.extend(row for row in [*range(COUNT)] * 50 if found[row] != expected[row])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_more_records_than_there_are_is_refused(written):
    file, array_record = written
    with pytest.raises(RecordError, match=f"has {COUNT} records; {COUNT + 1} are due"):
        Records([Part(str(file), 1, COUNT)], array_record)


def test_a_file_that_is_damaged_is_refused(written, tmp_path):
    file, array_record = written
    copy = tmp_path / file.name
    for kept in (5, file.stat().st_size - 3):
        copy.write_bytes(file.read_bytes()[:kept])
        with pytest.raises(RecordError, match=file.name):
            Records([Part(str(copy), 0, COUNT)], array_record).labels("label")
    with pytest.raises(RecordError, match="No such file"):
        Records([Part(str(tmp_path / "absent"), 0, 1)], array_record)


def test_a_changed_byte_is_noticed_when_the_labels_are_read(written, tmp_path):
    file, array_record = written
    content = bytearray(file.read_bytes())
    content[content.index(b"text 4") + 5] ^= 1
    copy = tmp_path / file.name
    copy.write_bytes(content)
    with pytest.raises(RecordError, match=file.name):
        Records([Part(str(copy), 0, COUNT)], array_record).labels("label")


def test_a_column_that_is_not_there_is_refused(written):
    file, array_record = written
    with pytest.raises(RecordError, match="absent"):
        Records([Part(str(file), 0, COUNT)], array_record).labels("absent")


def test_the_starts_of_an_empty_file_are_none(tmp_path):
    file = tmp_path / "empty"
    file.touch()
    assert len(records.Records([Part(str(file), 0, 0)], False)) == 0
