import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests import helpers
from tests.helpers import VectorExamples
from tftrain import training_step
from tftrain.data import batching
from tftrain.data.batching import Batches
from tftrain.errors import UserError

LOG = np.log


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def scaled_logits(classes: int) -> keras.Model:
    """A network whose logits are its inputs times one weight, which starts at 1."""

    class Scale(keras.layers.Layer):
        def build(self, shape):
            self.weight = self.add_weight("weight", [], initializer="ones")

        def call(self, inputs):
            return inputs * self.weight

    inputs = keras.Input([classes])
    return keras.Model(inputs, Scale()(inputs))


def logits_of_losses(losses) -> np.ndarray:
    """Two-class logits with which label 0 has these losses: log(1 + e^z) = loss."""
    return np.stack([np.zeros(len(losses)), LOG(np.expm1(losses))], axis=1).astype(np.float32)


@pytest.fixture(params=[1, 2])
def replicas(request):
    return request.param


# The loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_losses_are_the_cross_entropy_with_smoothed_labels(smoothing):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(7, 4)) * 5
    labels = generator.integers(0, 4, 7)
    targets = np.eye(4)[labels] * (1 - smoothing) + smoothing / 4
    expected = -np.sum(targets * LOG(softmax(logits)), axis=1)
    found = training_step.example_losses(labels.astype(np.int32), tf.constant(logits, tf.float32), smoothing)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_losses_are_float32_and_finite_for_extreme_logits(dtype):
    logits = tf.constant([[3e4, -3e4], [-3e4, 3e4]], dtype)
    found = training_step.example_losses(tf.constant([1, 1]), logits, 0.1)
    assert found.dtype == tf.float32
    assert np.all(np.isfinite(found))


def test_an_epoch_s_loss_is_the_mean_over_its_examples(replicas):
    # Batches with the means 10 and 9, of which the second holds one example.
    examples = VectorExamples(logits_of_losses([10.0, 10.0, 9.0]), np.zeros(3, np.int32))
    run = helpers.start(replicas)
    model = helpers.make_model(run, lambda: scaled_logits(2), lambda _: keras.optimizers.SGD(0.0), classes=2)
    steps = helpers.fit(model, run, Batches(examples, 2), 2)
    assert steps == pytest.approx([10, 9], rel=1e-5)
    assert float(model.loss_metric.result()) == pytest.approx(29 / 3, rel=1e-5)
    model.evaluate(Batches(examples, 2).distribute(run.strategy), steps=2, verbose=0)
    assert float(model.loss_metric.result()) == pytest.approx(29 / 3, rel=1e-5)
    assert int(model.accuracy_metric.count.numpy()) == 3


@pytest.mark.parametrize("step, rows", [(0, [0, 1]), (1, [2])])
def test_a_step_s_gradient_is_the_mean_over_its_true_count(replicas, step, rows):
    logits = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    labels = np.array([1, 0, 3], np.int32)
    run = helpers.start(replicas)
    model = helpers.make_model(run, lambda: scaled_logits(4), lambda _: keras.optimizers.SGD(1.0), classes=4)
    helpers.fit(model, run, Batches(VectorExamples(logits, labels), 2), 1, first_step=step)
    # d loss / d weight of a row: the sum over classes of (probability - target) times its input.
    gradients = np.sum((softmax(logits) - np.eye(4)[labels]) * logits, axis=1)
    (found,) = helpers.weights(model)
    assert found == pytest.approx(1 - np.mean(gradients[rows]), rel=1e-5)


# Replicas


def test_a_last_batch_of_one_row_and_another_number_of_replicas_change_nothing():
    training, testing = helpers.vectors(65), helpers.vectors(129, seed=1)
    results = {}
    for replicas in (1, 2, 4):
        run = helpers.start(replicas)
        model = helpers.make_model(run, lambda: helpers.dense_network(dropout=0.2))
        losses = helpers.fit(model, run, Batches(training, 64, seed=2), 4)
        model.evaluate(Batches(testing, 64).distribute(run.strategy), steps=3, verbose=0)
        assert int(model.accuracy_metric.count.numpy()) == 129
        results[replicas] = [*losses, float(model.loss_metric.result()), float(model.accuracy_metric.result())]
        assert np.all(np.isfinite(results[replicas]))
    np.testing.assert_allclose(results[2], results[1], rtol=1e-5)
    np.testing.assert_allclose(results[4], results[1], rtol=1e-5)


def test_any_number_of_rows_trains_and_is_evaluated_in_batches_of_another_size():
    run = helpers.start(2)
    model = helpers.make_model(run, helpers.dense_network)
    for count in range(17, 25):
        batches = Batches(helpers.vectors(count), 8, seed=1)
        losses = helpers.fit(model, run, batches, batches.steps_per_epoch)
        assert len(losses) == 3 and np.all(np.isfinite(losses))
        testing = Batches(helpers.vectors(count, seed=2), 5)
        model.evaluate(testing.distribute(run.strategy), steps=testing.steps_per_epoch, verbose=0)
        assert int(model.accuracy_metric.count.numpy()) == count


@pytest.mark.parametrize("replicas, batch_size", [(1, 64), (2, 7), (3, 64), (4, 999)])
def test_the_confusion_matrix_counts_every_example_once(replicas, batch_size):
    generator = np.random.default_rng(3)
    logits = generator.normal(size=(1000, 5)).astype(np.float32)
    labels = generator.integers(0, 5, 1000).astype(np.int32)
    expected = np.zeros((5, 5), int)
    np.add.at(expected, (labels, np.argmax(logits, axis=1)), 1)
    run = helpers.start(replicas)
    model = helpers.make_model(run, lambda: scaled_logits(5), classes=5)
    testing = Batches(VectorExamples(logits, labels), batch_size)
    for _ in range(2):  # it starts anew with each evaluation
        model.evaluate(testing.distribute(run.strategy), steps=testing.steps_per_epoch, verbose=0)
        found = model.confusion.result().numpy()
        assert found.sum() == 1000
        np.testing.assert_array_equal(found, expected)
    assert float(model.accuracy_metric.result()) == np.trace(expected) / 1000
    losses = -LOG(softmax(logits.astype(np.float64)))[np.arange(1000), labels]
    assert float(model.loss_metric.result()) == pytest.approx(losses.mean(), rel=1e-6)


def test_a_confusion_matrix_of_very_many_classes_is_not_kept():
    assert training_step.TrainingModel(helpers.dense_network(classes=9), classes=1001, xla=False).confusion is None


def test_replicas_evaluate_with_the_moving_averages_that_are_saved():
    run = helpers.start(4)
    model = helpers.make_model(run, lambda: helpers.build_network("normalised"))
    helpers.fit(model, run, Batches(helpers.images(16), 8, seed=1), 4)
    averages = [weight for weight in model.network.non_trainable_weights]
    assert any(not np.array_equal(*helpers.components(weight)[:2]) for weight in averages)
    means = [np.mean(helpers.components(weight), axis=0) for weight in averages]
    model.synchronise_statistics()
    for weight, mean in zip(averages, means):
        for value in helpers.components(weight):
            np.testing.assert_allclose(value, mean, rtol=1e-6)

    testing = helpers.images(40, seed=9)
    model.evaluate(Batches(testing, 12).distribute(run.strategy), steps=4, verbose=0)
    copy = helpers.build_network("normalised")
    copy.set_weights(model.network.get_weights())
    expected = training_step.example_losses(testing.labels, copy(testing.source.images, training=False))
    assert float(model.loss_metric.result()) == pytest.approx(float(np.mean(expected)), rel=1e-5)


# Micro-batches


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("accumulate_steps", [2, 4, 8])
def test_micro_batches_give_the_gradients_of_the_whole(accumulate_steps, xla):
    examples = helpers.vectors(13)
    (batch,) = helpers.elements(Batches(examples, 8, seed=1), 1, 1, first_step=1)[0]  # 5 of its 8 rows count

    def gradients(accumulate_steps, xla):
        model = helpers.make_model(
            helpers.start(xla=xla), lambda: helpers.dense_network(dropout=0.4), accumulate_steps=accumulate_steps
        )
        tensors = tf.nest.map_structure(tf.constant, batch)
        return [tf.nest.map_structure(np.asarray, part) for part in model._gradients(tensors, tf.ones([]))]

    whole, losses, correct = gradients(1, False)
    found, found_losses, found_correct = gradients(accumulate_steps, xla)
    assert float(batch["examples"]) == 5
    for value, expected in zip(found, whole):
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    np.testing.assert_allclose(found_losses, losses, rtol=1e-6)
    np.testing.assert_array_equal(found_correct, correct)


def test_micro_batches_of_texts_give_the_gradients_of_the_whole():
    batches = helpers.batches_for("bert", 16, 8, seed=1)
    (batch,) = helpers.elements(batches, 1, 1)[0]

    def gradients(accumulate_steps):
        model = helpers.make_model(
            helpers.start(), lambda: helpers.build_network("bert", 0.3), accumulate_steps=accumulate_steps
        )
        found = model._gradients(tf.nest.map_structure(tf.constant, batch), tf.ones([]))[0]
        return helpers.flat(gradient.numpy() for gradient in found)

    whole = gradients(1)
    assert np.linalg.norm(gradients(4) - whole) < 1e-6 * np.linalg.norm(whole)


# Precision


def test_the_gradient_does_not_depend_on_the_loss_scale():
    examples = helpers.vectors(8)
    found = {}
    for scale in (1.0, 1024.0):
        run = helpers.start(precision="mixed_float16", xla=True)
        model = helpers.make_model(
            run,
            helpers.dense_network,
            lambda _, scale=scale: keras.mixed_precision.LossScaleOptimizer(
                keras.optimizers.SGD(1.0), dynamic=False, initial_scale=scale
            ),
        )
        before = helpers.flat(helpers.weights(model))
        helpers.fit(model, run, Batches(examples, 8), 1)
        found[scale] = helpers.flat(helpers.weights(model)) - before
    assert np.linalg.norm(found[1.0]) > 0
    np.testing.assert_allclose(found[1024.0], found[1.0], rtol=0, atol=2e-3 * np.abs(found[1.0]).max())


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_gradient_that_overflows_on_any_replica_is_skipped_on_all(replicas):
    examples = helpers.vectors(4)
    examples.values[0] = 6e4  # the first row's products overflow float16; it is on the first replica
    run = helpers.start(replicas, "mixed_float16", xla=True)
    model = helpers.make_model(
        run, helpers.dense_network, lambda _: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    )
    before = helpers.weights(model)
    helpers.fit(model, run, Batches(examples, 4), 1)
    assert float(model.optimizer.loss_scale) == 2**14
    assert int(model.optimizer.iterations.numpy()) == 1
    for weight, old in zip(model.network.trainable_weights, before):
        for value in helpers.components(weight):
            np.testing.assert_array_equal(value, old)


def test_float16_starts_without_advice_on_loss_scaling(caplog):
    run = helpers.start(2, "mixed_float16", xla=True)
    model = helpers.make_model(run, helpers.dense_network, helpers.recipe_optimizer("adam", 0.01, 1))
    helpers.fit(model, run, Batches(helpers.vectors(8), 8), 1)
    assert "You forgot to call" not in caplog.text


@pytest.mark.parametrize("built, started", [("float32", "mixed_bfloat16"), ("mixed_bfloat16", "float32")])
@pytest.mark.parametrize("kind", ["plain", "bert"])
def test_a_network_made_before_the_precision_was_set_is_refused(kind, built, started):
    keras.mixed_precision.set_global_policy(built)
    network = helpers.build_network(kind)
    run = helpers.start(precision=started)
    with pytest.raises(UserError, match=rf"made under the precision policy {built}, before {started} was set"):
        training_step.TrainingModel(network, classes=3, xla=run.xla)


# Compilation


def text_network(dropout: float = 0.1) -> keras.Model:
    """The mean of the tokens' embeddings to logits: any length, as cheap as can be."""
    ids = keras.Input([None], dtype="int32", name="input_ids")
    mask = keras.Input([None], dtype="int32", name="attention_mask")
    weights = keras.layers.Lambda(lambda m: tf.cast(m, tf.float32)[:, :, tf.newaxis])(mask)
    embedded = keras.layers.Embedding(helpers.VOCABULARY, 4)(ids)
    mean = keras.layers.Lambda(lambda x: tf.reduce_sum(x[0] * x[1], 1) / tf.reduce_sum(x[1], 1))([embedded, weights])
    logits = keras.layers.Dense(helpers.CLASSES)(keras.layers.Dropout(dropout)(mean))
    return keras.Model({"input_ids": ids, "attention_mask": mask}, logits)


@pytest.mark.parametrize("xla", [False, True])
def test_texts_of_many_lengths_are_traced_once_a_replica(replicas, xla):
    lengths = np.array([3, 60, 9, 17, 33, 12, 50, 41, 25, 5])
    batch_lengths, _ = batching.choose_batch_lengths(lengths)
    assert len(batch_lengths) > 2
    batches = Batches(helpers.text_examples(lengths), 4, seed=1, batch_lengths=batch_lengths)
    run = helpers.start(replicas, xla=xla)
    model = helpers.make_model(run, text_network)
    counts = []

    class Count(helpers.StepLosses):
        def on_epoch_end(self, epoch, logs=None):
            counts.append(model._gradients.experimental_get_tracing_count())

    seen = Count()
    steps = batches.steps_per_epoch
    model.fit(batches.distribute(run.strategy), steps_per_epoch=steps, epochs=5, verbose=0, callbacks=[seen])
    assert len(batches.lengths_at(0, 5 * steps)) > 1
    assert counts == [replicas] * 5
    assert np.all(np.isfinite(seen.losses))


def test_sparse_gradients_of_embeddings_become_dense(replicas):
    run = helpers.start(replicas, xla=True)
    model = helpers.make_model(run, lambda: text_network(dropout=0), lambda _: keras.optimizers.SGD(1.0))
    table = model.network.trainable_weights[0]
    before = table.numpy()
    examples = helpers.text_examples([3, 3, 3, 3])
    helpers.fit(model, run, Batches(examples, 4, batch_lengths=(8,)), 1)
    changed = np.flatnonzero(np.any(table.numpy() != before, axis=1))
    assert changed.tolist() == np.unique(examples.tokens).tolist()


def test_variables_that_the_loss_does_not_reach_stay(replicas):
    class Unused(keras.Model):
        def __init__(self):
            super().__init__()
            self.used, self.unused = keras.layers.Dense(3), keras.layers.Dense(3, name="unused")
            self.build([None, 6])

        def call(self, inputs, training=False):
            self.unused(inputs)
            return self.used(inputs)

    run = helpers.start(replicas)
    model = helpers.make_model(run, Unused)
    before = model.network.unused.get_weights()
    helpers.fit(model, run, Batches(helpers.vectors(8), 4), 2)
    for old, new in zip(before, model.network.unused.get_weights()):
        np.testing.assert_array_equal(old, new)
