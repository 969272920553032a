"""Image classification with a convolutional network.

python -m tftrain.cnn
python -m tftrain.cnn --gpus=4 --batch_size=1024 --epochs=20
python -m tftrain.cnn --mode=evaluate --run_dir=runs/cnn/DATE-TIME
"""

import dataclasses
import time

from absl import flags as absl_flags

from tftrain import configuration, flags, quiet, run_directory
from tftrain.configuration import Recipe
from tftrain.data import sets
from tftrain.errors import UserError

RECIPE = Recipe(batch_size=64, epochs=20, learning_rate=1e-3, optimizer="adam", schedule="cosine", warmup=0.05)

FLAGS = flags.FLAGS
flags.define_modes("train", "evaluate", "predict")
flags.define_shared(default=RECIPE)
flags.group(
    "Data",
    absl_flags.DEFINE_string(
        "dataset",
        "fashion_mnist_subset",
        f"one that ships ({', '.join(sets.IMAGES)}), or a prepared TFDS data set's folder",
    ),
    absl_flags.DEFINE_bool("flip", True, "mirror training images left to right at random"),
)
flags.group(
    "Network",
    absl_flags.DEFINE_enum(
        "network",
        "plain",
        ("plain", "normalised"),
        "plain: convolution, ReLU, max-pooling; normalised: with batch normalisation, and dropout",
    ),
    flags.integers("filters", [64, 128], "channels of each stage"),
    flags.integer("dense_units", 128, "width of the head's hidden layer"),
    flags.number("dropout", None, "rate before each dense layer (default: 0 plain, 0.3 normalised)"),
)


def main() -> None:
    """Do what --mode says."""
    if FLAGS.mode == "evaluate":
        evaluate()
    elif FLAGS.mode == "predict":
        predict()
    else:
        train()


def train() -> None:
    """Train as the flags say."""
    started = time.monotonic()
    hardware, recipe, saving = flags.hardware(), flags.recipe(RECIPE), flags.saving()
    dropout = FLAGS.dropout if FLAGS.dropout is not None else {"plain": 0.0, "normalised": 0.3}[FLAGS.network]
    configuration.check_number("dropout", dropout, 0, 1)
    configuration.check_count("dense_units", FLAGS.dense_units)
    for channels in FLAGS.filters:
        configuration.check_count("filters", channels)
    if FLAGS.run_dir is not None:
        run_directory.check(FLAGS.run_dir, saving.resume)
    source = configuration.DataSource(dataset=FLAGS.dataset)
    found = sets.find(source, sets.IMAGES)

    with quiet.notices():
        from tftrain import resuming, runtime, trainer
        from tftrain.data import images
        from tftrain.data.batching import Batches
        from tftrain.networks import convolutional

        devices = runtime.start(hardware)
    trainer.check_batches(recipe, devices)
    data = sets.TfdsSet(found, source)
    label_names = data.label_names
    training, testing = images.read(data, data.train_split), images.read(data, data.test_split)
    if FLAGS.flip:
        training = dataclasses.replace(training, augment=images.flip)
    shape = training.images.shape[1:]
    if testing.images.shape[1:] != shape:
        raise UserError(f"{data.place}: test images are {testing.images.shape[1:]}, training images {shape}")
    if min(shape[:2]) < 2 ** len(FLAGS.filters):
        raise UserError(f"--filters: {len(FLAGS.filters)} stages halve images of {shape[0]}x{shape[1]} to nothing")

    network = {
        "kind": FLAGS.network,
        "input_shape": list(shape),
        "classes": len(label_names),
        "filters": FLAGS.filters,
        "dense_units": FLAGS.dense_units,
        "dropout": dropout,
    }
    given = flags.resolved(recipe, dropout=dropout)
    run = resuming.open_run(FLAGS.run_dir, "cnn", saving, given)
    task = trainer.Task(
        name="cnn",
        train=Batches(training, recipe.batch_size, seed=recipe.seed, row_multiple=recipe.accumulate_steps),
        test=Batches(testing, recipe.evaluation_batch_size),
        label_names=label_names,
        build_network=lambda: convolutional.build(**network),
        network=network,
        inputs={"image_size": list(shape[:2]), "channels": shape[2]},
    )
    trainer.train(task, recipe, devices, run, saving=saving, flags=given, started=started)


def evaluate() -> None:
    """Evaluate the run in --run_dir on the test split of --dataset, or of the data set that it was trained on."""
    hardware, run_dir = flags.hardware(), flags.saved_run_dir()
    config = run_directory.RunDirectory.open(run_dir).config
    dataset = FLAGS.dataset if FLAGS["dataset"].present else config["flags"].get("dataset")
    if not isinstance(dataset, str):
        raise UserError(f"--run_dir={run_dir}: does not say what it was trained on; give --dataset")
    size = FLAGS.eval_batch_size or FLAGS.batch_size or RECIPE.evaluation_batch_size
    configuration.check_count("eval_batch_size", size)
    source = configuration.DataSource(dataset=dataset)
    found = sets.find(source, sets.IMAGES)

    with quiet.notices():
        from tftrain import console, evaluation, runtime, saved_run
        from tftrain.data import images, labels
        from tftrain.data.batching import Batches

        devices = runtime.start(hardware)
    if size < devices.replicas:
        raise UserError(f"--eval_batch_size={size}: smaller than the number of replicas, {devices.replicas}")
    run = saved_run.load(run_dir, "cnn", devices, FLAGS.checkpoint)
    data = sets.TfdsSet(found, source)
    testing, names = images.read(data, data.test_split), data.label_names
    shape, needed = testing.images.shape[1:], tuple(run.config["network"]["input_shape"])
    if shape != needed:
        raise UserError(f"{data.place}: test images are {shape}; the run was trained on {needed}")
    numbers = labels.encode(
        [names[label] for label in testing.labels],
        run.label_names,
        lambda row: f"{data.place}: row {row + 1} of {data.test_split}",
    )
    testing = dataclasses.replace(testing, labels=numbers)
    console.say(f"run          {run.path}, weights of step {run.step:,}: {run.checkpoint}")
    console.say(f"devices      {devices.devices}; {devices.precision}")
    console.say(f"data         {len(numbers):,} test examples of {dataset}")
    evaluation.evaluate(run, Batches(testing, size), devices, dataset)


def predict() -> None:
    """Predict the classes of the images that --input names, with the run in --run_dir."""
    hardware, run_dir = flags.hardware(), flags.saved_run_dir()
    if FLAGS.input is None:
        raise UserError("--mode=predict: needs --input=FILE, a folder, or - for paths on standard input")
    size = FLAGS.eval_batch_size or FLAGS.batch_size or RECIPE.evaluation_batch_size
    configuration.check_count("eval_batch_size", size)
    run_directory.RunDirectory.open(run_dir)

    with quiet.notices():
        from tftrain import console, prediction, runtime, saved_run

        devices = runtime.start(hardware)
    run = saved_run.load(run_dir, "cnn", devices, FLAGS.checkpoint)
    console.say(f"run          {run.path}, weights of step {run.step:,}: {run.checkpoint}")
    rows = prediction.predict(run, prediction.image_files(FLAGS.input), devices, size)
    count, errors = prediction.write(rows, run.label_names, FLAGS.output, FLAGS.format)
    console.say(f"predicted    {count - errors:,} images; {FLAGS.output or 'standard output'}")
    if errors:
        console.say(f"note         {errors:,} inputs could not be read: their rows have an error and no label")


if __name__ == "__main__":
    flags.run(main)
