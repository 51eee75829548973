"""The Python interface; its public part is in `impala_tf`. See docs/python.md."""
