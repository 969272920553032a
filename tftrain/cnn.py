"""Image classification with a convolutional network.

python -m tftrain.cnn
python -m tftrain.cnn --dataset=FOLDER --random_crop
python -m tftrain.cnn --gpus=4 --batch_size=1024 --epochs=20
python -m tftrain.cnn --mode=evaluate --run_dir=runs/cnn/DATE-TIME
"""

import dataclasses
import time

from absl import flags as absl_flags

from tftrain import configuration, flags, quiet, run_directory
from tftrain.configuration import Augmentation, Recipe
from tftrain.data import fashion_mnist, image_folders, image_sets, sets
from tftrain.errors import UserError

RECIPE = Recipe(batch_size=64, epochs=20, learning_rate=1e-3, optimizer="adam", schedule="cosine", warmup=0.05)
SKIPPED = "skipped_files.txt"

FLAGS = flags.FLAGS
flags.define_modes("train", "evaluate", "predict")
flags.define_shared(default=RECIPE)
flags.define_data(
    default="fashion_mnist_subset",
    ships=f"{', '.join(sets.IMAGES)} ships, {fashion_mnist.NAME} is Debian's package {fashion_mnist.PACKAGE}",
    own="a folder of class folders",
)
flags.group(
    "Data",
    flags.integer("image_size", None, "side of the squares that the network sees (default: the images' own, or 128)"),
    absl_flags.DEFINE_enum("channels", "auto", image_sets.CHANNELS, "1: grey, 3: RGB; auto: 1 if all images are grey"),
    absl_flags.DEFINE_enum(
        "bad_files",
        "refuse",
        image_folders.BAD_FILES,
        f"in class folders, files that are no images; listed in {SKIPPED}",
    ),
)
flags.group(
    "Augmentation",
    absl_flags.DEFINE_bool("flip", True, "mirror training images left to right at random"),
    flags.integer("shift", 0, "move them by up to so many pixels each way"),
    absl_flags.DEFINE_bool("random_crop", False, "take a random part of each in place of its middle"),
    flags.numbers("crop_scale", Augmentation.crop_scale, "least and greatest share of the area in that part"),
    flags.numbers("crop_ratio", Augmentation.crop_ratio, "least and greatest width over height of that part"),
    flags.integers("randaugment", None, "N,M: N of 14 operations, such as turns and contrast, at magnitude M of 10"),
    flags.number("colour_jitter", 0.0, "change brightness, contrast and saturation by up to this share"),
)
flags.group(
    "Network",
    absl_flags.DEFINE_enum(
        "network",
        "plain",
        ("plain", "normalised"),
        "plain: convolution, ReLU, max-pooling; normalised: with batch normalisation, and dropout",
    ),
    flags.integers("filters", None, "channels of each stage (default: 64,128 up to 32x32, more stages beyond)"),
    flags.integer("dense_units", 128, "width of the head's hidden layer"),
    flags.number("dropout", None, "rate before each dense layer (default: 0 plain, 0.3 normalised)"),
)


def augmentation() -> Augmentation:
    """How the flags say that training images are changed.

    Raises:
      UserError: a value is out of range.
    """
    return Augmentation(
        flip=FLAGS.flip,
        shift=FLAGS.shift,
        random_crop=FLAGS.random_crop,
        crop_scale=FLAGS.crop_scale,
        crop_ratio=FLAGS.crop_ratio,
        randaugment=None if FLAGS.randaugment is None else tuple(FLAGS.randaugment),
        colour_jitter=FLAGS.colour_jitter,
    )


def evaluation_batch_size() -> int:
    """How many images the flags let a trained network see at once, over all replicas together.

    Raises:
      UserError: it is no count.
    """
    size = FLAGS.eval_batch_size or FLAGS.batch_size or RECIPE.evaluation_batch_size
    configuration.check_count("eval_batch_size", size)
    return size


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
    hardware, recipe = flags.hardware(), flags.recipe(RECIPE)
    saving, showing = flags.saving(), flags.showing()
    source, changes = flags.data(), augmentation()
    dropout = FLAGS.dropout if FLAGS.dropout is not None else {"plain": 0.0, "normalised": 0.3}[FLAGS.network]
    configuration.check_number("dropout", dropout, 0, 1)
    configuration.check_count("dense_units", FLAGS.dense_units)
    for channels in FLAGS.filters or ():
        configuration.check_count("filters", channels)
    if FLAGS.image_size is not None:
        configuration.check_count("image_size", FLAGS.image_size)
    if FLAGS.run_dir is not None:
        run_directory.check(FLAGS.run_dir, saving.resume)
    data = image_sets.find(source, recipe.seed, FLAGS.bad_files)

    with quiet.notices():
        from tftrain import resuming, runtime, trainer
        from tftrain.data.batching import Batches
        from tftrain.networks import convolutional

        devices = runtime.start(hardware)
    trainer.check_batches(recipe, devices)
    if not isinstance(data, image_sets.ImageData):
        data = image_sets.read_set(data, source, recipe.seed)
    shape, size_text = image_sets.choose_shape(data, FLAGS.image_size, FLAGS.channels)
    filters = convolutional.stages(max(shape[:2])) if FLAGS.filters is None else FLAGS.filters
    if min(shape[:2]) < 2 ** len(filters):
        raise UserError(f"--filters: {len(filters)} stages halve images of {shape[0]}x{shape[1]} to nothing")
    training, testing, cache_text = image_sets.make_examples(data, shape, changes, source.cache)

    network = {
        "kind": FLAGS.network,
        "input_shape": list(shape),
        "classes": len(data.label_names),
        "filters": filters,
        "dense_units": FLAGS.dense_units,
        "dropout": dropout,
    }
    given = flags.resolved(recipe, dropout=dropout, filters=filters)
    run = resuming.open_run(FLAGS.run_dir, "cnn", saving, given)
    notes = [*data.notes, ("images", size_text), ("cache", cache_text)]
    if data.skipped:
        (run.path / SKIPPED).write_text("".join(f"{path}: {why}\n" for path, why in data.skipped), encoding="utf-8")
        notes.append(("skipped", f"they are listed in {run.path / SKIPPED}"))
    task = trainer.Task(
        name="cnn",
        train=Batches(training, recipe.batch_size, seed=recipe.seed, row_multiple=recipe.accumulate_steps),
        test=Batches(testing, recipe.evaluation_batch_size),
        label_names=data.label_names,
        build_network=lambda: convolutional.build(**network),
        network=network,
        inputs={"image_size": list(shape[:2]), "channels": shape[2]},
        notes=tuple(notes),
    )
    trainer.train(task, recipe, devices, run, saving=saving, showing=showing, flags=given, started=started)


def evaluate() -> None:
    """Evaluate the run in --run_dir on the test split of --dataset, or of the data set that it was trained on."""
    hardware, run_dir = flags.hardware(), flags.saved_run_dir()
    config = run_directory.RunDirectory.open(run_dir).config
    source = flags.data_of(config["flags"], run_dir)
    size = evaluation_batch_size()
    seed = config["recipe"].get("seed")
    seed = seed if isinstance(seed, int) else 0
    data = image_sets.find(source, seed, FLAGS.bad_files)

    with quiet.notices():
        from tftrain import console, evaluation, runtime, saved_run
        from tftrain.data import images, labels
        from tftrain.data.batching import Batches

        devices = runtime.start(hardware)
    if size < devices.replicas:
        raise UserError(f"--eval_batch_size={size}: smaller than the number of replicas, {devices.replicas}")
    run = saved_run.load(run_dir, "cnn", devices, FLAGS.checkpoint)
    if not isinstance(data, image_sets.ImageData):
        data = image_sets.read_set(data, source, seed)
    place = source.dataset or source.test_data or source.train_data
    numbers = labels.encode(
        [data.label_names[label] for label in data.test.labels],
        run.label_names,
        lambda row: f"--dataset={place}: {data.test.name(row)}",
    )
    shape = run.config["network"]["input_shape"]
    image_sets.check_channels(data.test, shape)
    testing = images.ImageExamples(dataclasses.replace(data.test, labels=numbers), tuple(shape[:2]), shape[2])
    console.say(f"run          {run.path}, weights of step {run.step:,}: {run.checkpoint}")
    console.say(f"devices      {devices.devices}; {devices.precision}")
    console.say(f"data         {len(numbers):,} test examples of {place}")
    evaluation.evaluate(run, Batches(testing, size), devices, str(place))


def predict() -> None:
    """Predict the classes of the images that --input names, with the run in --run_dir."""
    hardware, run_dir = flags.hardware(), flags.saved_run_dir()
    if FLAGS.input is None:
        raise UserError("--mode=predict: needs --input=FILE, a folder, or - for paths on standard input")
    size = evaluation_batch_size()
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
