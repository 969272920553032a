"""What a run leaves on disk."""

import datetime
import fcntl
import hashlib
import importlib.metadata
import json
import math
import os
import pathlib
import platform

import numpy as np

from tftrain import checkpoints, console, durable, paths
from tftrain.errors import UserError

_PACKAGES = ("tftrain", "tensorflow", "tf-keras", "transformers", "tensorflow-datasets", "numpy")
LOCK = ".lock"
_BEFORE_CONFIG = {LOCK, ".config.json.partial", "tokenizer", "tensorboard"}
_MAX_LOCK_BYTES = 200
_MAX_JSON_BYTES = 1 << 26
# What evaluation, prediction and export rely on.
_CONFIG = {"experiment": str, "flags": dict, "recipe": dict, "network": dict, "inputs": dict, "label_names": list}
_KINDS = {str: "text", dict: "object", list: "list"}


def state(path: pathlib.Path) -> str:
    """What stands at a path.

    Returns:
      "new": nothing, or an empty folder; "resumable": a run that was begun; "finished": one with results.json;
      "used": other files.
    """
    if not path.is_dir():
        return "used" if path.exists() else "new"
    names = set(os.listdir(path))
    if "config.json" in names:
        return "finished" if "results.json" in names else "resumable"
    # A run that was killed before it wrote config.json has nothing to go on from.
    return "new" if not names or (LOCK in names and names <= _BEFORE_CONFIG) else "used"


def check(path: str | os.PathLike, resume: str = "never") -> pathlib.Path:
    """The path of a run's folder; nothing is made.

    Args:
      path: a folder that is absent, empty, or holds a run.
      resume: "auto": a run that stands there may go on; "never": it is refused.

    Raises:
      UserError: something else stands there, or another process trains there.
    """
    folder = paths.given("run_dir", path)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--run_dir={path}: this is a file; a folder is needed")
    try:
        found = state(folder)
    except OSError as error:
        raise UserError(f"--run_dir={path}: cannot be read: {error.strerror}") from None
    if found == "used":
        raise UserError(f"--run_dir={path}: it holds files already; give a new or an empty folder")
    if found != "new":
        read_config(folder)
        if resume == "never":
            raise UserError(
                f"--run_dir={path}: it holds a run already, and --resume=never; give a new or an empty folder"
            )
    if (folder / LOCK).exists():
        _take_lock(folder).close()
    return folder


def read_config(path: pathlib.Path) -> dict:
    """A run's config.json.

    Raises:
      UserError: it is absent, or not what a run writes.
    """
    try:
        config = json.loads(durable.read(path / "config.json", _MAX_JSON_BYTES))
    except FileNotFoundError:
        raise UserError(f"--run_dir={path}: no run stands there: it has no config.json") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no JSON"
        raise UserError(f"--run_dir={path}: config.json cannot be read: {reason}") from None
    for name, kind in _CONFIG.items():
        if not isinstance(config, dict) or not isinstance(config.get(name), kind):
            raise UserError(f"--run_dir={path}: config.json is not a run's: {name} is missing or no {_KINDS[kind]}")
    if not all(isinstance(label, str) for label in config["label_names"]):
        raise UserError(f"--run_dir={path}: config.json is not a run's: label_names holds more than texts")
    return config


class RunDirectory:
    """A folder with config.json, results.json, checkpoints/, best/ and tensorboard/, locked for one training process.

    Args:
      path: the folder; it may be absent or empty, or hold a run, or be None for runs/EXPERIMENT/DATE-TIME.
      experiment: the name in that default.
      resume: see `check`.

    Attributes:
      path: the folder.
      state: what stood there: "new", "resumable" or "finished"; see `state`.

    Raises:
      UserError: something else stands there, another process trains there, or no folder can be made there.
    """

    def __init__(self, path: str | os.PathLike | None, experiment: str, resume: str = "never"):
        if path is None:
            self.path = _make_unused(pathlib.Path("runs", experiment, f"{datetime.datetime.now():%Y%m%d-%H%M%S}"))
        else:
            self.path = check(path, resume)
            _make(self.path)
        if not os.access(self.path, os.W_OK):
            raise UserError(f"--run_dir={self.path}: no permission to write there")
        self._lock = _take_lock(self.path)
        self.state = state(self.path)
        checkpoints.remove_leftovers(self.path)

    @classmethod
    def open(cls, path: str | os.PathLike) -> "RunDirectory":
        """A run's folder to read from, which may be read-only; training may go on there.

        Raises:
          UserError: no run stands there.
        """
        run = cls.__new__(cls)
        run.path, run._lock = paths.given("run_dir", path), None
        if not run.path.is_dir():
            raise UserError(f"--run_dir={path}: no such folder")
        read_config(run.path)
        run.state = state(run.path)
        return run

    def close(self) -> None:
        """Let other processes train here; the end of the process does it too, however it ends."""
        if self._lock is not None:
            self._lock.close()

    @property
    def config(self) -> dict:
        """What config.json holds; see `read_config`."""
        return read_config(self.path)

    @property
    def tensorboard(self) -> pathlib.Path:
        return self.path / "tensorboard"

    def write_json(self, name: str, values: dict) -> None:
        """Write a JSON file whole or not at all; numbers that JSON has not (NaN, infinity) become null.

        Raises:
          UserError: it cannot be written: the disk is full, say.
        """
        text = json.dumps(_finite(values), indent=2, ensure_ascii=False, allow_nan=False)
        try:
            durable.replace(self.path / name, (text + "\n").encode())
        except OSError as error:
            raise UserError(f"{self.path / name} cannot be written: {error.strerror}") from None


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide results."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
            found[package] = "not installed"
    return found


def weights_sha256(weights: list) -> str:
    """SHA-256 over all weights in order, as float32 bytes."""
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(np.ascontiguousarray(weight.numpy(), dtype="<f4").tobytes())
    return digest.hexdigest()


def _finite(value):
    """The value with None in place of floats that are not finite."""
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _take_lock(folder: pathlib.Path):
    """Lock a run's folder for this process; the lock lasts until the returned file is closed or the process ends.

    Raises:
      UserError: another process holds it; the line names that process.
    """
    try:
        # A link would be a stranger's way to have another file overwritten.
        file = os.fdopen(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b")
    except OSError as error:
        raise UserError(f"--run_dir={folder}: cannot be written to: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = file.read(_MAX_LOCK_BYTES).decode(errors="replace")
        holder = "".join(filter(str.isprintable, holder)) or "another process"
        file.close()
        raise UserError(f"--run_dir={folder}: in use by {holder}; wait for its end, or give another folder") from None
    except OSError as error:  # NFS without a lock daemon, Lustre without its flock option
        console.say(
            f"note         {folder}: its file system has no locks ({error.strerror}): "
            "see to it that no second process trains there"
        )
    file.truncate(0)
    file.write(
        f"process {os.getpid()} on {platform.node()}, begun {datetime.datetime.now():%Y-%m-%d %H:%M:%S}".encode()
    )
    file.flush()
    return file


def _make(path: pathlib.Path, exist_ok: bool = True) -> None:
    try:
        path.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError:
        raise
    except OSError as error:
        raise UserError(f"--run_dir={path}: the folder cannot be made: {error.strerror}") from None


def _make_unused(path: pathlib.Path) -> pathlib.Path:
    """Make the folder, or one with the first number that makes it new: two runs may start in one second."""
    candidate, number = path, 1
    while True:
        try:
            _make(candidate, exist_ok=False)
            return candidate
        except FileExistsError:
            number += 1
            candidate = path.with_name(f"{path.name}-{number}")
