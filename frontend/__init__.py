"""The launcher's command in a checkout, `python -m frontend`; its code is `impala_tf.cluster`."""
