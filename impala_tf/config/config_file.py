"""--config=FILE: flags in a YAML file. Those on the command line win.

The file may be somebody else's. What only its user may decide (the scope USER, and modules) is used
only with --trust_level_module on the command line, or after a question on a terminal.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from impala_tf.config import flag_values, plug_ins
from impala_tf.config.errors import ConfigError
from impala_tf.config.flags import FLAGS, USER
from impala_tf.printable import printable

_SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_HEAD = (
    "# The flags of this run. To resume it: --config=THIS_FILE --logdir=FOLDER_OF_THE_RUN."
    " To repeat it: another --logdir\n"
)
_LONGEST = 100_000
_MAY_NAME_CODE = ("level_name", "level_wrappers", *plug_ins.FLAGS)
_SUITES = re.compile(r"(^|,)\s*(procgen|retro|gym):")


def text(flags: Mapping[str, Any]) -> str:
    """Returns the content of a file with these flags."""
    # Every JSON value is a YAML value.
    lines = [f"{name}: {json.dumps(value)}\n" for name, value in flags.items()]
    return _HEAD + ("".join(lines) or "{}\n")


def read(file: str, typed: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns ({flag: value}, {flag: its place in the file, such as 'run.yaml, line 3'}).

    Those of the command line, `typed`, win. Raises ConfigError: the file cannot be read, has wrong
    flags, or flags that only its user may decide and is not trusted; one line for each of those.
    """
    import yaml  # few runs need it

    flags: dict[str, Any] = {}
    places: dict[str, str] = {}
    problems = []
    try:
        with Path(file).open(encoding="utf-8") as opened:
            content = opened.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            raise ConfigError(f"--config={file}: has more than {_LONGEST:,} characters")
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(content)):
            raise ConfigError(f"--config={file}: has *aliases; a few can stand for gigabytes")
        document = yaml.compose(content, yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config={file}: cannot read it: {error}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"--config={file}: is not YAML: {error}") from None
    if document is not None and not isinstance(document, yaml.MappingNode):
        raise ConfigError(f"--config={file}: must have lines such as 'learning_rate: 0.001'")
    for key, node in document.value if document else ():
        name, place = str(key.value).replace("-", "_"), f"{file}, line {key.start_mark.line + 1}"
        try:
            if name in flags:
                raise ValueError(f"{name}: {places[name]} gives it, too; leave one out")
            flags[name], places[name] = _value(name, node), place
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            problems.append(f"{place}: {error}")
    if problems:
        raise ConfigError(problems)
    places = {name: place for name, place in places.items() if name not in typed}
    _check_trusted(file, flags, places, typed)
    return flags, places


def _value(name: str, node: Any) -> Any:
    """Returns a flag's value; raises ValueError, which names the flag, if it does not fit."""
    import yaml

    flag = FLAGS.get(name)
    if flag is None or name == "config":
        raise ValueError(f"{name}: no such flag in a file{flag_values.meant(name)}")
    if flag.kind is bool:
        if (is_on := _SWITCHES.get(str(node.value).lower())) is None:
            raise ValueError(f"{name}: must be true or false")
        return is_on
    if node.tag == "tag:yaml.org,2002:null" and flag.may_be_none:
        return None
    if isinstance(node, yaml.ScalarNode):
        return flag_values.of_text(name, node.value)
    return flag_values.of_python(name, yaml.SafeLoader("").construct_object(node, deep=True))


def _check_trusted(
    file: str, flags: Mapping[str, Any], places: Mapping[str, str], typed: Mapping[str, Any]
) -> None:
    """Asks before flags of a file are used that only its user may decide."""
    asked = [
        name
        for name in places
        if (FLAGS[name].scope & USER and flags[name])
        or (name in _MAY_NAME_CODE and ":" in _SUITES.sub("", str(flags[name])))
    ]
    settings = ", ".join(f"{name}={flags[name]}" for name in asked)
    if (
        not asked
        or typed.get("trust_level_module")
        or confirmed(f"{file} sets {settings}. Use it?")
    ):
        return
    raise ConfigError(
        [
            f"{places[name]}: {name}: may run somebody's code, or reach other machines and folders;"
            " if you trust the file, add --trust_level_module"
            for name in asked
        ]
    )


def confirmed(question: str) -> bool:
    """Asks a question on the terminal; returns whether the answer is yes. Without one, it is no."""
    if not sys.stdin.isatty():
        return False
    with contextlib.suppress(EOFError):  # Ctrl-D
        return input(f"{printable(question)} [y/N] ").strip().lower() in ("y", "yes")
    return False
