"""What crosses the gateway and what does not."""

from gateway.relay.headers import RETURNED_ON_ERROR, forwarded, returned


def test_a_callers_fields_go_upstream_in_order_but_for_credentials_hops_and_ours():
    sent = [
        (b"host", b"evil"),
        (b"connection", b"keep-alive, X-Secret"),
        (b"x-secret", b"1"),
        (b"te", b"trailers"),
        (b"upgrade", b"websocket"),
        (b"proxy-authorization", b"Basic x"),
        (b"authorization", b"Bearer plt_x"),
        (b"x-api-key", b"plt_x"),
        (b"api-key", b"k"),
        (b"cookie", b"a=b"),
        (b"openai-organization", b"org"),
        (b"content-length", b"12"),
        (b"transfer-encoding", b"chunked"),
        (b"accept-encoding", b"gzip"),
        (b"x-pilotage-target", b"mine"),
        (b"x_api_key", b"k"),
        (b"x-api_key", b"k"),
        (b"x-forwarded-host", b"evil"),
        (b"x_forwarded_for", b"10.0.0.1"),
        (b"forwarded", b"host=evil"),
        (b"x-original-url", b"/admin"),
        (b"session_id", b"s"),
        (b"x-team", b"callers"),
        (b"anthropic-beta", b"a-2025,b-2025"),
        (b"anthropic-beta", b"c-2025"),
        (b"user-agent", b"SDK/1"),
        (b"content-type", b"application/json"),
    ]
    assert forwarded(sent, fixed=frozenset({b"x-team"})) == [
        (b"session_id", b"s"),
        (b"anthropic-beta", b"a-2025,b-2025"),
        (b"anthropic-beta", b"c-2025"),
        (b"user-agent", b"SDK/1"),
        (b"content-type", b"application/json"),
    ]


def test_a_provider_tells_the_client_nothing_of_its_account_or_servers():
    answered = [
        (b"set-cookie", b"a=b"),
        (b"server", b"x"),
        (b"openai-organization", b"org-1"),
        (b"x-ratelimit-remaining-requests", b"9"),
        (b"anthropic-organization-id", b"o"),
        (b"openai-processing-ms", b"12"),
        (b"retry-after", b"3"),
    ]
    assert returned(answered) == [(b"openai-processing-ms", b"12")]
    assert returned(answered, RETURNED_ON_ERROR) == [(b"openai-processing-ms", b"12"), (b"retry-after", b"3")]
