"""IMPALA (Espeholt et al., 2018, arXiv 1802.01561) on TensorFlow 2 and Sonnet 2."""

__version__ = "0.2.0"
