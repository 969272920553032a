"""Fashion-MNIST whole, 60,000 training and 10,000 test images: batch normalisation, dropout, small shifts.

apt-get install dataset-fashion-mnist
python -m experiments.cnn_fashion_mnist

README, "Recipes", has the result to expect, the hardware and the time.
"""

from tftrain import cnn, flags

flags.set_defaults(dataset="fashion_mnist", network="normalised", dropout=0.15, shift=1, batch_size=128, epochs=15)

if __name__ == "__main__":
    flags.run(cnn.main)
