"""The actor: steps environments, gets actions, sends unrolls, with TensorFlow or without."""
