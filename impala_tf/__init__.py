"""IMPALA (Espeholt et al., 2018, arXiv 1802.01561) on TensorFlow 2 and Sonnet 2.

    import impala_tf as impala

    run = impala.train("CartPole-v1", total_environment_frames=400_000)
    agent = impala.load(run.logdir)
    print(impala.evaluate(run.logdir).mean)

See docs/python.md.
"""

import importlib
import os
import platform
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from impala_tf.api.run import Progress, Run, RunFailed, train
    from impala_tf.api.trained import Agent, Evaluation, evaluate, load
    from impala_tf.callbacks import Callback
    from impala_tf.config.errors import ConfigError

__version__ = "1.0.0"
__all__ = [
    "Agent",
    "Callback",
    "ConfigError",
    "Evaluation",
    "Progress",
    "Run",
    "RunFailed",
    "__version__",
    "evaluate",
    "load",
    "train",
]

# Use oneDNN's convolutions; TensorFlow reads this when it is imported. On processors without AVX512
# it would use its own, which take twice as long (sandbox/speed.md).
if platform.machine() in ("x86_64", "AMD64"):
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# TensorFlow reads this, too. Without a GPU it logs harmless messages as errors; real errors are
# raised as exceptions.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Imported at the first use, because launchers and actors import this package, too.
_PLACES = {
    **dict.fromkeys(("Progress", "Run", "RunFailed", "train"), "impala_tf.api.run"),
    **dict.fromkeys(("Agent", "Evaluation", "evaluate", "load"), "impala_tf.api.trained"),
    "Callback": "impala_tf.callbacks",
    "ConfigError": "impala_tf.config.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
