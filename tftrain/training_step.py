"""The Keras model that computes gradients and applies them, on any number of replicas, compiled or not.

Stock compile(jit_compile=True) compiles the whole step, and fails under MirroredStrategy, where the update touches
other devices' variables. Here forward pass, loss and gradients are one function that is compiled for each replica,
and the update, with its all-reduce, stands outside it.
"""

import tensorflow as tf
import tf_keras as keras

from tftrain import scores, stateless_random, trouble
from tftrain.errors import UserError

# A confusion matrix for more classes than this is neither read nor small.
MAX_CONFUSION_CLASSES = 1000


def example_losses(labels: tf.Tensor, logits: tf.Tensor, label_smoothing: float = 0.0) -> tf.Tensor:
    """Cross-entropy of each example, in float32.

    Args:
      labels: integer [batch].
      logits: [batch, classes].
      label_smoothing: the share of each label's probability spread evenly over all classes (Szegedy et al., 2016).

    Returns:
      float32 [batch].
    """
    logits = tf.cast(logits, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    if label_smoothing:
        uniform = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        losses = (1 - label_smoothing) * losses + label_smoothing * uniform
    return losses


class ConfusionMatrix(keras.metrics.Metric):
    """Counts of (true class, predicted class), int64 [classes, classes], exact over replicas."""

    def __init__(self, classes: int, name: str = "confusion_matrix"):
        super().__init__(name=name, dtype=tf.int64)
        self.counts = self.add_weight("counts", shape=[classes, classes], initializer="zeros", dtype=tf.int64)

    def update_state(self, labels, predictions, sample_weight=None):
        classes = self.counts.shape[0]
        weights = tf.ones_like(labels) if sample_weight is None else sample_weight
        cells = tf.cast(labels, tf.int64) * classes + tf.cast(predictions, tf.int64)
        added = tf.math.unsorted_segment_sum(tf.cast(weights, tf.int64), cells, classes * classes)
        self.counts.assign_add(tf.reshape(added, [classes, classes]))

    def reset_state(self):
        self.counts.assign(tf.zeros(self.counts.shape, tf.int64))

    def result(self):
        return tf.convert_to_tensor(self.counts)


class TrainingModel(keras.Model):
    """Trains a network on the batches of `tftrain.data.batching`.

    Args:
      network: takes a batch's inputs and returns logits [batch, classes].
      classes: how many classes there are.
      xla: whether to compile the forward and backward pass, and evaluation.
      accumulate_steps: micro-batches that a replica's share of a step is computed in, one after the other.
      label_smoothing: see `example_losses`; for training alone.
      clip_norm: the norm that the gradient over all replicas is scaled down to where it is longer; None: never.
      seed: of dropout.

    Raises:
      UserError: the network is not of tf-keras, it was built under another precision policy than the one in force,
        or it draws random numbers in another way than by Dropout layers.
    """

    def __init__(
        self,
        network: keras.Model,
        *,
        classes: int,
        xla: bool,
        accumulate_steps=1,
        label_smoothing=0.0,
        clip_norm=None,
        seed=0,
    ):
        super().__init__(name="training")
        _check_policy(network)
        self.network = network
        self.accumulate_steps = accumulate_steps
        self.label_smoothing = label_smoothing
        self.clip_norm = clip_norm
        self._position = stateless_random.install(network, seed)
        # float64 counts examples exactly, and keeps a mean over an epoch independent of how it was divided.
        self.loss_metric = keras.metrics.Mean("loss", dtype=tf.float64)
        self.accuracy_metric = keras.metrics.Mean("accuracy", dtype=tf.float64)
        # The same since the last report, for whoever draws curves; they reset it.
        self.interval_metrics = [
            keras.metrics.Mean("interval_loss", dtype=tf.float64),
            keras.metrics.Mean("interval_accuracy", dtype=tf.float64),
        ]
        self.watch = trouble.Watch()
        few = classes <= MAX_CONFUSION_CLASSES
        self.confusion = ConfusionMatrix(classes) if few else None
        self.confidences = scores.Confidences(classes) if few else None
        self.mistakes = scores.Mistakes()
        # None, not False: a function that is not compiled may still be called from one that is.
        jit_compile = True if xla else None
        self._gradients = tf.function(self._gradients, jit_compile=jit_compile, reduce_retracing=True)
        self._score = tf.function(self._score, jit_compile=jit_compile, reduce_retracing=True)

    @property
    def metrics(self) -> list:
        """What Keras resets at the start of each epoch and evaluation."""
        by_class = [self.confusion, self.confidences] if self.confusion is not None else []
        return [self.loss_metric, self.accuracy_metric, self.mistakes, *by_class]

    @property
    def training_metrics(self) -> list:
        """What training adds up: over the epoch, and since the last report."""
        return [self.loss_metric, self.accuracy_metric, *self.interval_metrics, self.watch.norm]

    def call(self, inputs, training=False):
        """Logits, whether the network returns them bare or, as those of transformers, with other things."""
        outputs = self.network(inputs, training=training)
        return getattr(outputs, "logits", outputs)

    def make_train_function(self, force: bool = False):
        """Keras' loop over the steps of an execution, which also returns the seconds that it waited for batches."""
        if self.train_function is None or force:

            @tf.function
            def train_function(iterator):
                waited = tf.zeros([], tf.float64)
                for _ in tf.range(self._steps_per_execution):
                    began = tf.timestamp()
                    with tf.control_dependencies([began]):
                        batch = next(iterator)
                    with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
                        waited += tf.timestamp() - began
                    self.distribute_strategy.run(self.train_step, args=(batch,))
                return {"waited": waited}

            self.train_function = train_function
        return self.train_function

    def train_step(self, batch: dict) -> dict:
        """One step on one replica's share of a batch; see `Batches.distribute` for what a batch holds."""
        scaled = isinstance(self.optimizer, keras.mixed_precision.LossScaleOptimizer)
        scale = self.optimizer.get_scaled_loss(tf.ones([])) if scaled else tf.ones([])
        gradients, losses, correct = self._gradients(batch, scale)
        if scaled:
            gradients = self.optimizer.get_unscaled_gradients(gradients)
        loss = tf.reduce_sum(losses * batch["weights"]) / batch["examples"]
        *gradients, loss = tf.distribute.get_replica_context().all_reduce("SUM", [*gradients, loss])
        norm = tf.linalg.global_norm(gradients)
        if self.clip_norm is not None:
            factor = self.clip_norm / tf.maximum(norm, self.clip_norm)
            gradients = [gradient * factor for gradient in gradients]
        self.watch.update(norm, loss, batch["step"], scale if scaled else None)
        variables = self.network.trainable_variables
        self.optimizer.apply_gradients(zip(gradients, variables), skip_gradients_aggregation=True)
        self._update_means((self.loss_metric, self.accuracy_metric), losses, correct, batch["weights"])
        self._update_means(self.interval_metrics, losses, correct, batch["weights"])
        return _nothing(batch)

    def test_step(self, batch: dict) -> dict:
        """Score one replica's share of a batch; every real example counts once."""
        labels, weights = batch["labels"], batch["weights"]
        losses, predictions, probabilities = self._score(batch)
        correct = tf.cast(predictions == labels, tf.float32)
        self._update_means((self.loss_metric, self.accuracy_metric), losses, correct, weights)
        self.mistakes.update_state(batch["rows"], labels, probabilities, weights)
        if self.confusion is not None:
            self.confusion.update_state(labels, predictions, sample_weight=weights)
            self.confidences.update_state(labels, probabilities, weights)
        return _nothing(batch)

    def synchronise_statistics(self) -> None:
        """Give every replica the same moving averages of batch normalisation: the mean over the replicas.

        Each replica follows its own rows, and evaluates with its own averages, while a checkpoint and an exported model
        hold the mean. Call it in cross-replica context, before an evaluation.
        """
        for variable in self.network.non_trainable_variables:
            if variable.synchronization == tf.VariableSynchronization.ON_READ:
                variable.assign(variable.read_value())

    @staticmethod
    def _update_means(metrics, losses, correct, weights) -> None:
        for metric, values in zip(metrics, (losses, correct)):
            metric.update_state(values, sample_weight=weights)

    def _gradients(self, batch: dict, scale: tf.Tensor):
        """Gradients of the global batch's mean loss, times `scale`, that this replica's rows contribute, and each row's
        results."""
        variables = self.network.trainable_variables
        if self.accumulate_steps == 1:
            return self._micro_batch_gradients(batch, 0, scale, variables)
        rows = batch["labels"].shape[0] // self.accumulate_steps

        def divide(tensor):
            return tf.reshape(tensor, tf.concat([[self.accumulate_steps, rows], tf.shape(tensor)[1:]], axis=0))

        divided = tf.nest.map_structure(divide, {name: batch[name] for name in ("inputs", "labels", "weights")})

        def body(k, sums, losses, correct):
            micro_batch = batch | tf.nest.map_structure(lambda tensor: tf.gather(tensor, k), divided)
            results = self._micro_batch_gradients(micro_batch, k * rows, scale, variables)
            gradients, micro_losses, micro_correct = results
            sums = [total + gradient for total, gradient in zip(sums, gradients)]
            return k + 1, sums, losses.write(k, micro_losses), correct.write(k, micro_correct)

        results = [tf.TensorArray(tf.float32, self.accumulate_steps, element_shape=[rows]) for _ in range(2)]
        _, gradients, losses, correct = tf.while_loop(
            lambda k, *_: k < self.accumulate_steps,
            body,
            [0, [tf.zeros(v.shape, tf.float32) for v in variables], *results],
            maximum_iterations=self.accumulate_steps,
        )
        return gradients, losses.concat(), correct.concat()

    def _micro_batch_gradients(self, batch: dict, offset, scale: tf.Tensor, variables: list):
        first_row = batch["first_row"] + tf.cast(offset, tf.int64)
        with tf.GradientTape() as tape, self._position.at(batch["step"], first_row):
            logits = self(batch["inputs"], training=True)
            losses = example_losses(batch["labels"], logits, self.label_smoothing)
            loss = tf.reduce_sum(losses * batch["weights"]) / batch["examples"] * scale
        # A variable that the loss does not depend on (an unused pooler, say) has gradient zero.
        gradients = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradients = [_dense(gradient) for gradient in gradients]
        predictions = tf.argmax(logits, axis=-1, output_type=batch["labels"].dtype)
        return gradients, losses, tf.cast(predictions == batch["labels"], tf.float32)

    def _score(self, batch: dict):
        logits = self(batch["inputs"], training=False)
        predictions = tf.argmax(logits, axis=-1, output_type=batch["labels"].dtype)
        return example_losses(batch["labels"], logits), predictions, tf.nn.softmax(tf.cast(logits, tf.float32))


def _nothing(batch: dict) -> dict:
    """What a step returns to Keras, whose loop wants a value; results are read from the metrics, which add up rightly
    over replicas and workers, while Keras sums or picks what steps return."""
    return {"examples": batch["examples"]}


def _dense(gradient) -> tf.Tensor:
    """A gradient as a dense tensor: that of an embedding is sparse, which no compiled function can return."""
    return tf.cast(tf.convert_to_tensor(gradient), tf.float32)


def _check_policy(network: keras.Model) -> None:
    """Refuse a network of another Keras, or whose layers compute in another precision than the policy in force says."""
    if not isinstance(network, keras.Model):
        raise UserError(
            f"the network is a {type(network).__module__}.{type(network).__name__}; a model of tf-keras is needed: "
            "import tftrain, then import tf_keras as keras"
        )
    policy = keras.mixed_precision.global_policy()
    if network.dtype_policy.name != policy.name:
        raise UserError(
            f"the network {network.name!r} was made under the precision policy {network.dtype_policy.name}, before "
            f"{policy.name} was set: make it after runtime.start()"
        )
