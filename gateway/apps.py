"""The project: its configuration as published, and its request path."""

from django.apps import AppConfig


class GatewayConfig(AppConfig):
    name = "gateway"
    verbose_name = "System"

    def ready(self) -> None:
        from accounts import groups
        from gateway import checks  # noqa: F401 - registers them
        from gateway.list_prices import entered_prices
        from reports import price_list
        from routing.models import ModelGroup

        groups.register(lambda: ModelGroup.objects.values_list("name", flat=True))
        price_list.register(entered_prices)
