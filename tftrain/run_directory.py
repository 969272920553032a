"""What a run leaves on disk."""

import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import shutil

import numpy as np

from tftrain import paths
from tftrain.errors import UserError

_PACKAGES = ("tftrain", "tensorflow", "tf-keras", "transformers", "tensorflow-datasets", "numpy")


def check(path: str | os.PathLike) -> pathlib.Path:
    """The path of a run's folder, which may be absent or empty; nothing is made.

    Raises:
      UserError: something stands there already.
    """
    folder = paths.given("run_dir", path)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--run_dir={path}: this is a file; a folder is needed")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"--run_dir={path}: it holds files already; give a new or an empty folder")
    return folder


class RunDirectory:
    """A folder with config.json, results.json, checkpoints/ and tensorboard/.

    Args:
      path: the folder; it may be absent or empty, or None for runs/EXPERIMENT/DATE-TIME.
      experiment: the name in that default.

    Raises:
      UserError: something stands there already, or no folder can be made there.
    """

    def __init__(self, path: str | os.PathLike | None, experiment: str):
        if path is None:
            now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
            path = _unused(pathlib.Path("runs", experiment, now))
        self.path = check(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--run_dir={path}: the folder cannot be made: {error.strerror}") from None
        if not os.access(self.path, os.W_OK):
            raise UserError(f"--run_dir={path}: no permission to write there")

    @property
    def tensorboard(self) -> pathlib.Path:
        return self.path / "tensorboard"

    def write_json(self, name: str, values: dict) -> None:
        """Write a JSON file whole or not at all; numbers that JSON has not (NaN, infinity) become null."""
        temporary = self.path / f".{name}.partial"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(_finite(values), file, indent=2, ensure_ascii=False, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path / name)

    def save_checkpoint(self, checkpoint, step: int) -> pathlib.Path:
        """Write a tf.train.Checkpoint to checkpoints/step-STEP, whole or not at all."""
        final = self.path / "checkpoints" / f"step-{step:08}"
        temporary = final.with_name(f".{final.name}.partial")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        checkpoint.write(str(temporary / "state"))
        os.replace(temporary, final)
        return final


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


def _unused(path: pathlib.Path) -> pathlib.Path:
    """The path, or the path with the first number that makes it new: two runs may start in one second."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
