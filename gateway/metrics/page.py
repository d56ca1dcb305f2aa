"""`/metrics` on the gateway's own port, for whoever brings the token."""

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from prometheus_client.exposition import choose_encoder

from gateway.metrics.listener import brings, giving_way


def metrics(request: HttpRequest) -> HttpResponse:
    """404 without PILOTAGE_METRICS_TOKEN, and in a process that serves no exchanges."""
    from gateway.asgi import relay  # which imports the pages

    token = settings.PILOTAGE.metrics_token
    if token is None or relay.metrics is None:
        raise Http404
    if not brings(request.headers.get("authorization", ""), token):
        return HttpResponse("A token is needed.\n", status=401, headers={"WWW-Authenticate": "Bearer"})
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    with giving_way():
        text = encode(relay.metrics.registry())
    return HttpResponse(text, content_type=content_type)
