"""Shows one run on its dashboards: what it is, how it goes, how fast, and where it is wrong."""

import concurrent.futures
import pathlib
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tftrain import dashboards, flops, pictures, scores, speed
from tftrain.configuration import Showing
from tftrain.dashboards import Dashboards
from tftrain.data.batching import Batches
from tftrain.profile import Profile
from tftrain.runtime import Runtime
from tftrain.training_step import TrainingModel

# Between the first and the last evaluation, pictures are drawn only if that takes less than this share of the time.
PICTURE_SHARE = 0.01
# Precision-recall curves are of so many classes at most, those with the most test examples.
CURVES = 20
# The Text tab and mistakes.json show so many characters of a text.
TEXT_CHARACTERS = 1000


class Display:
    """What a run's monitor tells, shown.

    Pictures are drawn on a thread, while training goes on.

    Args:
      folder: TensorBoard's; None: nothing is written.
      train, test: the batches trained on and evaluated.
      label_names: of the classes.
      model: the one that is trained.
      runtime: what it is trained on.
      total_steps: all steps of the run.
      first_step: those that are done already.
      evaluated_step: the last of them whose evaluation is done too; None: `first_step`.
      showing: what is shown beyond what always is.
      describe: gives the texts of test examples by their row numbers; None where they are no texts.
    """

    def __init__(
        self,
        folder: pathlib.Path | None,
        train: Batches,
        test: Batches,
        label_names: Sequence[str],
        model: TrainingModel,
        runtime: Runtime,
        total_steps: int,
        first_step: int = 0,
        showing: Showing | None = None,
        describe=None,
        evaluated_step: int | None = None,
    ):
        showing = showing or Showing()
        self._train, self._test, self._label_names, self._model = train, test, label_names, model
        self._total_steps, self._first_step, self._describe = total_steps, first_step, describe
        self._histograms = showing.histograms
        self._silent = folder is None
        self._dashboards = Dashboards(folder, first_step, evaluated_step)
        self._painter = concurrent.futures.ThreadPoolExecutor(1, "pictures")
        self._painting: list[concurrent.futures.Future] = []
        self._painted_step, self._painted_at, self._paint_seconds = None, 0.0, 0.0
        self._compute = Compute(train, model, runtime)
        self.profile = Profile(None if self._silent else showing.profile_steps, folder, total_steps, first_step)
        self.shares = speed.Shares()
        self.mistakes: list[dict] = []

    @property
    def notes(self) -> list[tuple[str, str]]:
        """Lines for the banner, as (name, text)."""
        return [("compute", self._compute.text)]

    def begin(self, name: str, config: dict, banner: Sequence[tuple[str, str]], rates: Sequence[float]) -> None:
        """Show what is known before the first step.

        Args:
          name: the run's.
          config: what is in config.json.
          banner: the lines that were printed.
          rates: the learning rate of each step of the run.
        """
        if self._silent:
            return
        step, shown = self._first_step, self._dashboards
        if step == 0:
            shown.layout()
        shown.preview(rates)
        shown.begin_trial(name, config["flags"])
        parts = [(part, value) for part in ("flags", "recipe", "chosen") for value in config.get(part, {}).items()]
        rows = [(f"{part}: {name}", value) for part, (name, value) in parts]
        shown.text("train", step, "configuration", dashboards.table(rows, ("", "value")))
        shown.text("train", step, "command", dashboards.verbatim([config.get("command", "")]))
        shown.text("train", step, "versions", dashboards.table(config["versions"].items(), ("package", "version")))
        shown.text(
            "train", step, "label_names", dashboards.table(enumerate(self._label_names[:1000]), ("class", "name"))
        )
        shown.text("train", step, "banner", dashboards.verbatim(f"{name:<12} {text}" for name, text in banner))
        self._paint(self._paint_training_images)

    def point(self, step: int, values: dict[str, float], steps: int, seconds: float) -> None:
        """Show a point of the training's curves.

        Args:
          step: the steps that are done.
          values: by tag.
          steps, seconds: the steps since the last point that count for speed, and how long they took; they may be 0.
        """
        shares = self.shares.take()
        if self._silent:
            return
        values = values | shares | speed.memory()
        values["weight_norm"] = float(speed.norm(self._model.network.trainable_variables))
        if steps:
            values["step_seconds"] = seconds / steps
            if self._compute.peak:
                values["flops_utilisation"] = self._compute.of_steps(step - steps, steps) / seconds / self._compute.peak
        self._dashboards.scalars("train", step, values)

    def evaluated(self, step: int, values: dict[str, float]) -> None:
        """Show an evaluation, whose metrics the model still holds."""
        if self._silent:
            return
        shown, model = self._dashboards, self._model
        shown.scalars("test", step, values)
        if model.confidences is not None:
            counts = model.confidences.result().numpy()
            chosen = np.sort(np.argsort(-counts[:, 1].sum(axis=1), kind="stable")[:CURVES])
            shown.precision_recall(step, {int(i): self._label_names[i] for i in chosen}, counts)
        if self._histograms:
            weights = self._model.network.trainable_variables
            names = [f"weights/{i:03} {weight.name}" for i, weight in enumerate(weights)]
            shown.histograms(step, {name: weight.numpy() for name, weight in zip(names, weights)})
        quick = time.monotonic() - self._painted_at > self._paint_seconds / PICTURE_SHARE
        if step == self._total_steps or (quick and all(painting.done() for painting in self._painting)):
            self._paint_evaluation(step)
        shown.flush()

    def end(self, step: int, results: dict) -> None:
        """Show the results, and wait until all is drawn."""
        if not self._silent and self._painted_step != step:
            self._paint_evaluation(step)  # of a run that ended before its last step
        self._wait()
        if not self._silent:
            self._dashboards.end_trial(step, results)

    def rewind(self, step: int, evaluated_step: int) -> None:
        """Forget what was shown beyond a step, which is gone back to; see `Dashboards.rewind`."""
        self._wait()
        self._dashboards.rewind(step, evaluated_step)

    def flush(self) -> None:
        """Bring to disk what was written."""
        self._dashboards.flush()

    def close(self) -> None:
        """Stop drawing and close the files; for every exit."""
        self.profile.stop()
        self._painter.shutdown(cancel_futures=True)
        self._dashboards.close()

    def _paint(self, function, *arguments) -> None:
        def timed():
            began = time.monotonic()
            function(*arguments)
            self._painted_at = time.monotonic()
            self._paint_seconds = self._painted_at - began

        self._painting.append(self._painter.submit(timed))

    def _wait(self) -> None:
        for painting in self._painting:
            painting.result()
        self._painting.clear()

    def _paint_evaluation(self, step: int) -> None:
        """Draw the confusion matrix and the worst mistakes as the model's metrics have them now."""
        self._painted_step = step
        if self._model.confusion is not None:
            self._paint(self._paint_confusion_matrix, step, self._model.confusion.result().numpy())
        worst = self._model.mistakes.worst()
        names = self._label_names
        self.mistakes = [
            {"row": m.row, "label": names[m.label], "predicted": names[m.predicted], "confidence": m.confidence}
            for m in worst
        ]
        if worst and self._describe is not None:
            for mistake, text in zip(self.mistakes, self._describe([m.row for m in worst])):
                mistake["text"] = text[:TEXT_CHARACTERS]
            rows = [mistake.values() for mistake in self.mistakes]
            self._dashboards.text("test", step, "worst_mistakes", dashboards.table(rows, self.mistakes[0]))
        elif worst and self._test.examples.lengths is None:
            self._paint(self._paint_mistakes, step, worst)

    def _paint_training_images(self) -> None:
        batch = self._train.beginning(pictures.GRID_IMAGES, self._first_step)
        if pictures.are_images(batch["inputs"]):
            captions = [dashboards.shortened(self._label_names[label]) for label in batch["labels"].numpy()]
            png = pictures.grid(batch["inputs"].numpy(), captions)
            self._dashboards.image("train", self._first_step, "training_images", png)

    def _paint_confusion_matrix(self, step: int, counts: np.ndarray) -> None:
        png = pictures.confusion_matrix(counts, self._label_names)
        self._dashboards.image("test", step, "confusion_matrix", png)

    def _paint_mistakes(self, step: int, worst: list[scores.Mistake]) -> None:
        rows = tf.constant([mistake.row for mistake in worst], tf.int64)
        inputs = self._test.examples.inputs(rows, None, None)
        if pictures.are_images(inputs):
            names = [dashboards.shortened(name) for name in self._label_names]
            captions = [f"{names[m.label]}\nnot {names[m.predicted]} ({m.confidence:.2f})" for m in worst]
            self._dashboards.image("test", step, "worst_mistakes", pictures.grid(inputs.numpy(), captions, wrong=True))


class Compute:
    """What training computes in a step, and what the devices could.

    Attributes:
      peak: of all devices together in FLOP/s; None where it is not known.
      text: both, for the banner.
    """

    def __init__(self, train: Batches, model: TrainingModel, runtime: Runtime):
        self._train = train
        self._forward = _forward_by_length(train, model)
        self.peak, origin = _peak(runtime)
        peak = f"the peak is {flops.text(self.peak)}/s, {origin}" if self.peak else origin
        if self._forward is None:
            self.peak = None
            self.text = f"not counted: shapes in the network are known only when it runs; {peak}"
        else:
            self.text = f"{flops.text(self.of_steps(0, min(100, train.steps_per_epoch), mean=True))} in a step; {peak}"

    def of_steps(self, first_step: int, steps: int, mean: bool = False) -> float:
        """The operations of real examples in `steps` steps from `first_step` on, or those of a step on average."""
        by_length = [self._forward[length] for length in self._train.length_of_each(first_step, steps)]
        examples = self._train.examples_at(first_step, steps)
        total = flops.BACKWARD_AND_FORWARD * examples * float(np.mean(by_length))
        return total / steps if mean else total


def _forward_by_length(train: Batches, model: TrainingModel) -> dict[int, float] | None:
    """The operations of an example's forward pass by batch length; None where they cannot be counted.

    They are counted at three lengths at most. A Transformer's are a quadratic polynomial of the length.
    """
    lengths = list(train.batch_lengths) or [0]
    counted = sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]})
    found = []
    for length in counted:
        inputs = train.examples.inputs(tf.zeros([1], tf.int64), tf.constant(length) if length else None, None)
        signature = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), inputs)
        found.append(flops.forward(lambda inputs: model(inputs, training=False), signature))
    if None in found:
        return None
    polynomial = np.polynomial.Polynomial.fit(counted, found, len(counted) - 1) if len(counted) > 1 else None
    return {length: polynomial(length) if polynomial else found[0] for length in lengths}


def _peak(runtime: Runtime) -> tuple[float | None, str]:
    """The peak of all devices together in FLOP/s, and where the number comes from."""
    kind = "16-bit" if runtime.precision != "float32" else "float32"
    gpus = tf.config.get_visible_devices("GPU")  # `runtime.start` leaves those that are used
    if gpus:
        name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "")
        known = flops.known_peak(name, runtime.precision)
        origin = f"{kind}, as its maker states for {name}" if known else f"measured on {kind} matrix products"
        return (known or flops.measured_peak(runtime.precision, 8192)) * len(gpus), origin
    if runtime.precision == "mixed_float16":
        return None, "no peak: float16 has no fast kernels on the CPU"
    return flops.measured_peak(runtime.precision), f"measured on {kind} matrix products"
