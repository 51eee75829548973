"""Slurm's compact lists of machines: 'n[01-03,7],gpu1'."""

from __future__ import annotations

import re
from collections.abc import Iterator

from impala_tf.config.errors import ConfigError

VARIABLE = "SLURM_JOB_NODELIST"
HOST = r"\[?[A-Za-z0-9_][A-Za-z0-9_.:-]*\]?"
"""A regular expression for an address or a host name."""


def slurm_hosts(nodelist: str, variable: str = VARIABLE) -> list[str]:
    """Returns the machines of a node list: 'n[01-03,7],gpu1' -> n01 n02 n03 n7 gpu1.

    Args:
      nodelist: the list, in Slurm's form.
      variable: the variable that held it, which messages name.

    Raises:
      ConfigError: it is not such a list.
    """
    where = f"{variable}={nodelist}"
    items = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", nodelist)
    if ",".join(items) != nodelist:
        raise ConfigError(f"{where}: unbalanced brackets or stray commas")
    return [host for item in items for host in _expanded(item, where)]


def _expanded(item: str, where: str) -> Iterator[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([0-9,-]+)\](.*)", item)
    if match is None:
        if re.fullmatch(HOST, item) is None:
            raise ConfigError(f"{where}: {item!r} is not a host name")
        yield item
        return
    before, ranges, after = match.groups()
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if re.fullmatch(r"\d+(-\d+)?", part) is None or int(last or first) < int(first):
            raise ConfigError(f"{where}: {part!r} is not a range such as 01-03")
        for number in range(int(first), int(last or first) + 1):
            yield from _expanded(f"{before}{number:0{len(first)}d}{after}", where)
