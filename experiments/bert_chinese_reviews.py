"""Chinese reviews, good or bad, with a small BERT from scratch.

pip install '.[chinese_reviews]'
python -m experiments.bert_chinese_reviews

README, "Recipes", has the result to expect, the hardware and the time.
"""

from tftrain import bert, flags

flags.set_defaults(dataset="chinese_reviews", epochs=4)

if __name__ == "__main__":
    flags.run(bert.main)
