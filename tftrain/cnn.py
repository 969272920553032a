"""Image classification with a convolutional network.

python -m tftrain.cnn
python -m tftrain.cnn --gpus=4 --batch_size=1024 --epochs=20
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
    folder = sets.find(FLAGS.dataset, sets.IMAGES)

    with quiet.notices():
        from tftrain import resuming, runtime, trainer
        from tftrain.data import images
        from tftrain.data.batching import Batches
        from tftrain.networks import convolutional

        devices = runtime.start(hardware)
    trainer.check_batches(recipe, devices)
    training, label_names = images.read(folder, "train")
    testing, _ = images.read(folder, "test")
    if FLAGS.flip:
        training = dataclasses.replace(training, augment=images.flip)
    shape = training.images.shape[1:]
    if testing.images.shape[1:] != shape:
        raise UserError(f"--dataset={folder}: test images are {testing.images.shape[1:]}, training images {shape}")
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


if __name__ == "__main__":
    flags.run(main)
