import hashlib
import json
import math
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys

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
    assert all(re.fullmatch(r"\d{8}-\d{6}(-\d)?", path.name) for path in paths)


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
    assert sorted(os.listdir(run.path)) == [".lock", "results.json"]


CONFIG = {"experiment": "cnn", "flags": {}, "recipe": {}, "network": {}, "inputs": {}, "label_names": ["a"]}


def begin(path: pathlib.Path, *files: str, config=CONFIG) -> RunDirectory:
    """What a run leaves that was begun."""
    run = RunDirectory(path, "cnn")
    run.write_json("config.json", config)
    for name in files:
        (path / name).write_text("{}")
    run.close()
    return run


def test_what_stands_at_a_path_is_told(tmp_path):
    path = tmp_path / "run"
    assert run_directory.state(path) == "new"
    path.mkdir()
    assert run_directory.state(path) == "new"
    (path / "tokenizer").mkdir()
    assert run_directory.state(path) == "used"
    (path / ".lock").write_text("")  # a run that was killed in its first seconds
    assert run_directory.state(path) == "new"
    (path / "notes.txt").write_text("")
    assert run_directory.state(path) == "used"
    (path / "config.json").write_text("{}")
    assert run_directory.state(path) == "resumable"
    (path / "results.json").write_text("{}")
    assert run_directory.state(path) == "finished"
    assert run_directory.state(path / "notes.txt") == "used"


@pytest.mark.parametrize("files, state", [([], "resumable"), (["results.json"], "finished")])
def test_a_run_that_stands_there_goes_on_or_is_refused(tmp_path, files, state):
    path = tmp_path / "run"
    begin(path, *files)
    with pytest.raises(UserError, match="it holds a run already, and --resume=never; give a new or an empty folder"):
        RunDirectory(path, "cnn", resume="never")
    (path / "checkpoints").mkdir()
    (path / "checkpoints" / ".step-00000003.partial").mkdir()
    run = RunDirectory(path, "cnn", resume="auto")
    assert run.state == state and run.config == CONFIG
    assert os.listdir(path / "checkpoints") == []  # what a killed save left is gone


def test_a_run_that_was_killed_before_its_config_begins_anew(tmp_path):
    RunDirectory(tmp_path / "run", "cnn").close()
    assert RunDirectory(tmp_path / "run", "cnn", resume="never").state == "new"


def test_a_run_is_opened_to_read(tmp_path):
    begin(tmp_path / "run", "results.json")
    training = RunDirectory(tmp_path / "run", "cnn", resume="auto")
    run = RunDirectory.open(tmp_path / "run")
    assert (run.path, run.state, run.config) == (training.path, "finished", CONFIG)
    run.close()
    with pytest.raises(UserError, match="in use by process"):
        RunDirectory(tmp_path / "run", "cnn", resume="auto")
    training.close()
    RunDirectory(tmp_path / "run", "cnn", resume="auto")


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "no run stands there: it has no config.json"),
        ("", "config.json cannot be read: no JSON"),
        ("[" * 100_000, "config.json cannot be read: no JSON"),
        ("\udcff", "config.json cannot be read: no JSON"),
        ("[]", "config.json is not a run's: experiment is missing or no text"),
        (json.dumps(CONFIG | {"network": []}), "config.json is not a run's: network is missing or no object"),
        (
            json.dumps(CONFIG | {"label_names": ["a", 1]}),
            "config.json is not a run's: label_names holds more than texts",
        ),
    ],
)
def test_a_folder_that_is_no_run_is_not_opened(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(content, errors="surrogateescape")
    with pytest.raises(UserError) as error:
        RunDirectory.open(tmp_path)
    assert str(error.value) == f"--run_dir={tmp_path}: {message}"


def test_a_folder_that_is_absent_or_a_device_for_config_is_not_opened(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        RunDirectory.open(tmp_path / "none")
    assert os.listdir(tmp_path) == []
    (tmp_path / "config.json").symlink_to("/dev/zero")
    with pytest.raises(UserError, match=r"config\.json cannot be read: not a regular file"):
        RunDirectory.open(tmp_path)


HOLDER = """
import sys, time
from tftrain.run_directory import RunDirectory
run = RunDirectory(sys.argv[1], "cnn", resume="auto")
print("ready", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_and_a_kill_leaves_no_lock(tmp_path):
    begin(tmp_path / "run")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path / "run"], stdout=subprocess.PIPE, text=True, cwd=helpers.ROOT
    )
    assert holder.stdout.readline() == "ready\n"
    message = rf"in use by process {holder.pid} on .+, begun 20.+; wait for its end, or give another folder"
    for attempt in (
        lambda: run_directory.check(tmp_path / "run", resume="auto"),
        lambda: RunDirectory(tmp_path / "run", "cnn", resume="auto"),
    ):
        with pytest.raises(UserError, match=message):
            attempt()
    RunDirectory.open(tmp_path / "run")
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    RunDirectory(tmp_path / "run", "cnn", resume="auto")


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, capfd):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    RunDirectory(tmp_path / "run", "cnn")
    (line,) = capfd.readouterr().err.splitlines()
    assert "has no locks (Function not implemented): see to it that no second process trains there" in line


def test_links_in_a_stranger_s_folder_lead_nowhere(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    path = tmp_path / "run"
    begin(path)
    (path / ".results.json.partial").symlink_to(precious)
    run = RunDirectory(path, "cnn", resume="auto")
    run.write_json("results.json", {})
    run.close()
    (path / ".lock").unlink()
    (path / ".lock").symlink_to(precious)
    with pytest.raises(UserError, match="cannot be written to: Too many levels of symbolic links"):
        RunDirectory(path, "cnn", resume="auto")
    assert precious.read_text() == "mine"
    assert not (path / "results.json").is_symlink()


def test_a_disk_that_is_full_gives_one_line(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    run = begin(tmp_path / "run", "results.json")
    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(UserError, match=r"results\.json cannot be written: No space left on device"):
        run.write_json("results.json", {"steps": 1})
    assert (run.path / "results.json").read_text() == "{}"
    assert sorted(os.listdir(run.path)) == [".lock", "config.json", "results.json"]


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path):
    run = RunDirectory(tmp_path / "run", "cnn")
    run.write_json("results.json", {"steps": 1})
    with pytest.raises(TypeError):
        run.write_json("results.json", {"steps": object()})
    assert json.loads((run.path / "results.json").read_text()) == {"steps": 1}


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
