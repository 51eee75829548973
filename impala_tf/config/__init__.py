"""Every flag, and what follows from flags. Standard library only: the launcher starts at once."""

from impala_tf.config.algorithms import ALGORITHMS, Algorithm, algorithm
from impala_tf.config.compositions import (
    AGENTS,
    AgentComposition,
    CoreName,
    HeadsName,
    composition,
)
from impala_tf.config.defaults import (
    KL_RANGE,
    learner_threads,
    linear,
    micro_batches,
    queue_capacity,
    resolve,
    schedule_line,
    sent_per_batch,
    sent_per_push,
    slug,
    sources,
)
from impala_tf.config.errors import ConfigError, LevelRaisedError
from impala_tf.config.flag_values import (
    BUILT_IN,
    ENGINE_FLAGS,
    Given,
    actors_use_tensorflow,
    actors_wait,
    changes,
    differences,
    replace,
    to_dict,
    to_flag,
    to_flags,
    waits_for_updates,
    wire_digest,
)
from impala_tf.config.flags import (
    FLAGS,
    AgentConfig,
    ClusterConfig,
    Config,
    EnvironmentConfig,
    EvaluationConfig,
    LossConfig,
    OptimizerConfig,
    ProcessConfig,
    ReplayConfig,
    RunConfig,
    flags_of,
)
from impala_tf.config.limits import (
    check_algorithm,
    check_batches,
    check_network,
    check_observation,
    checked,
    problems,
)
from impala_tf.config.plug_ins import split
from impala_tf.config.presets import PRESETS, following_actors
from impala_tf.config.this_machine import cores_here, memory_here
