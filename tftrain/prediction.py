"""Predict the classes of images with a saved run: one row for each, in the order of the input, as it goes.

An image that cannot be read gets a row whose label is null and that has `error`; the others are not held up.
"""

import contextlib
import csv
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from tftrain import durable, paths
from tftrain.data import decoding
from tftrain.errors import UserError
from tftrain.runtime import Runtime
from tftrain.saved_run import SavedRun

_MAX_FILE_BYTES = 1 << 28


def image_files(value: str) -> Iterator[str]:
    """The files that --input names: one, all below a folder in the order of their names, or "-": lines of stdin."""
    if value == "-":
        for line in sys.stdin.buffer:
            if line := line.rstrip(b"\r\n"):
                yield os.fsdecode(line)
        return
    path = paths.given("input", value)
    if not path.exists():
        raise UserError(f"--input={paths.shown(value)}: no such file or folder")
    if not path.is_dir():
        yield str(path)
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(folder, name) for name in sorted(names) if not name.startswith("."))


def predict(run: SavedRun, files: Iterable[str], runtime: Runtime, batch_size: int = 64) -> Iterator[dict]:
    """One row for each file; no more than a batch is in memory.

    Returns:
      dictionaries with input, label, probability and probabilities (by label); or input, label None and error.
    """
    share = -(-batch_size // runtime.replicas)
    height, width, channels = run.config["network"]["input_shape"]
    strategy = runtime.strategy

    @tf.function(jit_compile=runtime.xla or None)
    def probabilities(images):
        return tf.nn.softmax(tf.cast(run.network(images, training=False), tf.float32))

    @tf.function
    def step(images):
        return strategy.run(probabilities, args=(images,))

    files = iter(files)
    while batch := list(itertools.islice(files, share * runtime.replicas)):
        images = np.zeros((runtime.replicas * share, height, width, channels), np.uint8)
        errors = {}
        for i, file in enumerate(batch):
            try:
                images[i] = _read(file, height, width, channels)
            except (OSError, ValueError) as error:
                errors[i] = getattr(error, "strerror", None) or str(error)
        parts = images.reshape(runtime.replicas, share, height, width, channels)
        given = strategy.experimental_distribute_values_from_function(
            lambda context, parts=parts: tf.constant(parts[context.replica_id_in_sync_group])
        )
        found = np.concatenate([part.numpy() for part in strategy.experimental_local_results(step(given))])
        for i, file in enumerate(batch):
            if i in errors:
                yield {"input": paths.shown(file), "label": None, "error": errors[i]}
                continue
            best = int(found[i].argmax())
            yield {
                "input": paths.shown(file),
                "label": run.label_names[best],
                "probability": float(found[i, best]),
                "probabilities": dict(zip(run.label_names, found[i].tolist())),
            }


def write(rows: Iterable[dict], label_names: list[str], output: str | None, format: str = "jsonl") -> tuple[int, int]:
    """Write rows to a file, whole or not at all, or to standard output as they come.

    Returns:
      how many rows were written, and how many of them have an error.
    """
    count = errors = 0
    with _open(output) as file:
        writer = csv.writer(file, lineterminator="\n")
        if format == "csv":
            writer.writerow(["input", "label", "probability", *label_names, "error"])
        for row in rows:
            if format == "csv":
                by_label = row.get("probabilities", {})
                cells = [row["input"], row["label"], row.get("probability")]
                writer.writerow([*cells, *(by_label.get(name) for name in label_names), row.get("error")])
            else:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            if output is None:
                file.flush()
            count, errors = count + 1, errors + ("error" in row)
    return count, errors


@contextlib.contextmanager
def _open(output: str | None):
    if output is None:
        try:
            yield sys.stdout
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, head say, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return
    path = paths.given("output", output)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise UserError(f"--output={output}: cannot be written: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)


def _read(file: str, height: int, width: int, channels: int) -> np.ndarray:
    image = decoding.load(durable.read(pathlib.Path(file), _MAX_FILE_BYTES), channels)
    return decoding.resize_and_crop(image, (height, width))
