"""The Python interface; `impala_tf` offers what is public. See docs/python.md."""
