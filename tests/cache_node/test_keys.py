"""What each key function covers."""

import pytest
from kvtrail.cache_node.keys import in_epoch, name_and_model, prefix_key
from kvtrail.producers.identity import Deployment
from kvtrail.schemas.identity import PrefixKey

DEPLOYMENT = Deployment("SmolLM2-135M-Instruct", "ab" * 32, "float32", "smollm2")


def key(tenant: str = "northwind", text: str = "policy: 90 days", epoch: str = "") -> PrefixKey:
    return DEPLOYMENT.prefix_key(
        tenant_id=tenant,
        template_id="support_v7",
        rendered_template=text,
        token_ids=list(f"{epoch}{text}".encode()),
        epoch=epoch,
    )


def test_the_name_says_nothing_of_tenant_or_text() -> None:
    found = name_and_model(key())
    assert found == ("support_v7:SmolLM2-135M-Instruct", "asserted")
    assert name_and_model(key("contoso", "policy: 14 days")) == found


def test_the_fingerprint_covers_tenant_and_text() -> None:
    found = prefix_key(key())
    assert found == (key().fingerprint(), "derived")
    assert len({found, prefix_key(key("contoso")), prefix_key(key(text="policy: 30 days"))}) == 3


def test_an_epoch_changes_either_key() -> None:
    before, after = key(), key(epoch="e2")
    assert in_epoch(name_and_model(before), "") == name_and_model(before)
    assert in_epoch(name_and_model(after), "e2") == ("e2/support_v7:SmolLM2-135M-Instruct", "asserted")
    assert in_epoch(prefix_key(after), "e2") == prefix_key(after) != prefix_key(before)


@pytest.mark.parametrize("epoch", ["", "e2"])
def test_key_functions_are_stable(epoch: str) -> None:
    assert prefix_key(key(epoch=epoch)) == prefix_key(key(epoch=epoch))
