"""Checkpoints: written beside the training, checksummed, and replaced only by complete ones.

A checkpoint is a folder, checkpoints/step-00000123, with `tensors.safetensors` and `state.json`: the step, the state,
the other file's size and checksum, and a checksum of its own. It is written under a name that starts with a dot,
flushed to the disk and renamed; older ones are removed after that. best/ holds one folder of the same kind.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Mapping

import numpy as np

from tftrain import console, durable, tensor_file
from tftrain.errors import UserError
from tftrain.tensor_file import Damaged

TENSORS, STATE = "tensors.safetensors", "state.json"
# A step that is saved again, as after a rollback, gets a number: nothing complete is taken away before.
_NAME = re.compile(r"step-(\d{8,18})(?:\.(\d{1,9}))?")
# What earlier saves that were killed, and removals, leave.
_LEFTOVER = re.compile(r"\.step-[\d.]+\.(partial|removed)")
_MAX_STATE_BYTES = 1 << 26
# Beside the tensors: the state, and what the file system keeps for itself.
_MARGIN_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint whose checksums are right.

    Attributes:
      path: its folder.
      step: steps that were done when it was saved.
      state: what was given to `save`, as JSON gives it back.
    """

    path: pathlib.Path
    step: int
    state: dict

    def tensors(self, like: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """The arrays by name.

        Args:
          like: what is needed: by name, anything with a shape and a NumPy dtype; left out: all that is there.

        Raises:
          UserError: an array of `like` is missing or of another shape or dtype, or the file is gone by now.
        """
        try:
            return tensor_file.read(self.path / TENSORS, like)
        except Damaged as error:
            raise UserError(f"checkpoint {self.path}: {TENSORS} {error}") from None
        except OSError as error:
            raise UserError(f"checkpoint {self.path}: {TENSORS} cannot be read any more: {error.strerror}") from None


class Checkpoints:
    """The checkpoints of a run; nothing is touched before something is saved.

    Saving returns at once: one thread writes. What goes wrong there is raised by the next call.

    Args:
      run: the run's folder; checkpoints stand in checkpoints/ and best/ below it.
      keep: so many of the newest stay.
    """

    def __init__(self, run: str | os.PathLike, keep: int = 2):
        self._run = pathlib.Path(run)
        self._keep = {"checkpoints": keep, "best": 1}
        self._damaged: set[pathlib.Path] = set()
        self._writer = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._pending: dict[str, concurrent.futures.Future] = {}

    def save(self, step: int, tensors: Mapping[str, np.ndarray], state: dict) -> None:
        """Save a checkpoint; waits while the one before it is still being written.

        Args:
          step: steps done.
          tensors: arrays by name, which are not to be changed any more; numbers and booleans of any shape.
          state: anything that JSON holds; taken down before this returns.

        Raises:
          UserError: there is no room for it, or the save before went wrong; what is complete is unharmed.
        """
        self._save("checkpoints", step, tensors, state)

    def save_best(self, step: int, tensors: Mapping[str, np.ndarray], state: dict) -> None:
        """Replace what best/ holds, as `save` does; whether it is better is the caller's to know."""
        self._save("best", step, tensors, state)

    def check(self) -> None:
        """Raise what went wrong in saving, without waiting for what is under way."""
        for kind, future in list(self._pending.items()):
            if future.done():
                self._pending.pop(kind).result()

    def wait(self) -> None:
        """Return once all is on disk, or raise what went wrong."""
        concurrent.futures.wait(self._pending.values())
        self.check()

    def check_space(self, tensor_bytes: int) -> None:
        """Refuse to begin where two checkpoints of this size have no room.

        Raises:
          UserError: which says how much is free.
        """
        _check_space(self._run, 2 * tensor_bytes, f"two checkpoints of {_megabytes(tensor_bytes)}")

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is intact; a line is said for each newer one that is not.

        Raises:
          UserError: there are checkpoints, and none is intact; or a save under way went wrong.
        """
        return self._newest("checkpoints")

    def load_best(self) -> Checkpoint | None:
        """What best/ holds; see `latest`."""
        return self._newest("best")

    def _save(self, kind: str, step: int, tensors: Mapping[str, np.ndarray], state: dict) -> None:
        text = json.dumps(state)
        self.check()
        if kind in self._pending:
            self._pending.pop(kind).result()
        size = sum(array.nbytes for array in tensors.values()) + len(text)
        _check_space(self._run, size, f"the checkpoint of step {step:,}, which takes {_megabytes(size)}")
        self._pending[kind] = self._writer.submit(self._write, kind, step, dict(tensors), text)

    def _write(self, kind: str, step: int, tensors: dict[str, np.ndarray], state: str) -> None:
        folder = self._run / kind
        partial = folder / f".step-{step:08}.partial"
        try:
            folder.mkdir(exist_ok=True)
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            with durable.writing(partial / TENSORS) as file:
                digest, size = tensor_file.write(file, tensors), file.tell()
            with durable.writing(partial / STATE) as file:
                file.write(
                    _seal({"step": step, "tensors": {"bytes": size, "sha256": digest}, "state": json.loads(state)})
                )
            durable.flush_folder(partial)
            path = _unused(folder / f"step-{step:08}")
            os.rename(partial, path)
            durable.flush_folder(folder)
            durable.flush_folder(self._run)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise UserError(
                f"the checkpoint of step {step:,} cannot be saved in {folder}: {error.strerror}; "
                "what was saved before is intact"
            ) from None
        self._remove_old(kind, path)

    def _remove_old(self, kind: str, newest: pathlib.Path) -> None:
        """Remove what the checkpoint that was just saved makes superfluous."""
        others = [path for path in _list(self._run / kind) if path != newest]
        # Later steps are of a way that training did not go on, from a checkpoint that was passed over.
        stale = [path for path in others if path in self._damaged or _order(path)[0] >= _order(newest)[0]]
        older = [path for path in others if path not in stale]
        stale += older[: max(0, len(older) - self._keep[kind] + 1)]
        for path in stale:
            _remove(path)
            self._damaged.discard(path)

    def _newest(self, kind: str) -> Checkpoint | None:
        self.wait()
        found = _list(self._run / kind)[::-1]
        for path in found:
            try:
                return _open(path)
            except FileNotFoundError as error:
                if not path.exists():  # removed by the process that trains here
                    continue
                reason = f"{pathlib.Path(error.filename).name} is missing"
            except OSError as error:
                reason = f"{pathlib.Path(error.filename or path).name}: {error.strerror}"
            except Damaged as error:
                reason = str(error)
            self._damaged.add(path)
            console.say(f"note         checkpoint {path} is passed over: {reason}")
        if any(path.exists() for path in found):
            raise UserError(
                f"{self._run / kind}: none of the {len(found)} checkpoints there is intact; "
                "remove them to begin again, or give another folder"
            )
        return self._newest(kind) if found else None  # all were replaced in the meantime


def remove_leftovers(run: pathlib.Path) -> None:
    """Remove what killed saves left in a run's folder; only for the process that trains there."""
    for kind in ("checkpoints", "best"):
        if (run / kind).is_dir():
            for path in (run / kind).iterdir():
                if _LEFTOVER.fullmatch(path.name):
                    _remove_tree(path)


def exist(run: pathlib.Path) -> bool:
    """Whether a run's folder holds a checkpoint, intact or not."""
    return bool(_list(run / "checkpoints"))


def _open(path: pathlib.Path) -> Checkpoint:
    """The checkpoint in a folder, verified.

    Raises:
      Damaged: a file is not what was written.
      OSError: a file is missing or cannot be read.
    """
    content = _unseal(durable.read(path / STATE, _MAX_STATE_BYTES))
    step, tensors = content["step"], content["tensors"]
    if step != _order(path)[0]:
        raise Damaged(f"{STATE} is of step {step}")
    with durable.reading(path / TENSORS) as file:
        size = os.fstat(file.fileno()).st_size
    if size != tensors["bytes"]:
        raise Damaged(f"{TENSORS} has {size:,} of {tensors['bytes']:,} bytes")
    if tensor_file.sha256(path / TENSORS) != tensors["sha256"]:
        raise Damaged(f"{TENSORS} was altered: its checksum is another")
    return Checkpoint(path, step, content["state"])


def _seal(content: dict) -> bytes:
    """The content as JSON text with its own checksum."""
    return (json.dumps({"sha256": _checksum(content), **content}, indent=1) + "\n").encode()


def _unseal(text: bytes) -> dict:
    """What `_seal` was given."""
    try:
        content = json.loads(text)
        digest = content.pop("sha256")
        intact = digest == _checksum(content) and isinstance(content["state"], dict)
        intact = intact and type(content["step"]) is int and content["tensors"].keys() == {"bytes", "sha256"}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        intact = False
    if not intact:
        raise Damaged(f"{STATE} was altered or is not whole: its checksum is another")
    return content


def _checksum(content: dict) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _list(folder: pathlib.Path) -> list[pathlib.Path]:
    """The folders that have a checkpoint's name, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()), key=_order)


def _order(path: pathlib.Path) -> tuple[int, int]:
    """The step, and how often it was saved before."""
    step, again = _NAME.fullmatch(path.name).groups()
    return int(step), int(again or 0)


def _unused(path: pathlib.Path) -> pathlib.Path:
    again = [_order(other)[1] for other in _list(path.parent) if _order(other)[0] == _order(path)[0]]
    return path.with_name(f"{path.name}.{max(again) + 1}") if again else path


def _remove(path: pathlib.Path) -> None:
    """Remove a checkpoint: first its name, so that no half of it is ever taken for one."""
    removed = path.with_name(f".{path.name}.removed")
    try:
        os.rename(path, removed)
    except OSError:  # it stays; the next removal tries again
        return
    _remove_tree(removed)


def _remove_tree(path: pathlib.Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _check_space(folder: pathlib.Path, needed: int, what: str) -> None:
    free = durable.free_bytes(folder)
    if free is not None and free < needed + _MARGIN_BYTES:
        raise UserError(
            f"{folder}: no room for {what}: {_megabytes(free)} are free; make room, or give another --run_dir"
        )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
