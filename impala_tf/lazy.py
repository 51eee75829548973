"""TensorFlow, imported when it is first used.

The files of algorithms are read by launchers and actors, too, for the defaults and checks in them.
Most of these never compute with TensorFlow, which takes seconds and 220 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf
else:

    class _Lazy:
        def __getattr__(self, name: str) -> Any:
            import tensorflow

            return getattr(tensorflow, name)

    tf = _Lazy()

__all__ = ["tf"]
