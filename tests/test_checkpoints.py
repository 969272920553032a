import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests import helpers
from tftrain import checkpoints, durable
from tftrain.checkpoints import Checkpoints
from tftrain.errors import UserError

STATE = {"epoch": 2, "best": 0.1 + 0.2, "history": [1, None, "é"], "deep": {"loss_scale": 32768.0}}


def arrays(step: int) -> dict[str, np.ndarray]:
    return {"network/000/kernel": np.full((3, 4), step, np.float32), "optimizer/iterations": np.int64(step)}


def save(run: pathlib.Path, *steps: int, keep: int = 2) -> Checkpoints:
    """Save these steps, each after the one before is on disk."""
    run.mkdir(exist_ok=True)
    saved = Checkpoints(run, keep)
    for step in steps:
        saved.save(step, arrays(step), STATE)
        saved.wait()
    return saved


def names(folder: pathlib.Path) -> list[str]:
    return sorted(os.listdir(folder))


def steps_of(checkpoint) -> tuple[int, int]:
    """The step that a checkpoint says, and the one that its arrays say."""
    return checkpoint.step, int(checkpoint.tensors()["optimizer/iterations"])


def test_a_checkpoint_comes_back(tmp_path):
    save(tmp_path, 7)
    found = Checkpoints(tmp_path).latest()
    assert found.path == tmp_path / "checkpoints" / "step-00000007"
    assert found.step == 7 and found.state == STATE
    tensors = found.tensors()
    assert tensors.keys() == arrays(7).keys()
    for name, array in arrays(7).items():
        np.testing.assert_array_equal(tensors[name], array)
        assert (tensors[name].dtype, tensors[name].shape) == (array.dtype, array.shape)
    assert names(found.path) == ["state.json", "tensors.safetensors"]


def test_the_checksum_is_that_of_the_file(tmp_path):
    save(tmp_path, 7)
    folder = tmp_path / "checkpoints" / "step-00000007"
    content = (folder / "tensors.safetensors").read_bytes()
    expected = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert helpers.read_json(folder / "state.json")["tensors"] == expected


def test_a_run_without_checkpoints_has_none(tmp_path):
    assert Checkpoints(tmp_path).latest() is None
    assert Checkpoints(tmp_path).load_best() is None
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_so_many_are_kept(tmp_path, keep):
    save(tmp_path, 5, 10, 20, 100000000, keep=keep)
    kept = ["step-00000005", "step-00000010", "step-00000020", "step-100000000"][-keep:]
    assert names(tmp_path / "checkpoints") == kept
    assert steps_of(Checkpoints(tmp_path).latest()) == (100000000, 100000000)


def test_the_best_is_one_and_apart_from_the_others(tmp_path):
    saved = save(tmp_path, 5, 10)
    for step in (5, 10):
        saved.save_best(step, arrays(step), {"score": step / 100})
    saved.wait()
    assert names(tmp_path / "best") == ["step-00000010"]
    assert names(tmp_path / "checkpoints") == ["step-00000005", "step-00000010"]
    best = Checkpoints(tmp_path).load_best()
    assert steps_of(best) == (10, 10) and best.state == {"score": 0.1}


def test_a_step_that_is_saved_again_replaces_the_first(tmp_path):
    saved = save(tmp_path, 5, 10)
    saved.save(10, arrays(11), {"again": 1})
    saved.wait()
    assert names(tmp_path / "checkpoints") == ["step-00000005", "step-00000010.1"]
    found = Checkpoints(tmp_path).latest()
    assert (steps_of(found), found.state) == ((10, 11), {"again": 1})
    saved.save(10, arrays(12), {})
    saved.wait()
    assert names(tmp_path / "checkpoints") == ["step-00000005", "step-00000010.2"]


def test_the_directory_may_be_moved(tmp_path):
    save(tmp_path / "run", 5)
    os.rename(tmp_path / "run", tmp_path / "moved")
    saved = Checkpoints(tmp_path / "moved")
    assert steps_of(saved.latest()) == (5, 5)
    saved.save(6, arrays(6), STATE)
    saved.wait()
    assert names(tmp_path / "moved" / "checkpoints") == ["step-00000005", "step-00000006"]


def flip(path: pathlib.Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def edit(path: pathlib.Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def pipe(path: pathlib.Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES = {
    "a bit of the last array": (lambda f: flip(f / "tensors.safetensors", -1), "tensors.safetensors was altered"),
    "a bit of the header": (lambda f: flip(f / "tensors.safetensors", 20), "tensors.safetensors was altered"),
    "truncated": (lambda f: os.truncate(f / "tensors.safetensors", 100), "tensors.safetensors has 100 of"),
    "emptied": (lambda f: os.truncate(f / "tensors.safetensors", 0), "tensors.safetensors has 0 of"),
    "no tensors": (lambda f: os.remove(f / "tensors.safetensors"), "tensors.safetensors is missing"),
    "no state": (lambda f: os.remove(f / "state.json"), "state.json is missing"),
    "a truncated state": (lambda f: os.truncate(f / "state.json", 60), "state.json was altered"),
    "an empty state": (lambda f: os.truncate(f / "state.json", 0), "state.json was altered"),
    "an altered state": (lambda f: edit(f / "state.json", '"epoch": 2', '"epoch": 3'), "state.json was altered"),
    "another JSON": (lambda f: (f / "state.json").write_text('["a"]'), "state.json was altered"),
    "deep JSON": (lambda f: (f / "state.json").write_text("[" * 100000), "state.json was altered"),
    "another's state": (lambda f: shutil.copy(f.with_name("step-00000005") / "state.json", f), "is of step 5"),
    "a folder": (lambda f: (os.remove(f / "state.json"), (f / "state.json").mkdir()), "state.json: not a regular file"),
    "a pipe": (lambda f: pipe(f / "state.json"), "state.json: not a regular file"),
    "a pipe for tensors": (lambda f: pipe(f / "tensors.safetensors"), "tensors.safetensors: not a regular file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_passed_over_with_a_line(tmp_path, capfd, damage):
    saved = save(tmp_path, 5, 10)
    alter, reason = DAMAGES[damage]
    newest = tmp_path / "checkpoints" / "step-00000010"
    alter(newest)
    assert steps_of(saved.latest()) == (5, 5)
    (line,) = capfd.readouterr().err.splitlines()
    assert f"checkpoint {newest} is passed over: " in line and reason in line
    # What goes on from the one before counts it no more, and the intact one stays.
    saved.save(8, arrays(8), STATE)
    saved.wait()
    assert names(tmp_path / "checkpoints") == ["step-00000005", "step-00000008"]


def test_when_none_is_intact_training_does_not_begin_anew(tmp_path):
    save(tmp_path, 5, 10)
    for step in (5, 10):
        os.truncate(tmp_path / "checkpoints" / f"step-{step:08}" / "tensors.safetensors", 9)
    with pytest.raises(UserError, match=r"none of the 2 checkpoints there is intact; remove them to begin again"):
        Checkpoints(tmp_path).latest()


def test_other_files_are_left_alone(tmp_path):
    save(tmp_path, 5, 10)
    folder = tmp_path / "checkpoints"
    for name in ("notes.txt", ".hidden", "step-00000099"):
        (folder / name).write_text("")
    for name in ("step-7", ".step-best.partial", ".step-00000003.partial", ".step-00000004.1.removed"):
        (folder / name).mkdir()
        (folder / name / "tensors.safetensors").write_text("")
    (folder / ".step-00000008.partial").symlink_to(tmp_path)
    checkpoints.remove_leftovers(tmp_path)
    save(tmp_path, 15)
    kept = [".hidden", ".step-best.partial", "notes.txt", "step-00000010", "step-00000015", "step-00000099", "step-7"]
    assert names(folder) == kept
    assert names(tmp_path) == ["checkpoints"]


def test_only_what_is_asked_for_is_read_and_it_has_to_fit(tmp_path):
    found = save(tmp_path, 5).latest()
    like = {"network/000/kernel": np.empty((3, 4), np.float32)}
    assert found.tensors(like).keys() == like.keys()
    for wrong, message in [
        ({"network/001/bias": np.empty(4, np.float32)}, "has no network/001/bias"),
        (
            {"network/000/kernel": np.empty((4, 3), np.float32)},
            r"network/000/kernel is float32 \[3, 4\]; expected float32 \[4, 3\]",
        ),
        ({"network/000/kernel": np.empty((3, 4), np.float16)}, r"is float32 \[3, 4\]; expected float16 \[3, 4\]"),
    ]:
        with pytest.raises(UserError, match=message):
            found.tensors(wrong)


def test_tensors_that_are_gone_by_now_are_said(tmp_path):
    found = save(tmp_path, 5).latest()
    shutil.rmtree(found.path)
    with pytest.raises(UserError, match="cannot be read any more: No such file or directory"):
        found.tensors()


def test_the_state_is_taken_down_at_once_and_a_wrong_one_is_refused_there(tmp_path):
    saved = Checkpoints(tmp_path)
    state = {"steps": [1]}
    saved.save(5, arrays(5), state)
    state["steps"].append(2)
    assert saved.latest().state == {"steps": [1]}
    with pytest.raises(TypeError):
        saved.save(6, arrays(6), {"x": object()})
    assert saved.latest().step == 5


def test_saving_returns_before_it_is_written_and_the_next_waits(tmp_path, monkeypatch):
    seconds = 0.3
    slow = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (time.sleep(seconds / 4), slow(descriptor)))
    saved = Checkpoints(tmp_path)
    began = time.monotonic()
    saved.save(5, arrays(5), STATE)
    saved.save_best(5, arrays(5), STATE)
    assert time.monotonic() - began < seconds / 2
    saved.check()
    saved.save(6, arrays(6), STATE)
    assert time.monotonic() - began >= seconds
    saved.wait()
    assert names(tmp_path / "checkpoints") == ["step-00000005", "step-00000006"]


class Crash(BaseException):
    """In the place of a kill: nothing catches it, so nothing tidies up after it."""


CALLS = ["mkdir", "open", "fsync", "rename", "unlink", "rmdir"]


def crash_at(monkeypatch, call: int) -> None:
    """Let the call number `call` of the file system, counted from 0, and all after it raise Crash."""
    counter = iter(range(10**6))

    def wrap(original):
        def wrapped(*arguments, **options):
            if next(counter) >= call:
                raise Crash
            return original(*arguments, **options)

        return wrapped

    for name in CALLS:
        monkeypatch.setattr(os, name, wrap(getattr(os, name)))


@pytest.mark.parametrize("kind, keep", [("checkpoints", 1), ("checkpoints", 2), ("best", 1)])
def test_whatever_the_moment_of_a_crash_an_intact_one_is_there(tmp_path, monkeypatch, capfd, kind, keep):
    def write(saved, step):
        (saved.save if kind == "checkpoints" else saved.save_best)(step, arrays(step), STATE)
        saved.wait()

    seen = set()
    for call in range(1000):
        run = tmp_path / str(call)
        run.mkdir()
        for step in (5, 10, 15):
            write(Checkpoints(run, keep), step)
        with monkeypatch.context() as patch:
            crash_at(patch, call)
            try:
                write(Checkpoints(run, keep), 15)  # the same step again, which is the harder case
                whole = True
            except Crash:
                whole = False
        checkpoints.remove_leftovers(run)
        saved = Checkpoints(run, keep)
        found = saved.latest() if kind == "checkpoints" else saved.load_best()
        assert steps_of(found) == (15, 15)
        seen.add(found.path.name)
        assert not [name for name in names(run / kind) if name.startswith(".")]
        assert len(names(run / kind)) >= keep
        assert capfd.readouterr().err == ""
        write(saved, 20)
        assert len(names(run / kind)) == keep
        if whole:
            break
    assert call > 8 and seen == {"step-00000015", "step-00000015.1"}


SAVER = """
import sys, numpy as np
from tftrain.checkpoints import Checkpoints, remove_leftovers
remove_leftovers({run!r})
saved = Checkpoints({run!r}, keep=1)
found = saved.latest()
step = found.step if found else 0
print("began", step, flush=True)
while True:
    step += 1
    saved.save(step, {{"a": np.full(100_000, step), "b": np.full(5, step)}}, {{"step": step}})
    saved.save_best(step, {{"a": np.full(50_000, step)}}, {{"step": step}})
    saved.wait()
    print("saved", step, flush=True)
"""


def test_a_process_that_is_killed_while_saving_loses_nothing(tmp_path):
    moments = random.Random(5)
    source = SAVER.replace("{run!r})", "pathlib.Path({run!r}))").replace("import sys,", "import pathlib,")
    source = source.format(run=str(tmp_path))
    last, partial = 0, 0
    for _ in range(15):
        process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, cwd=helpers.ROOT)
        assert int(process.stdout.readline().split()[1]) >= last
        time.sleep(moments.uniform(0, 0.08))
        process.send_signal(signal.SIGKILL)
        said = [int(line.split()[1]) for line in process.communicate()[0].splitlines()]
        last = max([last, *said])
        partial += any(path.name.startswith(".") for path in tmp_path.glob("*/*"))
        if last:
            for found in (Checkpoints(tmp_path).latest(), Checkpoints(tmp_path).load_best()):
                assert found.step >= last and found.state == {"step": found.step}
                assert (found.tensors()["a"] == found.step).all()
    assert last > 0 and partial > 0


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_is_seen_before_a_save_and_harms_nothing(small_disk):
    saved = save(small_disk, 5)
    with pytest.raises(UserError, match=r"no room for two checkpoints of 2\.0 MB: 4\.\d MB are free"):
        saved.check_space(2_000_000)
    saved.check_space(1_000_000)
    large = {"a": np.zeros(4_000_000, np.uint8)}
    with pytest.raises(UserError, match=r"no room for the checkpoint of step 6, which takes 4\.0 MB: 4\.\d MB"):
        saved.save(6, large, STATE)
    assert steps_of(saved.latest()) == (5, 5)
    assert names(small_disk / "checkpoints") == ["step-00000005"]


def test_a_disk_that_fills_while_saving_harms_nothing(small_disk, monkeypatch):
    saved = save(small_disk, 5)
    monkeypatch.setattr(durable, "free_bytes", lambda folder: None)
    for fail in (saved.save, saved.save_best):
        fail(6, {"a": np.zeros(5_000_000, np.uint8)}, STATE)
        with pytest.raises(
            UserError, match=r"step 6 cannot be saved in .*: No space left on device; what .* is intact"
        ):
            saved.wait()
    assert steps_of(saved.latest()) == (5, 5)
    assert names(small_disk / "checkpoints") == ["step-00000005"] and names(small_disk / "best") == []
    saved.save(7, arrays(7), STATE)
    assert steps_of(saved.latest()) == (7, 7)


def test_what_went_wrong_is_raised_by_the_next_call(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    saved = save(tmp_path, 5)
    for call in (lambda: saved.save(7, arrays(7), STATE), saved.check, saved.wait, saved.latest):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            saved.save(6, arrays(6), STATE)
            while not all(future.done() for future in saved._pending.values()):
                time.sleep(0.01)
        with pytest.raises(UserError, match=r"step 6 cannot be saved in .*: Input/output error; what was saved before"):
            call()
        saved.wait()
    assert names(tmp_path / "checkpoints") == ["step-00000005"]


def test_a_stranger_s_checkpoint_is_only_numbers(tmp_path):
    """A pickle in the place of either file is not read as one."""
    save(tmp_path, 5)
    folder = tmp_path / "checkpoints" / "step-00000005"
    marker = tmp_path / "ran"
    attack = b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR."
    original = json.loads((folder / "state.json").read_text())
    (folder / "tensors.safetensors").write_bytes(attack)
    content = {key: value for key, value in original.items() if key != "sha256"}
    content["tensors"] = {"bytes": len(attack), "sha256": hashlib.sha256(attack).hexdigest()}
    (folder / "state.json").write_bytes(checkpoints._seal(content))
    found = Checkpoints(tmp_path).latest()  # its checksums are right
    with pytest.raises(UserError, match=r"tensors\.safetensors is no whole safetensors file"):
        found.tensors()
    (folder / "state.json").write_bytes(attack)
    with pytest.raises(UserError, match="none of the 1 checkpoints"):
        Checkpoints(tmp_path).latest()
    assert not marker.exists()
    source = pathlib.Path(checkpoints.__file__).with_name("tensor_file.py").read_text()
    assert not re.search(r"pickle|np\.load|eval\(", source)
