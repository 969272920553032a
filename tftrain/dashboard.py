"""TensorBoard on the runs below a folder, at http://localhost:6006/.

python -m tftrain.dashboard RUNS [--port=6006]
"""

import argparse
import os
import pathlib
import sys

from tftrain import paths
from tftrain.errors import UserError

# What TensorBoard keeps of a tag is 1,000 points, 10 images and 10 texts, unless it is told. 0, "all", shows nothing.
SAMPLES = {"scalars": 5000, "images": 100, "text": 100, "pr_curves": 200, "histograms": 200}
RELOAD_SECONDS = 10
# Curves stand no deeper than below a folder of folders of experiments: */EXPERIMENT/DATE/tensorboard/RUN.
DEPTH = 5


def command(folder: str | os.PathLike) -> str:
    """The command line that shows the runs below a folder."""
    return f"python -m tftrain.dashboard {folder}"


def find(path: str | os.PathLike) -> pathlib.Path:
    """The folder of runs.

    Raises:
      UserError: it is not there, or holds nothing that TensorBoard could show.
    """
    folder = paths.given("RUNS", path)
    if not folder.is_dir():
        raise UserError(f"{path}: no such folder; give one that holds runs, such as runs, or one run's")
    patterns = ("*/" * depth + "events.out.tfevents.*" for depth in range(DEPTH + 1))
    if not any(next(folder.glob(pattern), None) for pattern in patterns):
        raise UserError(
            f"{path}: no run below it has curves; give a folder that holds runs, such as runs, or one run's"
        )
    return folder


def arguments(folder: pathlib.Path, port: int) -> list[str]:
    """TensorBoard's arguments; it listens on this machine alone."""
    return [
        f"--logdir={folder}",
        "--host=localhost",
        f"--port={port}",
        f"--reload_interval={RELOAD_SECONDS}",
        "--samples_per_plugin=" + ",".join(f"{plugin}={count}" for plugin, count in SAMPLES.items()),
    ]


class _Parser(argparse.ArgumentParser):
    """Answers a mistake with one line, as the other commands do."""

    def error(self, message):
        print(f"error: {message}; --help says more", file=sys.stderr)
        sys.exit(2)


def main() -> None:
    """Start TensorBoard in place of this process."""
    parser = _Parser(
        prog="python -m tftrain.dashboard", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", metavar="RUNS", help="a folder of runs, such as runs, or one run's")
    parser.add_argument("--port", type=int, default=6006, help="where to listen (default: 6006); 0: any that is free")
    given = parser.parse_args()
    try:
        if not 0 <= given.port < 2**16:
            raise UserError(f"--port={given.port}: should be from 0 to 65535")
        folder = find(given.runs)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's, of hardware that is not used here
    os.execv(sys.executable, [sys.executable, "-m", "tensorboard.main", *arguments(folder, given.port)])


if __name__ == "__main__":
    main()
