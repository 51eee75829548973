"""What every test shares."""

import os

# Quiet TensorFlow before anything imports it, in this process and in the ones that tests start.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
