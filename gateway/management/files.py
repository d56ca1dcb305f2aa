"""Configuration files as commands meet them: read whole, and refused with one line for each problem."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from django.core.management.base import CommandError, OutputWrapper

from gateway import config, strict_yaml
from routing.core.errors import ConfigurationError, Problem


def load_file(name: str, stderr: OutputWrapper) -> config.Configuration:
    """`-` is standard input. Says the warnings; raises CommandError (exit code 1) after saying every problem."""
    try:
        if name == "-":
            text = sys.stdin.buffer.read(strict_yaml.MAX_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                text = file.read(strict_yaml.MAX_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}") from None
    try:
        configuration = config.load(text)
    except ConfigurationError as error:
        refuse(error.problems, stderr)
    for warning in configuration.warnings:
        stderr.write(f"warning: {warning}")
    return configuration


def refuse(problems: Sequence[Problem], stderr: OutputWrapper) -> NoReturn:
    for problem in problems:
        stderr.write(str(problem))
    raise CommandError("1 problem." if len(problems) == 1 else f"{len(problems)} problems.")
