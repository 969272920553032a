"""What tftrain's training costs over a bare tf.function loop: same network, data, precision and optimizer.

python -m benchmarks.overhead [--precision=float32]

Both run in one process, in turns. The bare loop reads a shuffled tf.data pipeline with TensorFlow's own random flip,
and computes no metrics.
"""

import time

from absl import flags

from benchmarks import common
from tftrain import cnn

tf, keras = common.tf, common.keras
ROUNDS = flags.DEFINE_integer("rounds", 9, "turns that count", lower_bound=1)


def bare_loop(examples, optimizer):
    """A turn of the loop that one would write without any framework around it."""
    network = common.plain_network()
    dataset = tf.data.Dataset.from_tensor_slices((examples.images, examples.labels))
    dataset = dataset.shuffle(len(examples.labels), seed=0).repeat().batch(common.BATCH_SIZE)
    dataset = dataset.map(lambda x, y: (tf.image.random_flip_left_right(x), y), num_parallel_calls=tf.data.AUTOTUNE)
    batches = iter(dataset.prefetch(tf.data.AUTOTUNE))

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            logits = network(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables))
        return loss

    def turn() -> float:
        began = time.perf_counter()
        for _ in range(common.STEPS):
            loss = step(*next(batches))
        loss.numpy()
        return time.perf_counter() - began

    return turn


def main() -> None:
    from tftrain import optimizers

    chosen = common.start(cnn.flags.hardware())
    examples = common.read_images()
    contenders = {
        "tftrain.cnn": common.TftrainTurns(examples, chosen),
        "bare tf.function loop": bare_loop(examples, optimizers.make_optimizer(cnn.RECIPE, 40000, [])),
    }
    seconds = common.take_turns(contenders, ROUNDS.value)
    common.print_table(f"Overhead, {chosen.precision}, {chosen.devices}", seconds, "tftrain.cnn")


if __name__ == "__main__":
    cnn.flags.run(main)
