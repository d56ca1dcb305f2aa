"""The project: its configuration as published, and its request path."""

from django.apps import AppConfig


class GatewayConfig(AppConfig):
    name = "gateway"
    verbose_name = "System"

    def ready(self) -> None:
        from accounts import groups
        from gateway import checks  # noqa: F401 - registers them
        from routing.models import ModelGroup

        groups.register(lambda: ModelGroup.objects.values_list("name", flat=True))
