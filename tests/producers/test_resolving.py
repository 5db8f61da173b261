"""Names become digests of content at the start, or an error says what to do; a key is never built from a name."""

import hashlib
import http.server
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from kvtrail.producers.corpora import documents_at, resolve_corpus
from kvtrail.producers.file_digests import FileDigests
from kvtrail.producers.resolved import Started
from kvtrail.producers.served import EndpointAliases, FolderAliases, Served, resolve_alias
from kvtrail.producers.templates import resolve_template
from kvtrail.producers.weights import weights_digest, weights_files
from kvtrail.schemas.digests import digest_corpus, digest_template, digest_weights
from kvtrail.schemas.errors import BadInput, ConfigError, InvalidField, KvtrailError, NameInDigestPlace
from kvtrail.schemas.facts import AliasFact, CorpusFact, TemplateFact

JINJA = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def put(folder: Path, **files: str) -> Path:
    """Files by name, `__` for a dot, written long ago."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name.replace("__", ".").replace("--", "-")
        path.write_text(text)
        aged(path)
    return folder


def aged(path: Path) -> None:
    os.utime(path, ns=(10**18, 10**18))


# Weights ---------------------------------------------------------------------------------------------------------


def shard(number: int, count: int = 2, suffix: str = "safetensors") -> str:
    return f"model-{number:05d}-of-{count:05d}.{suffix}"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for number in (1, 2):
        (folder / shard(number)).write_bytes(f"tensor {number}".encode())
    index = {"weight_map": {"a": shard(1), "b": shard(2), "c": shard(1)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    return folder


def test_the_digest_is_of_the_content_whatever_the_files_are_called(sharded: Path, tmp_path: Path) -> None:
    expected = digest_weights([sharded / shard(1), sharded / shard(2)])
    assert weights_digest(sharded) == expected
    assert weights_digest(sharded / "model.safetensors.index.json") == expected
    renamed = tmp_path / "production-v2"
    renamed.mkdir()
    (renamed / shard(1)).write_bytes(b"tensor 2")
    (renamed / shard(2)).write_bytes(b"tensor 1")
    assert weights_digest(renamed) == expected
    (renamed / shard(2)).write_bytes(b"tensor X")
    assert weights_digest(renamed) != expected
    one = tmp_path / "one.gguf"
    one.write_bytes(b"all")
    assert weights_digest(one) == digest_weights([one])


def test_a_hugging_face_cache_is_followed_to_the_snapshot_that_it_names(sharded: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--org--name"
    old, new = "a" * 40, "b" * 40
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(new)
    # Blobs are named like digests; what they hold is what counts.
    (cache / "blobs").mkdir()
    for commit, content in ((old, b"old"), (new, b"new")):
        (cache / "snapshots" / commit).mkdir(parents=True)
        (cache / "blobs" / commit).write_bytes(content)
        (cache / "snapshots" / commit / "model.safetensors").symlink_to(cache / "blobs" / commit)
    digests = FileDigests()
    assert weights_digest(cache, digests) == digest_weights([cache / "blobs" / new])
    assert weights_digest(cache, digests, revision=old) == digest_weights([cache / "blobs" / old])
    (cache / "refs" / "main").write_text(old)
    assert weights_digest(cache, digests) == digest_weights([cache / "blobs" / old])
    for revision in ("other", "../../refs/main", ""):
        with pytest.raises(InvalidField, match="no snapshot of this revision"):
            weights_digest(cache, revision=revision)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no weights lie there"),
        ({"config.json": "{}", "optimizer.bin": "x"}, "no weights lie there"),
        ({"a.gguf": "x", "b.gguf": "y"}, "several models lie there"),
        ({"model.safetensors": "x", "consolidated.safetensors": "y"}, "several models lie there"),
        ({shard(1): "x"}, "1 of 2 files are missing"),
        ({shard(1): "x", shard(2): "y", "other.safetensors": "z"}, "several models lie there"),
        ({"m.safetensors.index.json": json.dumps({"weight_map": {"a": shard(1)}})}, "1 of 1 files are missing"),
        ({"m.safetensors.index.json": json.dumps({"weight_map": {"a": "../x"}})}, "names no files beside it"),
        ({"m.safetensors.index.json": json.dumps({"weight_map": {"a": 7}})}, "names no files beside it"),
        ({"m.safetensors.index.json": "not json"}, "names no files beside it"),
        ({"m.safetensors.index.json": "[]"}, "names no files beside it"),
    ],
)
def test_what_is_not_one_whole_model_is_refused(tmp_path: Path, files: dict[str, str], said: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InvalidField, match=said) as caught:
        weights_digest(tmp_path)
    assert caught.value.field == "weights" and caught.value.remedy


def test_formats_have_an_order_and_a_missing_path_is_said(tmp_path: Path) -> None:
    for name in ("model.safetensors", "model.gguf", "pytorch_model.bin", "training_args.bin"):
        (tmp_path / name).write_text(name)
    assert [file.name for file in weights_files(tmp_path)] == ["model.safetensors"]
    (tmp_path / "model.safetensors").unlink()
    assert [file.name for file in weights_files(tmp_path)] == ["model.gguf"]
    (tmp_path / "model.gguf").unlink()
    assert [file.name for file in weights_files(tmp_path)] == ["pytorch_model.bin"]
    with pytest.raises(InvalidField, match="no such file or folder"):
        weights_files(tmp_path / "nowhere")


# What is computed once -------------------------------------------------------------------------------------------


class Kept:
    """A file and its digests, computed with one cache over several starts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache, self.file = folder / "state" / "digests.json", folder / "weights"
        self.file.write_bytes(b"one")
        # As if the file had been there for an hour.
        monkeypatch.setattr(time, "time_ns", lambda: self.file.stat().st_ctime_ns + 3600 * 10**9)

    def start(self) -> tuple[str, int]:
        digests = FileDigests(self.cache)
        return digests.digest(self.file), digests.read


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    return Kept(tmp_path, monkeypatch)


def test_a_file_that_is_the_same_is_read_once(kept: Kept) -> None:
    first = kept.start()
    assert first[1] == 1 and kept.start() == (first[0], 0)
    assert kept.cache.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.write_bytes(b"two"),
        lambda file: (file.unlink(), file.write_bytes(b"two")),
        lambda file: file.write_bytes(b"longer"),
    ],
)
def test_a_file_that_is_not_is_read_again_even_with_its_old_times(kept: Kept, change: Callable[[Path], Any]) -> None:
    before, _ = kept.start()
    times = kept.file.stat()
    change(kept.file)
    os.utime(kept.file, ns=(times.st_atime_ns, times.st_mtime_ns))
    after, read = kept.start()
    assert read == 1 and after != before


def test_a_file_that_has_just_changed_is_not_remembered(tmp_path: Path) -> None:
    """Its next change could leave every one of its times as it is."""
    (tmp_path / "w").write_bytes(b"one")
    digests = FileDigests(tmp_path / "digests.json")
    assert [digests.digest(tmp_path / "w"), digests.digest(tmp_path / "w")] and digests.read == 2


@pytest.mark.parametrize(
    "content", ["", "not json", "[]", '{"version": 9, "files": {}}', '{"version": 1, "files": [1]}']
)
def test_a_broken_cache_costs_time_only(kept: Kept, content: str) -> None:
    first, _ = kept.start()
    kept.cache.write_text(content)
    assert kept.start() == (first, 1) and kept.start() == (first, 0)


def test_a_cache_that_others_may_write_is_not_believed(kept: Kept) -> None:
    first, _ = kept.start()
    kept.cache.write_text(kept.cache.read_text().replace(first, "0" * 64))
    kept.cache.chmod(0o666)
    assert kept.start() == (first, 1)


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"one")
    (tmp_path / "state").write_text("a file where a folder should be")
    assert FileDigests(tmp_path / "state" / "d.json").digest(tmp_path / "w")
    with pytest.raises(InvalidField, match="cannot be read"):
        FileDigests().digest(tmp_path / "nowhere")


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w"
    path.write_bytes(b"one")
    real = hashlib.file_digest

    def growing(stream: Any, name: str) -> Any:
        found = real(stream, name)
        path.write_bytes(b"another")
        return found

    monkeypatch.setattr(hashlib, "file_digest", growing)
    with pytest.raises(InvalidField, match="changed while it was read"):
        FileDigests().digest(path)


# Aliases ---------------------------------------------------------------------------------------------------------


class Endpoint:
    """An endpoint that answers with what it is told to."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.seen: list[str | None] = []
        self.redirects: dict[str, str] = {}
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.seen.append(self.headers.get("authorization"))
                answer = endpoint.answers.get(self.path)
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                elsewhere = endpoint.redirects.get(self.path)
                self.send_response(302 if elsewhere else 404 if answer is None else 200)
                if elsewhere:
                    self.send_header("location", elsewhere)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def models(self, **roots: str | None) -> None:
        self.answers["/v1/models"] = {"data": [{"id": name, "root": root} for name, root in roots.items()]}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.server.shutdown()
    endpoint.server.server_close()


def test_an_alias_is_what_lies_behind_it(sharded: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"other")
    aliases = FolderAliases({"support": sharded, "search": other})
    served = resolve_alias("support", aliases)
    assert served == Served("support", "model", weights_digest(sharded))
    assert resolve_alias("search", aliases).weights_digest != served.weights_digest
    with pytest.raises(InvalidField, match="alias: is no alias"):
        resolve_alias("nobody", aliases)


def test_a_running_endpoint_says_where_its_weights_lie(endpoint: Endpoint, sharded: Path) -> None:
    endpoint.models(support=str(sharded), other="/elsewhere")
    aliases = EndpointAliases(f"{endpoint.url}/v1/", headers={"Authorization": "Bearer t"})
    served = resolve_alias("support", aliases)
    assert (served.resolved_model, served.weights_digest) == (str(sharded), weights_digest(sharded))
    assert endpoint.seen == ["Bearer t"]
    # As a container has it, and as this machine does.
    endpoint.models(support="/models/m/model")
    mapped = EndpointAliases(endpoint.url, roots={"/models/m": sharded.parent})
    assert resolve_alias("support", mapped).weights_digest == served.weights_digest
    # SGLang's way.
    endpoint.models(support="support")
    endpoint.answers["/get_model_info"] = {"model_path": str(sharded)}
    assert resolve_alias("support", EndpointAliases(endpoint.url)).weights_digest == served.weights_digest


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (None, InvalidField, "does not say what it serves"),
        (b"<html>", InvalidField, "does not say what it serves"),
        ([], InvalidField, "is not served by the endpoint"),
        ({"data": "x"}, InvalidField, "is not served by the endpoint"),
        ({"data": [7, {"id": "another"}]}, InvalidField, "is not served by the endpoint"),
        ({"data": [{"id": "support"}]}, NameInDigestPlace, "tells a name"),
        ({"data": [{"id": "support", "root": "org/model"}]}, NameInDigestPlace, "tells a name"),
        ({"data": [{"id": "support", "root": "/not/here"}]}, NameInDigestPlace, "tells a name"),
    ],
)
def test_an_endpoint_that_tells_names_only_is_no_source(
    endpoint: Endpoint, answer: Any, error: type[KvtrailError], said: str
) -> None:
    endpoint.answers["/v1/models"] = answer
    with pytest.raises(error, match=said) as caught:
        resolve_alias("support", EndpointAliases(endpoint.url))
    assert caught.value.field and caught.value.remedy


def test_a_redirect_is_not_followed_since_the_key_would_go_with_it(endpoint: Endpoint, sharded: Path) -> None:
    endpoint.models(support=str(sharded))
    endpoint.answers["/elsewhere"] = endpoint.answers.pop("/v1/models")
    endpoint.redirects["/v1/models"] = f"{endpoint.url}/elsewhere"
    with pytest.raises(InvalidField, match="status 302"):
        resolve_alias("support", EndpointAliases(endpoint.url, headers={"Authorization": "Bearer t"}))
    assert endpoint.seen == ["Bearer t"]


def test_an_address_that_is_none_and_an_endpoint_that_is_away() -> None:
    with pytest.raises(InvalidField, match="is no HTTP address"):
        EndpointAliases("file:///etc/passwd")
    with pytest.raises(InvalidField, match="url: the endpoint does not say"):
        resolve_alias("support", EndpointAliases("http://127.0.0.1:1", timeout_s=1))


def test_a_resolver_of_ones_own_must_not_answer_with_a_name() -> None:
    assert resolve_alias("a", lambda alias: Served(alias, "m", "ab" * 32)).resolved_model == "m"
    for name in ("", "v2", "sha256-of-what", "llama-3.1-8b"):
        with pytest.raises(NameInDigestPlace, match="weights_digest") as caught:
            resolve_alias("a", lambda alias, name=name: Served(alias, "m", name))  # type: ignore[misc]  # bound now
        assert "FolderAliases" in str(caught.value)


# Templates -------------------------------------------------------------------------------------------------------


def test_a_text_is_filled_in_once_and_nothing_else_is_touched(tmp_path: Path) -> None:
    file = tmp_path / "support_v7.txt"
    file.write_text('{shop}: {days} days. Answer as {"json": true}, {unknown}.')
    rendered = resolve_template("support_v7", file, {"shop": "Contoso {days}", "days": 14})
    assert rendered.text == 'Contoso {days}: 14 days. Answer as {"json": true}, {unknown}.'
    assert rendered.digest == digest_template(rendered.text)
    assert resolve_template("support_v7", file, {"shop": "Northwind", "days": 90}).digest != rendered.digest
    keyed = resolve_template("support_v7", file, {"shop": "a", "days": 1}, secret=b"s", secret_id="k1")
    assert keyed.digest.startswith("k1:") and "Contoso" not in repr(rendered)


def test_a_chat_template_is_rendered_as_the_server_does(tmp_path: Path) -> None:
    source = "{% for m in messages %}\n<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    settings = {"messages": [{"role": "system", "content": "Be kind."}]}
    put(tmp_path / "a", chat_template__jinja=source)
    put(tmp_path / "b", tokenizer_config__json=json.dumps({"chat_template": source}))
    several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": source}]
    put(tmp_path / "c", tokenizer_config__json=json.dumps({"chat_template": several}))
    put(tmp_path / "d", support__jinja=source)
    found = [
        resolve_template("chat", path, settings, environment=JINJA)
        for path in (tmp_path / "a", tmp_path / "b", tmp_path / "c", tmp_path / "d" / "support.jinja")
    ]
    assert {one.text for one in found} == {"<|system|>Be kind.\n"} and len({one.digest for one in found}) == 1
    # The file's name is the same and its content is not.
    put(tmp_path / "a", chat_template__jinja=source.replace("<|", "["))
    assert resolve_template("chat", tmp_path / "a", settings, environment=JINJA).digest != found[0].digest


@pytest.mark.parametrize(
    ("name", "text", "settings", "field", "said"),
    [
        ("a.txt", "Hello", {"days": 3}, "settings.days", "is not used"),
        ("a.txt", "", {}, "template", "renders to nothing"),
        ("a.jinja", "{{ missing }}", {}, "template", "cannot be rendered (UndefinedError)"),
        ("a.jinja", "{{ ''.__class__.__mro__ }}", {}, "template", "cannot be rendered (SecurityError)"),
        ("a.jinja", "{% if %}", {}, "template", "cannot be rendered (TemplateSyntaxError)"),
        ("a.jinja", "Today is {{ strftime_now('%d') }}", {}, "template", "renders the time"),
        ("tokenizer_config.json", "{}", {}, "template", "has no chat template"),
        ("tokenizer_config.json", "[1]", {}, "template", "has no chat template"),
    ],
)
def test_a_template_that_cannot_be_resolved_names_what_is_wrong(
    tmp_path: Path, name: str, text: str, settings: dict[str, Any], field: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidField) as caught:
        resolve_template("t", tmp_path / name, settings, environment=JINJA)
    assert caught.value.field == field and said in str(caught.value) and caught.value.remedy


def test_what_is_needed_to_render_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.jinja").write_text("Hi")
    with pytest.raises(ConfigError, match="environment"):
        resolve_template("t", tmp_path / "a.jinja")
    with pytest.raises(InvalidField, match="cannot be read"):
        resolve_template("t", tmp_path / "nowhere.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InvalidField, match="not UTF-8"):
        resolve_template("t", tmp_path / "latin.txt")


# Collections -----------------------------------------------------------------------------------------------------


def test_a_collection_is_its_documents_in_order() -> None:
    corpus = resolve_corpus("kb", [("a", "1"), ("b", "2")])
    assert corpus.digest == digest_corpus([("a", "1"), ("b", "2")])
    assert corpus.digest != resolve_corpus("kb", [("b", "2"), ("a", "1")]).digest
    assert corpus.digest != resolve_corpus("kb", [("a", "1"), ("b", "3")]).digest
    assert resolve_corpus("kb", []).digest == ""


@pytest.mark.parametrize("revision", ["latest", "LATEST", " head ", "", "main", "current"])
def test_a_revision_that_is_a_name_is_refused(revision: str) -> None:
    with pytest.raises(NameInDigestPlace) as caught:
        resolve_corpus("kb", [("a", "1"), ("b", revision)])
    assert caught.value.field == "documents[1]" and "changes with the content" in str(caught.value)


def test_a_document_has_an_id_and_stands_there_once() -> None:
    for documents in ([("a", "1"), ("a", "2")], [("a", "1"), ("", "2")]):
        with pytest.raises(InvalidField, match=r"documents\[1\]"):
            resolve_corpus("kb", documents)


def test_documents_are_read_from_a_folder_or_a_manifest(tmp_path: Path) -> None:
    folder = tmp_path / "kb"
    put(folder, b__md="Second.", a__md="First.")
    put(folder / "sub", c__md="Third.")
    found = documents_at(folder)
    assert [name for name, _ in found] == ["a.md", "b.md", "sub/c.md"]
    before = resolve_corpus("kb", found).digest
    put(folder, a__md="First, changed.")
    assert resolve_corpus("kb", documents_at(folder)).digest != before
    (tmp_path / "kb.json").write_text('[["b", 2], {"id": "a", "revision": "r1"}]')
    (tmp_path / "kb.jsonl").write_text('["b", 2]\n\n{"id": "a", "revision": "r1"}\n')
    assert documents_at(tmp_path / "kb.json") == documents_at(tmp_path / "kb.jsonl") == [("b", "2"), ("a", "r1")]


@pytest.mark.parametrize("text", ["", "{}", "7", "[7]", '[["a"]]', '[["a", null]]', '[{"id": "a"}]', "not json"])
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "kb.json").write_text(text)
    with pytest.raises(BadInput) as caught:
        documents_at(tmp_path / "kb.json")
    assert caught.value.remedy


# Together --------------------------------------------------------------------------------------------------------


@pytest.fixture
def started(sharded: Path) -> Started:
    served = resolve_alias("support", FolderAliases({"support": sharded}))
    return Started.serving(served, kv_dtype="bfloat16", tokenizer_id="tok/1")


def test_what_was_resolved_makes_a_key(started: Started, sharded: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("Hello {name}")
    corpus = resolve_corpus("kb", [("a", "1")])

    def key(name: str = "Contoso") -> str:
        template = resolve_template("support_v7", tmp_path / "t.txt", {"name": name})
        return started.prefix_key(
            tenant_id="contoso", template=template, corpus=corpus, token_ids=[1, 2], epoch="7"
        ).fingerprint()

    first = key()
    assert key() == first and key("Northwind") != first
    (tmp_path / "t.txt").write_text("Hello, {name}")
    assert key() != first
    made = started.prefix_key(
        tenant_id="contoso", template=resolve_template("support_v7", tmp_path / "t.txt", {"name": "x"}), token_ids=[1]
    )
    assert made.weights_digest == weights_digest(sharded) and made.resolved_model == "model"
    assert made.corpus_digest is None and made.template_id == "support_v7" and made.model_id == "support"


def test_a_key_is_not_built_from_names(started: Started) -> None:
    with pytest.raises(NameInDigestPlace, match=r"template_digest: .*resolve_template"):
        started.prefix_key(tenant_id="a", template="support_v7", token_ids=[1])  # type: ignore[arg-type]  # on purpose
    template = resolve_template("t", Path(__file__))
    with pytest.raises(NameInDigestPlace, match=r"corpus_digest: .*resolve_corpus"):
        started.prefix_key(tenant_id="a", template=template, corpus="kb", token_ids=[1])  # type: ignore[arg-type]
    with pytest.raises(NameInDigestPlace, match="adapter_digest"):
        started.prefix_key(tenant_id="a", template=template, token_ids=[1], adapter_digest="legal-v2")


def test_the_judges_can_be_told(started: Started, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("Hello")
    template = resolve_template("support_v7", tmp_path / "t.txt")
    corpus = resolve_corpus("kb", [("a", "1")])
    facts = started.facts(templates=[template], corpora=[corpus], source="gateway", effective_at_us=5)
    assert [fact.body for fact in facts] == [
        AliasFact(alias="support", weights_digest=started.served.weights_digest, resolved_model="model"),
        TemplateFact(template_id="support_v7", template_digest=template.digest),
        CorpusFact(corpus_id="kb", corpus_digest=corpus.digest),
    ]
    assert all((fact.source, fact.effective_at_us) == ("gateway", 5) for fact in facts)
