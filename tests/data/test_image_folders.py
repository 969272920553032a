import json
import os
import time

import numpy as np
import pytest
from PIL import Image

from tftrain.configuration import DataSource
from tftrain.data import decoding, image_checks, image_folders
from tftrain.errors import UserError


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Each test has a memory of its own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def write_images(folder, **counts):
    """Class folders with so many small PNGs each; returns the folder."""
    for label, (name, count) in enumerate(counts.items()):
        for i in range(count):
            path = folder / name / f"{i:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (10, 8), (i, 100 * label, 0)).save(path)
    return folder


def read(folder, seed=0, bad_files="refuse", **source):
    return image_folders.read(DataSource(dataset=os.fspath(folder), **source), seed, bad_files)


def refused(folder, **options) -> str:
    with pytest.raises(UserError) as caught:
        read(folder, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def names(part) -> list[str]:
    return [os.fspath(file) for file in part.files]


def test_train_and_test_folders(tmp_path):
    write_images(tmp_path / "train", tulip=2, rose=3)
    write_images(tmp_path / "test", rose=1, tulip=1)
    found = read(tmp_path)
    assert found.label_names == ["rose", "tulip"]
    assert names(found.train) == [f"rose/00{i}.png" for i in range(3)] + ["tulip/000.png", "tulip/001.png"]
    assert found.train.labels.tolist() == [0, 0, 0, 1, 1] and found.train.labels.dtype == np.int32
    assert found.test.labels.tolist() == [0, 1]
    assert found.train.facts.tolist() == [[10, 8, 3]] * 5
    assert found.train.name(3) == str(tmp_path / "train/tulip/000.png")
    # The first class written is tulip, which has no green.
    assert decoding.decode(found.train.read(4), 3)[0, 0].tolist() == [1, 0, 0]
    assert found.skipped == []


@pytest.mark.parametrize("name", ["validation", "val", "Test"])
def test_the_test_part_has_several_names(tmp_path, name):
    write_images(tmp_path / "Train", a=2, b=2)
    write_images(tmp_path / name, a=1, b=2)
    assert len(read(tmp_path).test.files) == 3


def test_a_test_folder_without_labels_gives_way_to_validation(tmp_path):
    write_images(tmp_path / "train", a=2, b=2)
    write_images(tmp_path / "val", a=1, b=2)
    write_images(tmp_path, test=3)
    found = read(tmp_path)
    assert len(found.test.files) == 3 and ("test data", str(tmp_path / "val")) in found.notes


def test_two_places(tmp_path):
    one, two = write_images(tmp_path / "x", a=2, b=2), write_images(tmp_path / "y", a=1, b=1)
    found = image_folders.read(DataSource(train_data=str(one), test_data=str(two)), 0)
    assert len(found.train.files) == 4 and found.test.root == str(two)
    with pytest.raises(UserError, match="holds test, train and no classes; give --dataset="):
        write_images(tmp_path / "z/train", a=1, b=1)
        write_images(tmp_path / "z/test", a=1, b=1)
        image_folders.read(DataSource(train_data=str(tmp_path / "z")), 0)


def test_a_part_of_each_class_is_held_out_by_the_seed(tmp_path):
    write_images(tmp_path, a=40, b=20, c=2)
    found = read(tmp_path, seed=1)
    assert np.bincount(found.test.labels).tolist() == [4, 2, 1]
    every = [f"{name}/{i:03}.png" for name, count in (("a", 40), ("b", 20), ("c", 2)) for i in range(count)]
    assert sorted(names(found.train) + names(found.test)) == every
    assert names(read(tmp_path, seed=1).test) == names(found.test)
    assert names(read(tmp_path, seed=2).test) != names(found.test)
    assert np.bincount(read(tmp_path, hold_out=0.5).test.labels).tolist() == [20, 10, 1]
    # One image more changes nearly nothing.
    Image.new("L", (4, 4)).save(tmp_path / "a" / "new.png")
    assert len(set(names(read(tmp_path, seed=1).test)) - set(names(found.test))) <= 1


def test_a_train_folder_alone_has_its_test_part_held_out(tmp_path):
    write_images(tmp_path / "train", a=10, b=10)
    found = read(tmp_path)
    assert len(found.train.files) == 18 and found.train.root == str(tmp_path / "train")


def test_train_can_be_a_class(tmp_path):
    write_images(tmp_path, car=2, train=2)
    assert read(tmp_path).label_names == ["car", "train"]


def test_hidden_files_and_folders_are_neither_classes_nor_images(tmp_path):
    write_images(tmp_path / "train", b=1, a=1)
    write_images(tmp_path / "test", a=1, b=1)
    for place in ("train", "test", "train/a", "test/b"):
        (tmp_path / place / ".ipynb_checkpoints").mkdir()
        (tmp_path / place / ".ipynb_checkpoints" / "x-checkpoint.png").write_bytes(b"")
        (tmp_path / place / "__MACOSX").mkdir()
        for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
            (tmp_path / place / name).write_bytes(b"\0\0\0\1Bud1")
    found = read(tmp_path)
    assert found.label_names == ["a", "b"]
    assert names(found.train) == names(found.test) == ["a/000.png", "b/000.png"]


def test_classes_come_from_the_training_folder_by_name(tmp_path):
    write_images(tmp_path / "train", c=1, a=1, b=1)
    write_images(tmp_path / "test", c=1)
    found = read(tmp_path)
    assert found.label_names == ["a", "b", "c"] and found.test.labels.tolist() == [2]
    assert ("note", "no test images of a, b") in found.notes
    write_images(tmp_path / "test", d=1)
    assert f"--dataset={tmp_path}/test: its class 'd' is not one of the 3 in" in refused(tmp_path)


def test_folders_inside_a_class_are_walked_and_loops_end(tmp_path):
    write_images(tmp_path, a=2, b=2)
    inner = tmp_path / "a" / "2024" / "may"
    inner.mkdir(parents=True)
    Image.new("L", (4, 4)).save(inner / "deep.png")
    (inner / "up").symlink_to(tmp_path / "a")
    (inner / "self").symlink_to(inner)
    (tmp_path / "b" / "more").symlink_to(inner)
    found = read(tmp_path, hold_out=0.3)
    both = names(found.train) + names(found.test)
    assert sorted(name for name in both if "deep" in name) == ["a/2024/may/deep.png", "b/more/deep.png"]
    assert len(both) == len(set(both)) == 8  # b/more/up leads to the files of a once more


@pytest.mark.parametrize("name", [b"new\nline.png", b"latin-\xe9.png", "ünï ✓.png".encode(), b"-dash \\ %s {}.png"])
def test_any_file_name_is_read_and_shown_on_one_line(tmp_path, name):
    write_images(tmp_path / "train", a=2, b=2)
    write_images(tmp_path / "test", a=1, b=1)
    odd = os.path.join(os.fsencode(tmp_path), b"train", b"class \xff", name)
    os.mkdir(os.path.dirname(odd))
    with open(odd, "wb") as file:
        Image.new("L", (4, 4), 9).save(file, "PNG")
    found = read(tmp_path)
    assert found.label_names == ["a", "b", r"class \xff"]
    assert decoding.decode(found.train.read(4), 1)[0, 0, 0] == 9
    json.dumps(found.label_names, ensure_ascii=False).encode()
    assert found.train.name(4).isprintable()
    with open(odd, "wb") as file:
        file.write(b"no")
    message = refused(tmp_path)
    assert message.isprintable() and message.encode() and r"class \xff/" in message


def write_bad_files(folder):
    """Two classes with images under wrong names, and five files that are none."""
    write_images(folder, cat=3, dog=3)
    (folder / "cat" / "000.png").rename(folder / "cat" / "png named.jpg")
    (folder / "cat" / "empty.jpg").write_bytes(b"")
    (folder / "cat" / "text.png").write_text("not an image")
    Image.effect_noise((200, 200), 50).save(folder / "dog" / "cut.jpg")
    (folder / "dog" / "cut.jpg").write_bytes((folder / "dog" / "cut.jpg").read_bytes()[:5000])
    (folder / "dog" / "lost.png").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "dog" / "pipe.png")
    return folder


def test_bad_files_are_refused_with_the_first_and_their_number(tmp_path):
    message = refused(write_bad_files(tmp_path))
    assert message == (
        f"--dataset={tmp_path}: 5 of 11 files cannot be read as images; the first is {tmp_path}/cat/empty.jpg: "
        "an empty file; mend or remove them, or give --bad_files=skip"
    )


def test_bad_files_are_skipped_with_their_reasons(tmp_path):
    found = read(write_bad_files(tmp_path), bad_files="skip", hold_out=0.3)
    assert len(found.train.files) + len(found.test.files) == 6
    assert "cat/png named.jpg" in names(found.train) + names(found.test)
    assert ("skipped", "5 of 11 files, which cannot be read as images") in found.notes
    reasons = {os.path.basename(path): reason for path, reason in found.skipped}
    assert reasons["empty.jpg"] == "an empty file"
    assert reasons["text.png"].startswith("not an image by its content")
    assert "truncated" in reasons["cut.jpg"]
    assert reasons["lost.png"] == "cannot be read (No such file or directory)"
    assert reasons["pipe.png"] == "not a regular file"


def test_what_cannot_be_divided_is_refused_with_the_counts(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert refused(empty) == (
        f"--dataset={empty}: 0 class folders and 0 files beside; at least two class folders are needed, "
        "each with images"
    )
    one = write_images(tmp_path / "one", a=3)
    (one / "b.png").write_bytes(b"")
    assert "1 class folder and 1 files beside; at least two class folders" in refused(one)
    assert f"did you mean {tmp_path}/nested/flowers, with 2 folders?" in refused(
        write_images(tmp_path / "nested/flowers", a=1, b=1).parent
    )
    three = write_images(tmp_path / "three", a=2, b=1)
    assert "3 images in 2 classes are too few to hold 10% out: 'b' has 1, and each class needs 2" in refused(three)
    (three / "c").mkdir()
    assert "3 images in 3 class folders, and none in 'c'" in refused(three)
    assert "not there; a folder of class folders is needed" in refused(tmp_path / "absent")
    assert "a file; a folder of class folders" in refused(one / "b.png")
    both = write_images(tmp_path / "both/train", a=1, b=1).parent
    (both / "test").mkdir()
    assert f"--dataset={both}/test: no class folders in it" in refused(both)
    write_images(both / "test", a=1)
    assert "--hold_out=0.5:" in refused(both, hold_out=0.5)
    assert "--train_split=train: is for TFDS sets" in refused(both, train_split="train")


def count_reads(monkeypatch) -> list[str]:
    """The files that are inspected from now on."""
    seen = []
    inspect = image_checks._inspect

    def counted(root, file):
        seen.append(file)
        return inspect(root, file)

    monkeypatch.setattr(image_checks, "_inspect", counted)
    return seen


def test_findings_are_remembered_until_a_file_changes(tmp_path, monkeypatch, own_cache):
    write_images(tmp_path, a=3, b=3)
    (tmp_path / "a" / "bad.png").write_bytes(b"")
    first = read(tmp_path, bad_files="skip")
    seen = count_reads(monkeypatch)
    again = read(tmp_path, bad_files="skip")
    assert seen == []
    assert again.skipped == first.skipped and names(again.test) == names(first.test)
    np.testing.assert_array_equal(again.train.facts, first.train.facts)
    Image.new("L", (7, 5)).save(tmp_path / "a" / "bad.png")
    os.utime(tmp_path / "b" / "001.png", ns=(1, 1))
    found = read(tmp_path)
    assert sorted(seen) == ["a/bad.png", "b/001.png"]
    assert [7, 5, 1] in np.concatenate([found.train.facts, found.test.facts]).tolist()


@pytest.mark.parametrize("damage", [lambda data: data[:-7], lambda data: b"", lambda data: data.replace(b"10", b"11")])
def test_a_damaged_memory_is_as_good_as_none(tmp_path, monkeypatch, own_cache, damage):
    write_images(tmp_path, a=3, b=3)
    expected = read(tmp_path).train.facts.tolist()
    (memory,) = own_cache.glob("tftrain/images/*.json")
    memory.write_bytes(damage(memory.read_bytes()))
    seen = count_reads(monkeypatch)
    assert read(tmp_path).train.facts.tolist() == expected
    assert len(seen) == 6
    read(tmp_path)
    assert len(seen) == 6
    assert len(list(memory.parent.iterdir())) == 1


def test_no_place_for_the_memory_is_no_failure(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/none")
    assert len(read(write_images(tmp_path, a=3, b=3)).train.files) == 4


def test_what_the_system_refuses_is_tried_again(tmp_path, monkeypatch):
    write_images(tmp_path, a=3, b=3)
    monkeypatch.setattr(image_checks, "_inspect", lambda root, file: "cannot be read (Permission denied)")
    assert "6 of 6 files cannot be read" in refused(tmp_path)
    monkeypatch.undo()
    assert len(read(tmp_path).train.files) == 4


def test_a_second_start_with_many_files_is_quick(tmp_path):
    write_images(tmp_path, a=1, b=1)
    for name in ("a", "b"):
        for i in range(5000):
            os.link(tmp_path / name / "000.png", tmp_path / name / f"copy-{i}.png")
    read(tmp_path)
    started = time.monotonic()
    assert len(read(tmp_path).train.files) == 9002
    assert time.monotonic() - started < 5  # 0.3 s at rest
