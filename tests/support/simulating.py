"""`manage.py simulate` without a Django around it, which that command makes no use of and which is most of its start."""

import sys

from gateway.management.commands.simulate import Command

if __name__ == "__main__":
    Command().run_from_argv([sys.argv[0], "simulate", *sys.argv[1:]])
