"""TensorFlow, imported at its first use.

Launchers and actors also import the files of algorithms, for their defaults and checks. Most of
these processes never use TensorFlow, whose import takes seconds and 220 MB.
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
