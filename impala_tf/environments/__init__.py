"""Environments with one interface: a Gymnasium `VectorEnv`, stepped by a `BatchedEnvironment`.

`suites` finds the suite of a level. Each suite is a file here (`atari`, `procgen`, `retro`, `gym`)
with one record, a `suite.Suite`.
"""
