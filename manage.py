#!/usr/bin/env python3
"""Pilotage's command line."""

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    try:
        from django.core.management import execute_from_command_line
        from django.db import OperationalError, ProgrammingError
    except ModuleNotFoundError:
        sys.exit("Django is not installed for this Python: run `make install`, then `.venv/bin/python manage.py ...`")
    try:
        execute_from_command_line(sys.argv)
    except (OperationalError, ProgrammingError) as problem:
        if "--traceback" in sys.argv:
            raise
        from django.db import connection

        sys.exit(
            f"The database {connection.settings_dict['NAME']} cannot be used: {str(problem).strip()}\n"
            "If it is new, or older than this Pilotage: `manage.py migrate`. More with --traceback."
        )
