"""The usual fine-tuning of bert-base-chinese on a data set of one's own.

python -m experiments.bert_base_chinese --dataset=FOLDER

Adam at 3e-5, batches of 32, 3 epochs, linear decay after 10 % warm-up (Devlin et al., 2019, appendix A.3). FOLDER is a
prepared TFDS data set with the columns `text` and `label`; without the hub in reach, add --model=FOLDER. Not measured.
"""

from tftrain import bert, flags

flags.set_defaults(model="google-bert/bert-base-chinese", batch_size=32, learning_rate=3e-5, epochs=3)

if __name__ == "__main__":
    flags.run(bert.main)
