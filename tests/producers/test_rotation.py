"""Rotating the secret behind keyed digests: no finding, and what cannot be compared is not called equal."""

from pathlib import Path

from click.testing import CliRunner
from kvtrail.cli.judge import judge
from kvtrail.producers.identity import Deployment
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.producers.recording import RecordingTransport
from kvtrail.schemas.config import PublisherConfig
from kvtrail.schemas.identity import PrefixKey

TEXT = "Refunds within 30 days."


def key(secret: bytes, secret_id: str, text: str = TEXT) -> PrefixKey:
    deployment = Deployment("smol", "a" * 64, "float16", "smol", secret=secret, secret_id=secret_id)
    return deployment.prefix_key(
        tenant_id="northwind", template_id="support_v7", rendered_template=text, token_ids=list(text.encode())
    )


def judged(path: Path, created: PrefixKey, requested: PrefixKey) -> str:
    """What the judging core says of an entry of one that is served to the other."""
    with LifecyclePublisher("gpu-1", RecordingTransport(path), PublisherConfig(linger_s=0.0)) as publisher:
        publisher.create("k", created, store="kv", tier="gpu", tokens=3, key_origin="asserted")
        publisher.hit("k", requested, store="kv", tier="gpu", reused_tokens=3, key_origin="asserted")
        assert publisher.flush()
    ran = CliRunner().invoke(judge, [str(path)])
    path.unlink()
    return ran.output


def test_a_rotation_under_a_new_id_raises_no_finding(tmp_path: Path) -> None:
    before, after = key(b"old secret", "hmac-2026a"), key(b"new secret", "hmac-2026b")
    assert before.template_digest != after.template_digest
    assert judged(tmp_path / "h.jsonl", before, after).startswith("0 findings,")


def test_under_one_id_content_is_compared_as_ever(tmp_path: Path) -> None:
    first, edited = key(b"secret", "hmac-2026a"), key(b"secret", "hmac-2026a", "Refunds within 14 days.")
    assert judged(tmp_path / "h.jsonl", first, key(b"secret", "hmac-2026a")).startswith("0 findings,")
    assert "TEMPLATE_MISMATCH" in judged(tmp_path / "h.jsonl", first, edited)


def test_the_secret_shows_nowhere(tmp_path: Path) -> None:
    judged(tmp_path / "h.jsonl", key(b"old secret", "hmac-2026a"), key(b"new secret", "hmac-2026b"))
    deployment = Deployment("smol", "a" * 64, "float16", "smol", secret=b"old secret", secret_id="hmac-2026a")
    assert "old secret" not in repr(deployment) + str(key(b"old secret", "hmac-2026a").to_wire())
