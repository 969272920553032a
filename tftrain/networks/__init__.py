"""The networks: each function returns a Keras model that maps a batch's inputs to float32 logits."""
