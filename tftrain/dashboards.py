"""What TensorBoard shows: one chart a quantity, with the runs `train` and `test` in it, by training step."""

import pathlib

import tensorflow as tf


class Dashboards:
    """Writes scalars for TensorBoard below a folder.

    Args:
      folder: gets the sub-folders `train` and `test`, TensorBoard's two runs.
    """

    def __init__(self, folder: pathlib.Path):
        self._writers = {name: tf.summary.create_file_writer(str(folder / name)) for name in ("train", "test")}

    def scalars(self, run: str, step: int, values: dict[str, float]) -> None:
        """Write values of the run "train" or "test" after `step` training steps."""
        with self._writers[run].as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def flush(self) -> None:
        """Bring what was written to disk."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Flush and close the files."""
        for writer in self._writers.values():
            writer.close()
