"""Every flag: its default and its type."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from impala_tf.config import (
    Config,
    to_dict,
)

DEFAULTS = to_dict(Config())
TYPES: dict[str, Any] = {
    name: hint
    for group in dataclasses.fields(Config)
    for name, hint in typing.get_type_hints(type(getattr(Config(), group.name))).items()
}
