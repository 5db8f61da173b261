"""Nobody reads without a token: links, cookies, bearer tokens, host names, and the token's file."""

import stat
from pathlib import Path

import pytest
from kvtrail.audit.console.access import (
    CODE_LIFE_S,
    SESSION_LIFE_S,
    TOKEN_FILE,
    Access,
    ensure_token,
    local_path,
    read_token,
    sign_in_link,
)
from kvtrail.audit.console.app import console
from kvtrail.audit.console.gate import HEADERS, Hosts
from kvtrail.audit.console.server import address_of, bind, console_link, token_for, url
from kvtrail.schemas.config import Config, LocalConfig, ServeConfig
from kvtrail.schemas.errors import ConfigError, StackError
from pydantic import SecretStr
from starlette.testclient import TestClient

from .memory import MemoryArchive
from .samples import FINDING, INCIDENT

TOKEN = "a-token-of-at-least-sixteen"
BASE = "http://127.0.0.1:8780"
PATHS = ("/", "/incidents", f"/incidents/{FINDING.cause_id}", "/investigate?request=req-3", "/find?q=req-3", "/health",
         "/api/findings", "/api/incidents", "/api/investigate?request=req-3", "/api/health", "/nothing")  # fmt: skip


class Clock:
    """A clock that stands until it is moved."""

    now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(clock: Clock) -> TestClient:
    served = console(MemoryArchive(INCIDENT, [FINDING]), Access(TOKEN), Hosts("127.0.0.1"), now_s=clock)
    return TestClient(served, base_url=BASE)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic " + TOKEN}, {"authorization": "Bearer"},
     {"cookie": "kvtrail_8780=1900000000.a.b"}, {"cookie": f"kvtrail_8780={TOKEN}"}, {"authorization": "Bearer é"}],
)  # fmt: skip
def test_nothing_is_read_without_the_token(client: TestClient, path: str, headers: dict[str, str]) -> None:
    response = client.get(path, headers={name: value.encode() for name, value in headers.items()})
    assert response.status_code == 401
    assert "contoso" not in response.text and KEY_WORDS.isdisjoint(response.text.split())
    assert response.headers["www-authenticate"].startswith("Bearer")


KEY_WORDS = {"northwind", "req-3", FINDING.id}


def test_what_is_open_says_nothing_of_any_tenant(client: TestClient) -> None:
    for path in ("/healthz", "/readyz", "/static/console.css", "/enter"):
        response = client.get(path)
        assert response.status_code in (200, 401)
        assert "northwind" not in response.text


def test_programs_send_the_token(client: TestClient) -> None:
    assert client.get("/api/findings", headers={"authorization": f"bearer {TOKEN}"}).status_code == 200


def test_a_link_signs_in_once_and_leads_on(client: TestClient, clock: Clock) -> None:
    link = sign_in_link(BASE, TOKEN, clock(), "/investigate?finding=a&x=b")
    assert TOKEN not in link
    entered = client.get(link)
    assert entered.status_code == 200
    assert 'content="0;url=/investigate?finding=a&amp;x=b"' in entered.text
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/" in cookie and TOKEN not in cookie
    assert client.get("/").status_code == 200
    assert client.get(link).status_code == 200  # already signed in: the same browser may follow it again
    client.cookies.clear()
    assert client.get(link).status_code == 401


def test_links_and_sessions_run_out(client: TestClient, clock: Clock) -> None:
    link = sign_in_link(BASE, TOKEN, clock())
    clock.now_s += CODE_LIFE_S + 1
    assert client.get(link).status_code == 401
    assert client.get(sign_in_link(BASE, TOKEN, clock())).status_code == 200
    clock.now_s += SESSION_LIFE_S - 2
    assert client.get("/").status_code == 200
    clock.now_s += 4
    assert client.get("/").status_code == 401


@pytest.mark.parametrize("code", ["", "x", "1.2.3", "9999999999.a.", "\u0661.a.b", "9" * 400 + ".a.b"])
def test_forged_codes_and_cookies_are_refused(code: str) -> None:
    access = Access(TOKEN)
    assert not access.redeem(code, 0)
    assert not access.session(code, 0)


def test_a_code_is_no_cookie_and_a_changed_expiry_no_code(clock: Clock) -> None:
    access = Access(TOKEN)
    code = sign_in_link(BASE, TOKEN, clock()).partition("code=")[2]
    assert not access.session(code, clock())
    expiry, rest = code.split(".", 1)
    assert not access.redeem(f"{int(expiry) + 1}.{rest}", clock())
    assert not Access(TOKEN + "2").redeem(code, clock())
    assert access.redeem(code, clock())


def test_the_token_can_be_typed_in(client: TestClient) -> None:
    assert client.post("/enter", data={"token": "wrong"}).status_code == 401
    assert client.post("/enter", content="&".join(["token=x"] * 50)).status_code == 401
    assert client.post("/enter", data={"token": TOKEN}).status_code == 200
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("path", ["https://evil.example", "//evil.example", "/\\evil", "javascript:x", "", "/\n", "/é"])
def test_a_link_never_leads_elsewhere(path: str) -> None:
    assert local_path(path) == "/"
    assert local_path("/investigate?key=a") == "/investigate?key=a"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "10.0.0.1:8780", "localhost.evil"])
def test_a_foreign_host_name_gets_nothing(client: TestClient, host: str) -> None:
    response = client.get("/", headers={"host": host, "authorization": f"Bearer {TOKEN}"})
    assert response.status_code == 421 and "contoso" not in response.text


@pytest.mark.parametrize("host", ["127.0.0.1:8780", "localhost:1", "LOCALHOST", "[::1]:8780"])
def test_loopback_names_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host, "authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_on_a_network_addresses_and_configured_names_are_answered() -> None:
    hosts = Hosts("0.0.0.0", ["Audit.example"])
    assert all(hosts.allows(name) for name in ("10.0.0.5:80", "audit.example:8780", "[fd00::1]:80", "localhost"))
    assert not any(hosts.allows(name) for name in ("evil.example", "10.0.0.5.evil.example", ""))


@pytest.mark.parametrize("path", ["/", "/healthz", "/static/console.css", "/nothing", "/enter"])
def test_every_answer_carries_the_headers(client: TestClient, path: str) -> None:
    response = client.get(path)
    for name, value in HEADERS.items():
        assert response.headers[name] == value
    assert "unsafe" not in HEADERS["content-security-policy"]


class TestTokenFile:
    """Where the token is kept."""

    def test_made_once_and_private(self, tmp_path: Path) -> None:
        token = ensure_token(tmp_path / "state")
        assert len(token) > 30 and ensure_token(tmp_path / "state") == token == read_token(tmp_path / "state")
        assert stat.S_IMODE((tmp_path / "state" / TOKEN_FILE).stat().st_mode) == 0o600
        assert [path.name for path in (tmp_path / "state").iterdir()] == [TOKEN_FILE]

    def test_open_to_others_is_refused(self, tmp_path: Path) -> None:
        ensure_token(tmp_path)
        (tmp_path / TOKEN_FILE).chmod(0o640)
        with pytest.raises(ConfigError, match="can be read by others"):
            ensure_token(tmp_path)

    def test_a_link_in_its_place_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").write_text("x" * 40)
        (tmp_path / TOKEN_FILE).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ConfigError, match="cannot be read"):
            ensure_token(tmp_path)

    def test_a_directory_that_cannot_be_used_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="console-token"):
            ensure_token(tmp_path / "file")

    def test_none_yet(self, tmp_path: Path) -> None:
        assert read_token(tmp_path) == ""


def config(tmp_path: Path, **serve: object) -> Config:
    return Config(local=LocalConfig(directory=tmp_path), serve=ServeConfig.model_validate(serve))


def test_others_can_reach_it_only_with_a_token_of_ones_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"serve\.host.*serve\.token_file"):
        token_for(config(tmp_path, host="0.0.0.0"))
    assert token_for(config(tmp_path, host="0.0.0.0", token=SecretStr(TOKEN))) == TOKEN
    assert list(tmp_path.iterdir()) == []
    assert token_for(config(tmp_path)) == read_token(tmp_path)


def test_a_short_token_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"serve\.token"):
        Access("short")


def test_a_taken_port_and_an_odd_host_say_what_to_change() -> None:
    with bind("127.0.0.1", 0) as taken, pytest.raises(StackError, match="KVTRAIL_SERVE__PORT"):
        bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(StackError, match="KVTRAIL_SERVE__HOST"):
        bind("no such host.invalid", 0)


def test_links_are_made_for_the_configured_or_the_noted_address(tmp_path: Path) -> None:
    assert console_link(config(tmp_path, port=9999), now_s=0).startswith("http://127.0.0.1:9999/enter?code=600.")
    with pytest.raises(StackError, match="kvtrail serve"):
        address_of(config(tmp_path, port=0))
    assert url("::1", 80) == "http://[::1]:80" and url("0.0.0.0", 80) == "http://127.0.0.1:80"
