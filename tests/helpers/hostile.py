"""Words that a shell, tmux or SSH might misread, and a program that writes down its arguments."""

HOSTILE = [
    "a;touch x", "$(touch x)", "`touch x`", ";", "a;", "\\;", "#{pid}", "#(touch x)", "C-c",
    "Enter", "two\nlines", "-oProxyCommand=touch x", "'", '"', "%h", "", " ", "\u00e9\t|&>x",
]  # fmt: skip

KEEP_ARGUMENTS = """
import json, os, sys, time
open("a.tmp", "w").write(json.dumps([sys.argv[1:], os.getpid()]))
os.rename("a.tmp", "arguments.json")
time.sleep(1000)
"""
"""Writes [arguments, pid] to arguments.json and keeps running."""
