"""--config=FILE: flags in a YAML file. Those on the command line win."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from impala_tf.config import words
from impala_tf.config.errors import ConfigError

_SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_HEAD = (
    "# The flags of this run. To resume it: --config=THIS_FILE --logdir=FOLDER_OF_THE_RUN."
    " To repeat it: another --logdir\n"
)
_LONGEST = 100_000


def text(flags: Mapping[str, Any]) -> str:
    """Returns the content of a file with these flags."""
    # Every JSON value is a YAML value.
    lines = [f"{name}: {json.dumps(value)}\n" for name, value in flags.items()]
    return _HEAD + ("".join(lines) or "{}\n")


def read(file: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns ({flag: value}, {flag: its place in the file, such as 'run.yaml, line 3'}).

    Raises:
      ConfigError: the file cannot be read, or has wrong flags; one line for each of those.
    """
    import yaml  # few runs need it

    try:
        with Path(file).open(encoding="utf-8") as opened:
            text = opened.read(_LONGEST + 1)
        if len(text) > _LONGEST:
            raise ConfigError(f"--config={file}: has more than {_LONGEST:,} characters")
        document = yaml.compose(text, yaml.SafeLoader)
        # A few of them can stand for gigabytes.
        for token in yaml.scan(text, yaml.SafeLoader):
            if isinstance(token, yaml.AliasToken):
                place = f"{file}, line {token.start_mark.line + 1}"
                raise ConfigError(f"{place}: *{token.value}: write the value itself")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not a text file"
        raise ConfigError(f"--config={file}: cannot read it: {reason}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{file}, line {line}: is not YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError):
        raise ConfigError(f"--config={file}: is not YAML") from None
    if document is None:
        return {}, {}
    if not isinstance(document, yaml.MappingNode):
        raise ConfigError(f"{file}, line 1: must have lines such as 'learning_rate: 0.001'")
    flags: dict[str, Any] = {}
    places: dict[str, str] = {}
    problems = []
    for key, node in document.value:
        name, place = str(key.value).replace("-", "_"), f"{file}, line {key.start_mark.line + 1}"
        try:
            if name in flags:
                raise ValueError(f"{key.value}: {places[name]} gives it, too; leave one out")
            flags[name], places[name] = _value(name, node), place
        except (yaml.YAMLError, RecursionError) as error:
            problems.append(f"{place}: {name}: is not plain YAML: {error}")
        except ValueError as error:
            problems.append(f"{place}: {error}")
    if problems:
        raise ConfigError(problems)
    return flags, places


def _value(name: str, node: Any) -> Any:
    """Returns a flag's value; raises ValueError, which names the flag, if it does not fit."""
    import yaml

    flag = words.flags().get(name)
    if flag is None or name == "config":
        raise ValueError(
            words.unknown(name) if flag is None else "config: a file cannot name another one"
        )
    if node.tag == "tag:yaml.org,2002:null" and flag.may_be_none and flag.kind is not bool:
        return None
    if flag.kind is bool:
        is_on = _SWITCHES.get(str(node.value).lower())
        if is_on is None:
            raise ValueError(f"{name}: must be true or false")
        return is_on
    if isinstance(node, yaml.MappingNode):
        value = yaml.SafeLoader("").construct_object(node, deep=True)
        return words.of_text(name, json.dumps(value, sort_keys=True, default=str))
    if isinstance(node, yaml.SequenceNode):
        items = tuple(str(item.value) for item in node.value)
        is_repeated = typing.get_origin(flag.kind) is tuple
        return items if is_repeated else words.of_text(name, ",".join(items))
    return words.of_text(name, node.value)
