"""Sets up the demonstration and shows how to use it."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from gateway import demo


class Command(BaseCommand):
    help = (
        "Loads the demonstration into a database without configuration, makes the user `admin` when there is no user "
        "yet, and prints password, token and a first request. Changes nothing that is there."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="where the gateway serves; default 8000")
        parser.add_argument(
            "--simulator-port",
            type=int,
            default=demo.FIRST_SIMULATOR_PORT,
            help="the first of three ports in a row, for a database without configuration; default 9001",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        kept = demo.prepare(settings.PILOTAGE.data_dir, first_simulator_port=options["simulator_port"])
        usable = demo.usable(kept)
        address = f"http://127.0.0.1:{options['port']}"
        if usable.password is not None:
            login = f"user {demo.USER}, password {usable.password}"
        else:
            login = f"with your own user, or `manage.py changepassword {demo.USER}`"
        lines = ["", f"  Admin   {address}/admin/  ({login})"]
        if usable.token is not None:
            lines += [
                f"  Token   {usable.token}",
                "",
                f"  curl {address}/v1/chat/completions -H 'Authorization: Bearer {usable.token}' \\",
                "    -H 'Content-Type: application/json' \\",
                """    -d '{"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}'""",
            ]
        else:
            lines += ["  Token   make one with `manage.py createtoken CALLER`, or in the admin"]
        stored = demo.simulator_port()
        if stored not in (None, options["simulator_port"]):
            lines += [
                "",
                f"  The demonstration asks its simulators at port {stored} and following, not {options['simulator_port']}:",
                f"  start with SIMULATOR_PORT={stored}, or change the providers' base URLs in the admin.",
            ]
        self.stdout.write("\n".join([*lines, ""]))
