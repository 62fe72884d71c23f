"""The key: who is let in, what is open, and that it is never shown."""

from __future__ import annotations

import base64

import httpx
import pytest
from corl_judge.auth import presented_key
from corl_judge.settings import Settings, is_loopback
from pydantic import ValidationError

from tests.judge.harness import Judges

ROUTES = [
    ("POST", "/v1/rollouts"),
    ("POST", "/v1/scores"),
    ("POST", "/v1/jobs"),
    ("GET", "/v1/jobs/x"),
    ("DELETE", "/v1/jobs/x"),
    ("PUT", "/v1/weights"),
    ("GET", "/v1/weights"),
    ("PUT", "/v1/trainer"),
    ("DELETE", "/v1/votes"),
    ("GET", "/v1/model"),
    ("GET", "/metrics"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/nothing"),
]


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def test_every_route_but_the_probes_needs_the_key(judges: Judges) -> None:
    judge = await judges.start(api_key="sesame")
    wrong = [{}, {"authorization": "Bearer sesam"}, {"authorization": basic("sesame", "")}, {"authorization": "sesame"}]
    async with httpx.AsyncClient(base_url=judge.url) as http:
        for method, route in ROUTES:
            for headers in wrong:
                answer = await http.request(method, route, headers=headers)
                assert answer.status_code == 401, (method, route, headers)
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.json()["type"] == "urn:corl:unauthorized"
                assert "Bearer" in answer.headers["www-authenticate"]
                assert "Basic" in answer.headers["www-authenticate"]
        for probe in ("/livez", "/readyz", "/startupz"):
            assert (await http.get(probe)).status_code == 200


async def test_the_key_opens_as_bearer_and_as_basic_password(judges: Judges) -> None:
    judge = await judges.start(api_key="sesame")
    async with httpx.AsyncClient(base_url=judge.url) as http:
        for header in ("Bearer sesame", "bearer sesame", basic("", "sesame"), basic("anyone", "sesame")):
            assert (await http.get("/v1/model", headers={"authorization": header})).status_code == 200, header


async def test_a_url_can_carry_the_key(judges: Judges) -> None:
    judge = await judges.start(api_key="sesame")
    async with httpx.AsyncClient() as http:
        assert (await http.get(judge.url.replace("://", "://any:sesame@") + "/v1/model")).status_code == 200


@pytest.mark.parametrize(
    ("header", "key"),
    [
        (b"Basic " + base64.b64encode(b"u:a:b"), b"a:b"),
        (b"Basic " + base64.b64encode(b"nocolon"), None),
        (b"Basic ***", None),
        (b"Basic", None),
        (b"Bearer ", None),
        (b"Digest abc", None),
        (b"", None),
    ],
)
def test_what_a_header_carries(header: bytes, key: bytes | None) -> None:
    assert presented_key(header) == key


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "judge.example", ""])
def test_an_address_that_others_reach_needs_a_key(host: str) -> None:
    with pytest.raises(ValidationError, match="CORL_API_KEY"):
        Settings(host=host)
    Settings(host=host, api_key="sesame")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    assert is_loopback(host)
    Settings(host=host)


def test_settings_do_not_show_secrets() -> None:
    settings = Settings(api_key="sesame", redis="redis://u:hunter2@host:1/0")
    assert "sesame" not in repr(settings)
    assert "hunter2" not in repr(settings)
