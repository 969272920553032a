"""Evaluate a saved run on labelled data: loss, accuracy, figures of each class, and the confusion matrix."""

import numpy as np
import tensorflow as tf

from tftrain import console
from tftrain.data.batching import Batches
from tftrain.run_directory import RunDirectory
from tftrain.runtime import Runtime
from tftrain.saved_run import SavedRun

FILE = "evaluation.json"
# Classes whose confusion matrix is shown; the file has it whole.
_SHOWN = 20


def evaluate(run: SavedRun, batches: Batches, runtime: Runtime, data: str) -> dict:
    """Evaluate, show a table on standard error, and write evaluation.json into the run's folder.

    Args:
      run: from `saved_run.load` under this runtime.
      batches: not shuffled; their labels are numbers of the run's `label_names`.
      runtime: whose replicas share each batch.
      data: names the data.

    Returns:
      what is in evaluation.json.

    Raises:
      UserError: the file cannot be written.
    """
    log_probabilities = compute(run, batches, runtime)
    results = {
        "data": data,
        "checkpoint": run.checkpoint.relative_to(run.path).as_posix(),
        "step": run.step,
        "precision": runtime.precision,
        "replicas": runtime.replicas,
        **measure(np.asarray(batches.examples.labels), log_probabilities, run.label_names),
    }
    for line in table(results):
        console.say(line)
    RunDirectory.open(run.path).write_json(FILE, results)
    console.say(f"results      {run.path / FILE}")
    return results


def compute(run: SavedRun, batches: Batches, runtime: Runtime) -> np.ndarray:
    """The logarithms of all classes' probabilities for each example: float64 [count, classes]."""

    @tf.function(jit_compile=runtime.xla or None)
    def logits(inputs):
        return tf.cast(run.network(inputs, training=False), tf.float32)

    @tf.function
    def step(batch):
        return runtime.strategy.run(logits, args=(batch["inputs"],))

    found = np.empty([batches.count, len(run.label_names)])
    iterator = iter(batches.distribute(runtime.strategy))
    local = runtime.strategy.experimental_local_results
    for _ in range(batches.steps_per_epoch):
        batch = next(iterator)
        parts = zip(local(batch["rows"]), local(batch["weights"]), local(step(batch)))
        for rows, weights, values in parts:
            real = weights.numpy() > 0
            found[rows.numpy()[real]] = values.numpy()[real]
    found -= found.max(axis=1, keepdims=True)
    return found - np.log(np.exp(found).sum(axis=1, keepdims=True))


def measure(labels: np.ndarray, log_probabilities: np.ndarray, label_names: list[str]) -> dict:
    """The figures.

    Precision of a class that was never predicted, recall of one that does not occur, and F1 of one with neither are 0;
    macro averages are over the classes that occur, weighted ones by how often.

    Args:
      labels: int [count].
      log_probabilities: [count, classes].
      label_names: the classes.
    """
    classes = len(label_names)
    predicted = log_probabilities.argmax(axis=1)
    matrix = np.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)
    right, actual, taken = np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)
    by_class = {
        "precision": right / np.maximum(taken, 1),
        "recall": right / np.maximum(actual, 1),
        "f1": 2 * right / np.maximum(actual + taken, 1),
    }
    occurs = actual > 0
    return {
        "examples": len(labels),
        "accuracy": float(right.sum() / len(labels)),
        "loss": float(-log_probabilities[np.arange(len(labels)), labels].mean()),
        "macro": {name: float(values[occurs].mean()) for name, values in by_class.items()},
        "weighted": {name: float((values * actual).sum() / len(labels)) for name, values in by_class.items()},
        "classes": [
            {"label": name, **{key: float(values[i]) for key, values in by_class.items()}, "examples": int(actual[i])}
            for i, name in enumerate(label_names)
        ],
        "confusion": matrix.tolist(),
    }


def table(results: dict) -> list[str]:
    """What `measure` found, as lines to read."""
    rows = [(entry["label"], entry) for entry in results["classes"]]
    rows += [(f"({name} average)", results[name] | {"examples": results["examples"]}) for name in ("macro", "weighted")]
    width = max(len(name) for name, _ in rows)
    lines = [f"accuracy     {results['accuracy']:.4f} on {results['examples']:,} examples; loss {results['loss']:.4f}"]
    lines.append(f"{'class':<{width}}  precision  recall      F1  examples")
    lines += [
        f"{name:<{width}}  {row['precision']:9.4f}  {row['recall']:6.4f}  {row['f1']:6.4f}  {row['examples']:8,}"
        for name, row in rows
    ]
    if len(results["classes"]) > _SHOWN:
        return [*lines, f"the confusion matrix of {len(results['classes'])} classes is in {FILE}"]
    matrix = results["confusion"]
    digits = max(4, len(str(max(map(max, matrix)))))
    lines.append("confusion matrix: a row for each true class, a column for each predicted one, in this order")
    lines += [
        f"{entry['label']:<{width}}  " + " ".join(f"{count:{digits}}" for count in row)
        for entry, row in zip(results["classes"], matrix)
    ]
    return lines
