"""Batch normalisation and dropout on the embedded Fashion-MNIST subset.

python -m experiments.cnn_normalised

README, "Recipes", has the result to expect, the hardware and the time.
"""

from tftrain import cnn, flags

flags.set_defaults(network="normalised", dropout=0.15)

if __name__ == "__main__":
    flags.run(cnn.main)
