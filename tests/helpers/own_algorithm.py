"""An algorithm of a user's own: like ppo, its actors wait for updates."""

import dataclasses

from impala_tf.algorithms import ppo

WAITS = dataclasses.replace(ppo.ALGORITHM, about="ppo of one's own")
