"""Training the network of `tftrain.cnn` with tftrain's defaults, with stock Keras, and with PyTorch.

pip install torch
python -m benchmarks.peers

Stock Keras is compile() and fit() in float32, with Keras' Adam, as its guides show it. PyTorch is torch.nn with
torch.optim.Adam on the CPU, in float32 and with bfloat16 autocast. Same network, batch, images and flips for all; all
in one process, in turns. Without torch, its rows are left out, with a line that says so.
"""

import time

from absl import flags

from benchmarks import common
from tftrain import cnn

tf, keras = common.tf, common.keras
ROUNDS = flags.DEFINE_integer("rounds", 9, "turns that count", lower_bound=1)


def stock_keras(examples):
    """Turns of compile() and fit() in float32."""
    keras.mixed_precision.set_global_policy("float32")
    network = common.plain_network()
    network.compile(
        optimizer=keras.optimizers.Adam(cnn.RECIPE.learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    dataset = tf.data.Dataset.from_tensor_slices((examples.images, examples.labels))
    dataset = dataset.shuffle(len(examples.labels), seed=0).batch(common.BATCH_SIZE)
    dataset = dataset.map(lambda x, y: (tf.image.random_flip_left_right(x), y), num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.prefetch(tf.data.AUTOTUNE)

    def turn() -> float:
        began = time.perf_counter()
        network.fit(dataset, epochs=1, verbose=0)
        return time.perf_counter() - began

    return turn


def pytorch(examples, bfloat16: bool):
    """Turns of a PyTorch loop on the CPU, in channels-last memory format, the faster one there."""
    import torch

    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 64, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(64, 128, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(128 * 7 * 7, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, common.CLASSES),
    ).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(network.parameters(), lr=cnn.RECIPE.learning_rate)
    images = torch.from_numpy(examples.images).permute(0, 3, 1, 2)
    labels = torch.from_numpy(examples.labels).long()

    def turn() -> float:
        began = time.perf_counter()
        for rows in torch.randperm(len(labels)).split(common.BATCH_SIZE):
            flipped = torch.rand(len(rows), 1, 1, 1) < 0.5
            batch = torch.where(flipped, images[rows].flip(3), images[rows]).to(torch.float32) / 255
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                logits = network(batch.contiguous(memory_format=torch.channels_last))
            loss = torch.nn.functional.cross_entropy(logits.float(), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loss.item()
        return time.perf_counter() - began

    return turn


def main() -> None:
    chosen = common.start(cnn.flags.hardware())
    examples = common.read_images()
    subject = f"tftrain.cnn, defaults ({chosen.precision})"
    contenders = {
        subject: common.TftrainTurns(examples, chosen),
        "stock Keras fit, float32": stock_keras(examples),
    }
    title = f"Peers, {chosen.devices}"
    try:
        import torch

        contenders["PyTorch, float32"] = pytorch(examples, bfloat16=False)
        contenders["PyTorch, bfloat16 autocast"] = pytorch(examples, bfloat16=True)
        title += f", PyTorch {torch.__version__}"
    except ImportError:
        title += " (PyTorch is not installed: its rows are left out)"
    common.print_table(title, common.take_turns(contenders, ROUNDS.value), subject)


if __name__ == "__main__":
    cnn.flags.run(main)
