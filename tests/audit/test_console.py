"""The console through its HTTP surface: pages, documents, what it escapes and how it fails."""

import html
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import kvtrail.audit.console.app as app_module
import msgspec
import pytest
from kvtrail.audit.archive import AmbiguousQuestion, Health
from kvtrail.audit.console.access import Access
from kvtrail.audit.console.app import console
from kvtrail.audit.console.gate import Hosts
from kvtrail.audit.document import history_document
from kvtrail.audit.history import Question, build_history
from kvtrail.schemas.errors import StoreRejected, StoreUnavailable
from kvtrail.schemas.events import Hit
from starlette.testclient import TestClient

from .memory import MemoryArchive
from .samples import CREATE, FINDING, INCIDENT, KEY, OWN_HIT, WRONG_HIT, at, event, finding, identity, renamed

TOKEN = "a-token-of-at-least-sixteen"
NOW_S = at("14:30:00") / 1e6


@pytest.fixture
def archive() -> MemoryArchive:
    return MemoryArchive(INCIDENT, [FINDING])


@pytest.fixture
def client(archive: MemoryArchive) -> TestClient:
    """Signed in, as a program is."""
    served = console(archive, Access(TOKEN), Hosts("127.0.0.1"), now_s=lambda: NOW_S)
    return TestClient(served, base_url="http://127.0.0.1:8780", headers={"authorization": f"Bearer {TOKEN}"})


def text(page: str) -> str:
    """A page's words, without its tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_findings_list_says_what_who_and_when(client: TestClient) -> None:
    page = client.get("/").text
    assert "critical Cross-tenant reuse key does not cover tenant, template digest, token ids" in text(page)
    assert "contoso served from northwind" in text(page)
    assert "9 min ago" in text(page)
    assert f'href="/investigate?finding={FINDING.id}"' in page
    assert 'aria-current="page"' in page


def test_a_producers_clock_that_is_ahead_is_said(client: TestClient, archive: MemoryArchive) -> None:
    archive.known = [msgspec.structs.replace(FINDING, event_time_us=FINDING.event_time_us + 3_600_000_000)]
    page = text(client.get("/").text)
    assert "min ahead" in page and " 0 s ago" not in page


def test_filters_narrow_and_an_empty_list_points_to_health(client: TestClient) -> None:
    page = client.get("/", params={"severity": "critical", "since": "1m"}).text
    assert "No finding matches" in page and 'href="/health"' in page
    assert "Cross-tenant reuse" in client.get("/", params={"since": "1h", "cause": "cross-tenant-reuse"}).text
    assert "Cross-tenant reuse" not in client.get("/", params={"status": "retracted"}).text


@pytest.mark.parametrize("bad", [{"severity": "loud"}, {"since": "soon"}, {"status": "maybe"}, {"limit": "0"},
                                 {"limit": "-1"}, {"limit": "²"}])  # fmt: skip
def test_a_filter_that_means_nothing_is_refused_by_name(client: TestClient, bad: dict[str, str]) -> None:
    response = client.get("/", params=bad)
    assert response.status_code == 400
    assert next(iter(bad)) in text(response.text)
    assert client.get("/api/findings", params=bad).json()["error"]["field"] == next(iter(bad))


def test_investigation_page_marks_the_wrong_hit_and_compares_the_parties(client: TestClient) -> None:
    page = client.get("/investigate", params={"request": "req-3"}).text
    words = text(page)
    assert "The cache is implicated: cross-tenant reuse" in words
    assert "created by northwind: key does not cover tenant, template digest, token ids" in words
    assert "What to do now" in words and "bump the epoch marker" in words
    assert re.search(r'<tr class="wrong critical asked">\s*<td><time[^>]*>14:20:09', page)
    assert "Created for northwind" in words and "Served to contoso" in words
    assert re.search(r'<tr class="differs"><th scope="row">template digest</th>', page)
    assert re.search(r'<tr class="equal"><th scope="row">weights</th>', page)
    assert "never compared:" in words and "corpus" in words
    assert f"finding {FINDING.id} revision 1" in words
    assert f"/api/investigate?request={'req-3'}" in page


def test_innocent_and_unknown_have_pages_too(client: TestClient, archive: MemoryArchive) -> None:
    assert "The cache is not implicated" in client.get("/investigate", params={"request": "req-2"}).text
    archive.events = [OWN_HIT]
    archive.known = []
    page = client.get("/investigate", params={"request": "req-2"}).text
    assert "not enough is known to clear the cache" in page
    assert "The creator of what" in page


def test_incidents_and_their_pages(client: TestClient) -> None:
    page = client.get("/incidents").text
    assert "This key does not cover tenant" in page and "1 hit, 1 request, 2 tenants" in text(page)
    one = client.get(f"/incidents/{FINDING.cause_id}").text
    assert "Content of northwind" in text(one) and FINDING.id in one
    assert client.get("/incidents/none").status_code == 404


def test_an_incident_of_retracted_findings_is_closed(client: TestClient, archive: MemoryArchive) -> None:
    archive.known = [finding(CREATE, WRONG_HIT, revision=2, status="retracted", reason="not so")]
    page = client.get(f"/incidents/{FINDING.cause_id}").text
    assert "Closed incident" in page and "not so" in page


def test_health_tells_of_silence_and_refusals(client: TestClient, archive: MemoryArchive) -> None:
    assert "No event has arrived" in client.get("/health").text
    archive.health_told = Health(
        events=1240, hits=7, newest_append_us=at("14:29:30"), dead_letters=3, dead_letter_codes=(("broken_run", 3),)
    )
    words = text(client.get("/health").text)
    assert "1 240" in words and "30 s ago" in words and "broken_run 3" in words
    assert client.get("/api/health").json()["dead_letters"] == 3


def test_search_finds_or_says_that_it_did_not(client: TestClient) -> None:
    found = client.get("/find", params={"q": "req-3"}, follow_redirects=False)
    assert (found.status_code, found.headers["location"]) == (303, "/investigate?request=req-3")
    missing = client.get("/find", params={"q": "<b>nope</b>"})
    assert missing.status_code == 404 and "<b>nope" not in missing.text
    assert client.get("/find", params={"q": " "}, follow_redirects=False).headers["location"] == "/"


def test_ambiguity_is_a_choice(client: TestClient, archive: MemoryArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    def many(text: str) -> Question:
        raise AmbiguousQuestion("this can mean more than one thing.", (Question(kind="key", value="a&b", store="s"),))

    monkeypatch.setattr(archive, "look_up", many)
    page = client.get("/find", params={"q": "a"})
    assert page.status_code == 409
    assert 'href="/investigate?key=a%26b&amp;store=s"' in page.text


def test_api_gives_the_documents_of_the_command_line(client: TestClient) -> None:
    told = client.get("/api/investigate", params={"request": "req-3"}).json()
    expected = history_document(build_history(Question(kind="request", value="req-3"), INCIDENT, [FINDING]))
    assert told["verdict"]["outcome"] == "implicated"
    assert told == msgspec.json.decode(msgspec.json.encode(expected))
    assert client.get("/api/findings").json()["findings"][0]["id"] == FINDING.id
    assert client.get("/api/incidents").json()["incidents"][0]["sentence"].startswith("this key does not cover tenant")


@pytest.mark.parametrize("query", [{}, {"request": ""}, {"request": "a", "key": "b"}])
def test_exactly_one_question_at_a_time(client: TestClient, query: dict[str, str]) -> None:
    assert client.get("/investigate", params=query).status_code == 400
    assert client.get("/api/investigate", params=query).json()["error"]["code"] == "bad_question"


def test_unknown_ids_and_pages(client: TestClient) -> None:
    page = client.get("/investigate", params={"request": "nobody"})
    assert page.status_code == 404 and "no event carries this id" in page.text
    told = client.get("/api/investigate", params={"request": "nobody"})
    assert (told.status_code, told.json()["error"]["code"]) == (404, "nothing_found")
    assert client.get("/nothing").status_code == 404
    assert client.get("/api/nothing").json()["error"]["code"] == "http"
    assert client.post("/").status_code == 405


@pytest.mark.parametrize(
    ("error", "status"),
    [(StoreUnavailable("query failed.", remedy="Is it running?"), 503), (StoreRejected("query failed."), 502)],
)
def test_a_store_that_is_away_is_said_on_every_page(
    client: TestClient, archive: MemoryArchive, error: StoreUnavailable, status: int
) -> None:
    archive.failing = error
    for path in ("/", "/incidents", "/health", "/investigate?request=req-3", "/find?q=a", "/api/findings"):
        response = client.get(path)
        assert response.status_code == status
        assert "query failed" in response.text.lower()
    ready = client.get("/readyz")
    assert ready.status_code == 503 and "query failed" in ready.text
    assert client.get("/healthz").status_code == 200


HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)>'{{7*7}}\u202e\x1b[2J`x`"


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.targets += [value or "" for name, value in attrs if name in ("href", "src", "action")]


def test_hostile_names_stay_text_everywhere(client: TestClient, archive: MemoryArchive) -> None:
    who = identity(HOSTILE, "hostile", template_id=HOSTILE, model_id=HOSTILE)
    create = renamed(CREATE, key=HOSTILE, store=HOSTILE, identity=who, request_id=HOSTILE, node=HOSTILE)
    hit = renamed(WRONG_HIT, key=HOSTILE, store=HOSTILE, request_id=HOSTILE + "2", body=Hit(outcome=HOSTILE))
    about = finding(create, hit, title=HOSTILE, reason=HOSTILE, rule=HOSTILE, facts=(HOSTILE,))
    archive.events, archive.known = [create, hit], [about]
    archive.health_told = Health(events=1, dead_letters=1, dead_letter_codes=((HOSTILE, 1),), server_version=HOSTILE)
    pages = ["/", "/incidents", f"/incidents/{about.cause_id}", "/health", f"/investigate?finding={about.id}",
             f"/investigate?key={quote(HOSTILE)}", f"/?cause={quote(HOSTILE)}"]  # fmt: skip
    for path in pages:
        response = client.get(path)
        assert response.status_code == 200, path
        parsed = _Tags()
        parsed.feed(response.text)
        assert not parsed.tags & {"script", "img"}, path
        assert not {name for name in parsed.attributes if name.startswith("on")}, path
        assert all(target.startswith(("/", "data:,", "#")) for target in parsed.targets), path
        assert "\u202e" not in response.text and "\x1b" not in response.text
        assert "{{7*7}}" in html.unescape(response.text), path


def test_pages_are_accessible_and_need_nothing_from_elsewhere(client: TestClient) -> None:
    for path in ("/", "/incidents", f"/incidents/{FINDING.cause_id}", "/health", "/investigate?request=req-3",
                 f"/investigate?key={KEY}"):  # fmt: skip
        page = client.get(path).text
        assert '<html lang="en">' in page and page.count("<h1") == 1
        assert "<script" not in page and "style=" not in page and "http" not in page.replace("http-equiv", "")
        assert re.search(r"<th(?![ea])(?! scope| class=\"right\"| data-label)[ >]", page.replace("<thead", "")) is None
        assert 'for="q"' in page and 'href="#main"' in page
        assert page.count("<table") == page.count("<caption")


def test_long_histories_fold_on_the_page_but_not_in_the_document(client: TestClient, archive: MemoryArchive) -> None:
    archive.events += [event(seq, "13:00:00", Hit(), identity("northwind")) for seq in range(10, 400)]
    assert "more events" in client.get("/investigate", params={"key": KEY}).text
    told = client.get("/api/investigate", params={"key": KEY}).json()
    assert len(told["rows"]) == 393


def luminance(colour: str) -> float:
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_read(scheme: int) -> None:
    style = Path(app_module.__file__).with_name("console.css").read_text()
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", style.split(":root {")[scheme + 1].split("}")[0]))
    pairs = [(ink, ground) for ink in ("ink", "quiet", "link") for ground in ("ground", "sheet")]
    pairs += [(level, f"{level}-soft") for level in ("critical", "high", "medium", "low", "good")]
    pairs += [(ink, f"{level}-soft") for ink in ("ink", "quiet", "link") for level in ("critical", "high", "medium")]
    pairs += [("ink", "field"), ("quiet", "field"), ("high", "sheet"), ("medium", "sheet")]
    for ink, ground in pairs:
        light, dark = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{ink} on {ground}"
