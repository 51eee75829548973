"""What pip is told about package indexes, for uv, which does not read pip's configuration.

Standard library only: `install` runs before any package is there.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping

# All versions are pinned, so the one that is found first on any index is the right one.
_STRATEGY = "UV_INDEX_STRATEGY=unsafe-best-match"
_PIP_TO_UV = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX",
              "find-links": "UV_FIND_LINKS", "trusted-host": "UV_INSECURE_HOST",
              "constraint": "UV_CONSTRAINT", "cert": "SSL_CERT_FILE"}  # fmt: skip


def for_uv(written: str, environment: Mapping[str, str]) -> list[str]:
    """Returns the settings as variables of uv: NAME=VALUE.

    Args:
      written: pip's configuration files, one after another.
      environment: variables, of which those of pip win.

    Raises:
      configparser.Error: a file is malformed.
    """
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read_string(written)
    settings = [_STRATEGY]
    for name, uv_name in _PIP_TO_UV.items():
        value = environment.get(f"PIP_{name.replace('-', '_').upper()}")
        for section in ("install", "global"):
            value = value or parser.get(section, name, fallback=None)
        if value:
            settings.append(f"{uv_name}={' '.join(value.split())}")
    return settings
