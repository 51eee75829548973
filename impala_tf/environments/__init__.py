"""Environments behind one interface: a Gymnasium `VectorEnv`, stepped as a `BatchedEnvironment`.

`suites` finds the suite that a level belongs to. Each suite is a file here (`atari`, `procgen`,
`retro`, `gym`) with one record, a `suite.Suite`.
"""
