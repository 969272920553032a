import hashlib
import json
import math
import os
import struct

import numpy as np
import pytest
import tensorflow as tf

from tests import helpers
from tftrain import run_directory
from tftrain.errors import UserError
from tftrain.run_directory import RunDirectory


@pytest.mark.parametrize("make", [False, True])
def test_an_absent_or_an_empty_folder_is_taken(tmp_path, make):
    path = tmp_path / "a" / "run"
    if make:
        path.mkdir(parents=True)
    assert RunDirectory(path, "cnn").path == path
    assert path.is_dir()


def test_a_folder_that_holds_files_is_refused(tmp_path):
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(UserError, match="holds files already; give a new or an empty folder"):
        RunDirectory(tmp_path, "cnn")
    assert os.listdir(tmp_path) == ["results.json"]


def test_a_file_in_its_place_or_above_it_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UserError, match="this is a file; a folder is needed"):
        RunDirectory(file, "cnn")
    with pytest.raises(UserError, match="the folder cannot be made: Not a directory"):
        RunDirectory(file / "run", "cnn")


def test_runs_without_a_name_get_one_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [RunDirectory(None, "bert").path for _ in range(3)]
    assert len(set(paths)) == 3
    assert all(path.parent.as_posix() == "runs/bert" and path.is_dir() for path in paths)


def test_json_is_written_whole_and_strict(tmp_path):
    run = RunDirectory(tmp_path / "run", "cnn")
    values = {
        "name": "é",
        "loss": math.nan,
        "rates": [1.5, math.inf, (2, -math.inf)],
        "none": None,
        "deep": {"x": math.nan},
    }
    run.write_json("results.json", values)
    expected = {"name": "é", "loss": None, "rates": [1.5, None, [2, None]], "none": None, "deep": {"x": None}}
    assert helpers.read_json(run.path / "results.json") == expected
    assert os.listdir(run.path) == ["results.json"]


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path):
    run = RunDirectory(tmp_path / "run", "cnn")
    run.write_json("results.json", {"steps": 1})
    with pytest.raises(TypeError):
        run.write_json("results.json", {"steps": object()})
    assert json.loads((run.path / "results.json").read_text()) == {"steps": 1}


def test_a_checkpoint_comes_back(tmp_path):
    run = RunDirectory(tmp_path / "run", "cnn")
    variable = tf.Variable([1.0, 2.0])
    path = run.save_checkpoint(tf.train.Checkpoint(v=variable), 12)
    assert path == run.path / "checkpoints" / "step-00000012"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    variable.assign([0.0, 0.0])
    tf.train.Checkpoint(v=variable).read(str(path / "state")).assert_consumed()
    assert variable.numpy().tolist() == [1.0, 2.0]


def test_the_hash_is_over_float32_bytes_in_order():
    weights = [tf.Variable([[1.0, -2.5]]), tf.Variable(3, dtype=tf.int64), tf.Variable([0.5], dtype=tf.float16)]
    expected = hashlib.sha256(struct.pack("<4f", 1.0, -2.5, 3.0, 0.5)).hexdigest()
    assert run_directory.weights_sha256(weights) == expected
    assert run_directory.weights_sha256(weights[::-1]) != expected


def test_the_hash_is_the_same_for_mirrored_weights():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    with helpers.start(2).strategy.scope():
        mirrored = tf.Variable(values)
    assert run_directory.weights_sha256([mirrored]) == hashlib.sha256(values.tobytes()).hexdigest()


def test_versions_name_what_decides_results():
    found = run_directory.versions()
    assert found["tensorflow"] == tf.__version__
    assert found["numpy"] == np.__version__
    assert set(found) >= {"python", "tftrain", "tf-keras", "transformers"}
