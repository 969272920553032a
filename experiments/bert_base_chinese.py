"""The usual fine-tuning of bert-base-chinese.

python -m experiments.bert_base_chinese --dataset=chinese_reviews
python -m experiments.bert_base_chinese --dataset=reviews.csv --model=FOLDER

Adam at 3e-5, batches of 32, 3 epochs, linear decay after 10 % warm-up (Devlin et al., 2019, appendix A.3). Without the
hub in reach, FOLDER holds the model. Not measured.
"""

from tftrain import bert, flags

flags.set_defaults(model="google-bert/bert-base-chinese", batch_size=32, learning_rate=3e-5, epochs=3)

if __name__ == "__main__":
    flags.run(bert.main)
