"""pip's settings of package indexes, for uv, which does not read pip's configuration.

Standard library only: `install` runs before any package is installed.
"""

from __future__ import annotations

import ast
import configparser
from collections.abc import Iterable, Mapping, Sequence

# All versions are pinned, so the first match on any index is the right one.
_STRATEGY = "UV_INDEX_STRATEGY=unsafe-best-match"
_PIP_TO_UV = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX",
              "find-links": "UV_FIND_LINKS", "trusted-host": "UV_INSECURE_HOST",
              "cert": "SSL_CERT_FILE"}  # fmt: skip
_INDEXES = ("index-url", "extra-index-url")
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY")
_NO_INDEX = "PIP_NO_INDEX=1"
_YES = ("1", "on", "t", "true", "y", "yes")
_SEPARATORS = {"find-links": ","}  # uv separates other lists by spaces
_SECTIONS = ("global", "install", ":env:")
"""Later sections win."""
# Options that uv handles in its own way, or that do not change which packages are installed.
_HARMLESS = {
    "break-system-packages", "cache-dir", "default-timeout", "disable-pip-version-check",
    "no-cache-dir", "no-color", "no-input", "no-python-version-warning", "no-warn-script-location",
    "progress-bar", "quiet", "require-virtualenv", "retries", "root-user-action", "timeout",
    "verbose",
}  # fmt: skip
CONSTRAINT = "constraint"


def listed(printed: str) -> dict[str, str]:
    """Returns {option: value} from the output of `pip config list`."""
    options: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in printed.splitlines():
        name, _, value = line.partition("=")
        for section in _SECTIONS:
            if name.startswith(f"{section}."):
                options[section][name.removeprefix(f"{section}.")] = str(ast.literal_eval(value))
    return _merged(options[section] for section in _SECTIONS)


def written(files: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Returns {option: value} from the texts of pip's configuration files and from variables.

    Raises:
      configparser.Error: a file is malformed.
    """
    options: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for text in files:
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        parser.read_string(text)
        for section in parser.sections():
            options.get(section, {}).update(parser.items(section))
    options[":env:"] = {name.removeprefix("PIP_"): value for name, value in environment.items()
                      if name.startswith("PIP_")}  # fmt: skip
    return _merged(options[section] for section in _SECTIONS)


def _merged(sections: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {name.lower().replace("_", "-"): value for section in sections
            for name, value in section.items() if value}  # fmt: skip


def unknown(options: Mapping[str, str]) -> set[str]:
    """Returns the options that uv does not have, and that may change what is installed."""
    return {*options} - {*_PIP_TO_UV, *_HARMLESS, CONSTRAINT, "config-file", "no-index", "proxy"}


def for_uv(options: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Returns variables of uv, NAME=VALUE, for options of pip; `flags` returns the rest.

    Args:
      options: pip's options.
      environment: the variables that uv gets anyway; a proxy among them wins.
    """
    settings = [_STRATEGY]
    if has_no_index := options.get("no-index", "").lower() in _YES:
        settings.append(_NO_INDEX)
    for name, value in options.items():
        if name in _PIP_TO_UV and not (has_no_index and name in _INDEXES):
            settings.append(f"{_PIP_TO_UV[name]}={_SEPARATORS.get(name, ' ').join(value.split())}")
    for name in _PROXIES if "proxy" in options else ():
        if not environment.get(name) and not environment.get(name.lower()):
            settings.append(f"{name}={options['proxy']}")
    return settings


def flags(settings: Sequence[str]) -> list[str]:
    """Returns flags of `uv pip install` for settings that uv has no variable for."""
    return ["--no-index"] if _NO_INDEX in settings else []
