"""What TensorBoard shows of a run: one chart a quantity, with the runs `train` and `test` in it, by training step.

Below a run's tensorboard/ there are four of TensorBoard's runs: `train` and `test`; `preview`, the learning rate of all
steps to come; and `trial`, the line of the HParams table. All is written from one thread, without TensorFlow's graph,
so that it is the same on any number of replicas.
"""

import html
import os
import pathlib
import time
from collections.abc import Iterable, Sequence

import numpy as np
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as layout_metadata
from tensorboard.plugins.histogram import summary_v2 as histogram_summary
from tensorboard.plugins.hparams import metadata as trial_metadata
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.plugins.hparams import summary_v2 as trial_summary
from tensorboard.plugins.image import metadata as image_metadata
from tensorboard.plugins.pr_curve import metadata as curve_metadata
from tensorboard.plugins.scalar import summary_v2 as scalar_summary
from tensorboard.plugins.text import summary_v2 as text_summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util import tensor_util

# A killed process loses no more than what it wrote in this time.
FLUSH_SECONDS = 20
# The charts of the custom-scalars dashboard: title, then regular expressions of tags.
LAYOUT = {
    "Learning": {
        "loss": ["^loss$"],
        "accuracy": ["^accuracy$"],
        "learning rate": ["^learning_rate$"],
    },
    "Speed": {
        "examples per second": ["^examples_per_second$"],
        "seconds of a step": ["^step_seconds$"],
        "share of the time": ["^waiting_share$", "^saving_share$", "^evaluation_share$"],
        "FLOPs utilisation": ["^flops_utilisation$"],
    },
    "Health": {
        "gradient norm": ["^gradient_norm$"],
        "weight norm": ["^weight_norm$"],
        "loss scale": ["^loss_scale$"],
        "memory, MiB": ["^memory/"],
    },
}
# A histogram is of at most so many of a weight's elements, evenly spaced.
HISTOGRAM_ELEMENTS = 20_000
HISTOGRAM_BUCKETS = 30
PREVIEW_POINTS = 200
# Runs that hold nothing of steps that are done, so that a resumed run writes them again.
REWRITTEN = ("preview", "trial")
# Flags that say where things are kept or shown, and not how the network is trained.
BOOKKEEPING = frozenset(
    "mode run_dir resume checkpoint_every keep_checkpoints checkpoint input output format tfds_dir cache histograms "
    "log_every profile_steps".split()
)


class Dashboards:
    """Writes below a folder what TensorBoard shows.

    Args:
      folder: gets a sub-folder for each of TensorBoard's runs. None: nothing is written, as on workers but the chief.
      first_step, evaluated_step: see `rewind`.
    """

    def __init__(self, folder: pathlib.Path | None, first_step: int = 0, evaluated_step: int | None = None):
        self._folder = folder
        self._writers: dict[str, EventFileWriter] = {}
        self.rewind(first_step, evaluated_step)

    def rewind(self, step: int, evaluated_step: int | None = None) -> None:
        """Remove what stands in the folder beyond a step, since what follows it is trained again: one curve stays.

        Args:
          step: the steps that are done.
          evaluated_step: the same for the run `test`: the last step whose evaluation is done; None: `step`.
        """
        evaluated_step = step if evaluated_step is None else evaluated_step
        self.close()
        self._writers.clear()
        for run in self._folder.glob("*/") if self._folder else ():
            last = 0 if run.name in REWRITTEN else evaluated_step if run.name == "test" else step
            _continue(run, last)

    def scalars(self, run: str, step: int, values: dict[str, float]) -> None:
        """Write values of the run "train" or "test" after `step` training steps."""
        summary = summary_pb2.Summary()
        for tag, value in values.items():
            summary.value.extend(scalar_summary.scalar_pb(tag, value).value)
        self._write(run, step, summary)

    def layout(self) -> None:
        """Write the custom-scalars dashboards; once, at the start."""
        categories = [
            layout_pb2.Category(
                title=title,
                chart=[
                    layout_pb2.Chart(title=chart, multiline=layout_pb2.MultilineChartContent(tag=tags))
                    for chart, tags in charts.items()
                ],
            )
            for title, charts in LAYOUT.items()
        ]
        self._write_tensor(
            "train",
            0,
            layout_metadata.CONFIG_SUMMARY_TAG,
            layout_metadata.create_summary_metadata(),
            np.array(layout_pb2.Layout(category=categories).SerializeToString(), object),
        )

    def preview(self, rates: Sequence[float]) -> None:
        """Write the learning rate of every step to come, thinned out, as the run `preview` of the chart's tag.

        Args:
          rates: that of each step.
        """
        steps = np.unique(np.linspace(0, len(rates) - 1, min(len(rates), PREVIEW_POINTS)).round().astype(int))
        for step in steps:
            self.scalars("preview", int(step), {"learning_rate": float(rates[step])})

    def image(self, run: str, step: int, tag: str, png: bytes) -> None:
        """Write a PNG file's content."""
        width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
        values = np.array([str(width).encode(), str(height).encode(), png], object)
        self._write_tensor(run, step, tag, image_metadata.create_summary_metadata(None, None), values)

    def text(self, run: str, step: int, tag: str, markdown: str) -> None:
        """Write a text for the Text tab; see `table` and `verbatim`."""
        self._write(run, step, text_summary.text_pb(tag, markdown))

    def precision_recall(self, step: int, names: dict[int, str], counts: np.ndarray) -> None:
        """Write precision-recall curves of some classes, each against all others, to the run `test`.

        Args:
          step: training steps done.
          names: of these classes, by their numbers.
          counts: int [classes, 2, bins], how many examples of other classes, and of the class itself, got a
            probability of the class in each of the bins that [0, 1] is divided into.
        """
        for number, name in names.items():
            data = curve_metadata.create_summary_metadata(shortened(name), None, counts.shape[-1])
            self._write_tensor("test", step, f"precision_recall/{number:03}", data, curve(*counts[number]))

    def histograms(self, step: int, values: dict[str, np.ndarray]) -> None:
        """Write a histogram of each array, of at most HISTOGRAM_ELEMENTS of its elements, to the run `train`."""
        for tag, array in values.items():
            flat = np.ravel(array)
            sample = flat[:: -(-flat.size // HISTOGRAM_ELEMENTS) or 1]
            self._write("train", step, histogram_summary.histogram_pb(tag, sample, HISTOGRAM_BUCKETS))

    def begin_trial(self, name: str, flags: dict) -> None:
        """Write the flags that matter, as the line `name` of the HParams table."""
        self._write("trial", 0, trial_summary.hparams_pb(hyper_parameters(flags), trial_id=name))

    def end_trial(self, step: int, results: dict) -> None:
        """Write the run's results, those that are numbers, into its line of the HParams table."""
        numbers = {
            f"results/{name}": value
            for name, value in results.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        self.scalars("trial", step, numbers)
        end = plugin_data_pb2.SessionEndInfo(status="STATUS_SUCCESS", end_time_secs=time.time())
        data = plugin_data_pb2.HParamsPluginData(session_end_info=end)
        summary = summary_pb2.Summary()
        summary.value.add(
            tag=trial_metadata.SESSION_END_INFO_TAG,
            metadata=trial_metadata.create_summary_metadata(data),
            tensor=trial_metadata.NULL_TENSOR,
        )
        self._write("trial", step, summary)

    def flush(self) -> None:
        """Bring what was written to disk."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Flush and close the files; nothing can be written any more."""
        for writer in self._writers.values():
            writer.close()

    def _write_tensor(self, run: str, step: int, tag: str, metadata, values: np.ndarray) -> None:
        summary = summary_pb2.Summary()
        summary.value.add(tag=tag, metadata=metadata, tensor=tensor_util.make_tensor_proto(values))
        self._write(run, step, summary)

    def _write(self, run: str, step: int, summary: summary_pb2.Summary) -> None:
        if self._folder is None:
            return
        if run not in self._writers:
            self._writers[run] = EventFileWriter(str(self._folder / run), flush_secs=FLUSH_SECONDS)
        self._writers[run].add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))


def _continue(folder: pathlib.Path, last_step: int) -> None:
    """Remove what event files hold beyond a step; with step 0, which is before the first, the files themselves."""
    for number, path in enumerate(sorted(folder.glob("events.out.tfevents.*"))):
        if not last_step:
            path.unlink()
            continue
        # Files are read in the order of their names, which hold the second they were made in: the older come first.
        path = path.rename(folder / f"events.out.tfevents.{number:010}")
        kept = [
            data for data in RawEventFileLoader(str(path)).Load() if event_pb2.Event.FromString(data).step <= last_step
        ]
        partial = folder / f".{path.name}.partial"
        with open(partial, "wb") as file:
            records = RecordWriter(file)
            for data in kept:
                records.write(data)
        os.replace(partial, path)


def curve(others: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Precision and recall by threshold; see `Dashboards.precision_recall` for the arguments, int [bins] each.

    Returns:
      float64 [6, bins]: true and false positives, true and false negatives, precision and recall where bin b's lower
      edge and above counts as positive. Precision without positives is 0, as in TensorBoard's own curves.
    """
    true_positives = np.cumsum(own[::-1])[::-1]
    false_positives = np.cumsum(others[::-1])[::-1]
    true_negatives, false_negatives = others.sum() - false_positives, own.sum() - true_positives
    precision = true_positives / np.maximum(1, true_positives + false_positives)
    recall = true_positives / np.maximum(1, own.sum())
    rows = true_positives, false_positives, true_negatives, false_negatives, precision, recall
    return np.stack(rows).astype(np.float64)


def hyper_parameters(flags: dict) -> dict:
    """The flags that decide what is learnt, in the types that the HParams table takes; unset ones are left out."""
    found = {}
    for name, value in flags.items():
        if name in BOOKKEEPING or value is None:
            continue
        if isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        found[name] = value if isinstance(value, (bool, int, float)) else str(value)
    return found


def table(rows: Iterable[Sequence], header: Sequence[str]) -> str:
    """A table in Markdown in which every cell shows as it is, on one line."""

    def line(cells) -> str:
        return "| " + " | ".join(map(_plain, cells)) + " |"

    return "\n".join([line(header), "|" + " --- |" * len(header), *map(line, rows)])


def verbatim(lines: Iterable[str]) -> str:
    """Lines as a block in Markdown that shows them as they are."""
    return "\n".join("    " + " ".join(line.splitlines()) for line in lines)


def shortened(text: str, characters: int = 40) -> str:
    """The text on one line, cut to so many characters."""
    text = " ".join(text.split())
    return text if len(text) <= characters else text[: characters - 1] + "…"


def _plain(value) -> str:
    """Text that Markdown shows as it is: what could be markup becomes a character reference."""
    text = html.escape(" ".join(str(value).split()))
    return "".join(f"&#{ord(character)};" if character in "|`*_[]~\\:@" else character for character in text)
