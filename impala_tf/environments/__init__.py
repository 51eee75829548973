"""Environments behind one interface: a Gymnasium `VectorEnv`, read through an `EnvStream`.

`factory` finds the suite that a level belongs to; every suite is a file here (`atari`, `gym`).
"""
