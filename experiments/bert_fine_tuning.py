"""Fine-tuning a pretrained BERT on the embedded glosses: 2 epochs, Adam at 1e-4.

python -m experiments.bert_fine_tuning --model=FOLDER
python -m experiments.bert_fine_tuning --model=sentence-transformers/all-MiniLM-L6-v2

Test accuracy: see README, "Recipes".
"""

from absl import flags as absl_flags

from tftrain import bert, flags

flags.set_defaults(epochs=2, learning_rate=1e-4)
absl_flags.mark_flag_as_required("model")

if __name__ == "__main__":
    flags.run(bert.main)
