import os
import subprocess
import sys

import pytest

from tests import helpers


def refused(*arguments: str, cwd=None) -> str:
    """Run a command that has to be refused; the one line that it says."""
    found = helpers.run_command(*arguments, cwd=cwd)
    assert found.returncode == 2, found.stderr
    assert found.stdout == ""
    lines = found.stderr.splitlines()
    assert len(lines) == 1, found.stderr
    assert lines[0].startswith("error: ")
    assert "Traceback" not in lines[0]
    return lines[0]


@pytest.mark.parametrize("command", ["tftrain.cnn", "tftrain.bert"])
def test_help_is_quick_and_grouped(command):
    times = []
    for _ in range(3):
        before = os.times()
        found = helpers.run_command(command, "--help")
        after = os.times()
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    # Processor time, and the least of three, since a machine that runs tests is busy with other things too.
    assert min(times) < 1
    assert found.returncode == 0 and found.stderr == ""
    for title in ("Hardware:", "Recipe:", "Run:", "Data:", "Network:"):
        assert f"\n{title}\n" in found.stdout
    for flag in ("gpus", "virtual_devices", "precision", "xla", "batch_size", "steps", "seed", "run_dir", "dataset"):
        assert f"--{flag}=" in found.stdout
    assert f"usage: python -m {command}" in found.stdout


def test_help_into_a_closed_pipe_ends_quietly():
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as closed:
        command = [sys.executable, "-m", "tftrain.cnn", "--help"]
        found = subprocess.run(command, cwd=helpers.ROOT, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("spelling", ["--help", "-h", "--helpshort"])
def test_help_imports_no_tensorflow(spelling):
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['tftrain.cnn', {spelling!r}]\n"
        "try:\n    runpy.run_module('tftrain.cnn', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end:\n    status = end.code\n"
        "print(status, 'tensorflow' in sys.modules, file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=helpers.ROOT, capture_output=True, text=True, timeout=60)
    assert found.stderr.strip() == "0 False"


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--xla", "False"], "--xla=False: "),
        (["--num-gpus=2"], "num-gpus"),
        (["--noflip=1"], "--noflip=1 does not take an argument"),
        (["--stderrthreshold=loud"], "loud"),
        (["--batchsize=2"], "batchsize"),
        (["stray"], "'stray'"),
        (["--steps=3", "more", "words"], "'more'"),
        (["--gpus=-1"], "--gpus=-1: "),
        (["--gpus=two"], "--gpus=two: "),
        (["--gpus=1.5"], "--gpus=1.5: "),
        (["--gpus="], "--gpus=: "),
        (["--gpus"], "gpus"),
        (["--virtual_devices=0"], "--virtual_devices=0: "),
        (["--gpus=2", "--virtual_devices=2"], "--gpus=2 with --virtual_devices=2"),
        (["--batch_size=0"], "--batch_size=0: "),
        (["--batch_size=99999999999999999999"], "--batch_size=99999999999999999999: should be below 2147483648"),
        (["--eval_batch_size=2147483648"], "--eval_batch_size=2147483648: should be below 2147483648"),
        (["--batch_size=-8"], "--batch_size=-8: "),
        (["--batch_size=many"], "--batch_size=many: "),
        (["--learning_rate=nan"], "--learning_rate=nan: "),
        (["--learning_rate=inf"], "--learning_rate=inf: "),
        (["--learning_rate=0"], "--learning_rate=0"),
        (["--learning_rate=fast"], "--learning_rate=fast: "),
        (["--epochs=0"], "--epochs=0: "),
        (["--clip_norm=0"], "--clip_norm=0.0: "),
        (["--checkpoint_every=often"], "--checkpoint_every=often: should be a number of steps, such as 500"),
        (["--patience=0"], "--patience=0: "),
        (["--epochs=2", "--steps=3"], "--epochs=2 and --steps=3"),
        (["--precision=float64"], "--precision=float64: "),
        (["--optimizer=lion"], "--optimizer=lion: "),
        (["--weight_decay=0.1", "--optimizer=adam"], "--weight_decay=0.1 with --optimizer=adam"),
        (["--warmup=1.5"], "--warmup=1.5: "),
        (["--label_smoothing=1"], "--label_smoothing=1.0: "),
        (["--seed=-1"], "--seed=-1: "),
        (["--dropout=1"], "--dropout=1.0: "),
        (["--dense_units=0"], "--dense_units=0: "),
        (["--filters=8,x"], "--filters=8,x: "),
        (["--filters=8,0"], "--filters=0: "),
        (["--dataset=~nobody-of-this-name"], "--dataset=~nobody-of-this-name: Could not determine home directory"),
        (["--dataset=absent"], "--dataset=absent: neither a data set that ships"),
        (["--dataset=/absent/folder"], "--dataset=/absent/folder: "),
    ],
)
def test_a_mistake_gets_one_line_that_names_flag_and_value(arguments, expected):
    # Each is found before TensorFlow starts, which takes seconds.
    assert expected in refused("tftrain.cnn", *arguments)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--hidden_size=10", "--heads=3"], "--hidden_size=10: should be a multiple of --heads=3"),
        (["--layers=0"], "--layers=0: "),
        (["--max_length=2"], "--max_length=2: "),
        (["--vocabulary_size=5"], "--vocabulary_size=5: "),
        (["--dropout=-0.1"], "--dropout=-0.1: "),
        (["--model="], "--model=: should not be empty"),
        (["--model=/absent/folder"], "--model=/absent/folder: no such folder"),
        (["--model=./absent"], "--model=./absent: no such folder"),
        (["--dataset=fashion_mnist_subset"], "--dataset=fashion_mnist_subset: neither a data set that ships"),
    ],
)
def test_a_mistake_in_bert_s_flags_gets_one_line(arguments, expected):
    assert expected in refused("tftrain.bert", *arguments)


@pytest.mark.parametrize(
    "files, config, expected",
    [
        ([], None, "no config.json in it (it is empty)"),
        (["vocab.txt"], '{"model_type": "bert"}', "no model.safetensors or tf_model.h5 in it"),
        (["vocab.txt", "pytorch_model.bin"], '{"model_type": "bert"}', "only pytorch_model.bin, a pickle"),
        (["vocab.txt", "model.safetensors"], '{"model_type": "roberta"}', "model_type 'roberta'; 'bert' is needed"),
        (["model.safetensors"], '{"model_type": "bert"}', "no tokenizer.json or vocab.txt in it"),
    ],
)
def test_a_model_folder_that_lacks_something_is_refused(tmp_path, files, config, expected):
    for name in files:
        (tmp_path / name).write_bytes(b"")
    if config:
        (tmp_path / "config.json").write_text(config)
    message = refused("tftrain.bert", f"--model={tmp_path}")
    assert f"--model={tmp_path}: " in message and expected in message


# These are found once TensorFlow has told what there is.


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--gpus=101"], "--gpus=101: TensorFlow finds "),
        (["--virtual_devices=4", "--batch_size=3"], "--batch_size=3: smaller than the number of replicas, 4"),
        (["--gpus=0", "--precision=mixed_float16", "--xla=off"], "--precision=mixed_float16 with --xla=off"),
    ],
)
def test_a_mistake_about_the_machine_gets_one_line(tmp_path, arguments, expected):
    assert expected in refused("tftrain.cnn", *arguments, f"--run_dir={tmp_path / 'run'}")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_data_that_cannot_be_read_leave_no_run_directory(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "dataset_info.json").write_text("{")
    refused("tftrain.cnn", "--gpus=0", f"--dataset={tmp_path / 'set'}", f"--run_dir={tmp_path / 'run'}")
    assert not (tmp_path / "run").exists()


def test_a_run_directory_that_holds_files_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    message = refused("tftrain.cnn", "--gpus=0", f"--run_dir={tmp_path}")
    assert f"--run_dir={tmp_path}: it holds files already" in message
    assert os.listdir(tmp_path) == ["notes.txt"]
