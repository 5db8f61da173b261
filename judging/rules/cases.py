"""Which cases of the catalogue show that a rule speaks, and which that it stays silent where a careless one would not.

`rule  positive ... / negative ...`; `K26@n1:2` is one event of a case.
"""

_TABLE = """
CROSS_TENANT_REUSE    S01 C08 C10 K25 S05 / S04@n1:2 C39@n1:2 K09@n1:4 K25@n1:5
PRINCIPAL_SCOPE_REUSE C10 / K25@n1:2
WEIGHTS_MISMATCH      C14 K15 / C41@n1:2 K32@n1:2 C44@n1:2
ALIAS_MOVED           C21 K32 / C41@n1:4
ALLOWED_STALENESS     C44 / C44@n1:5
ADAPTER_MISMATCH      C19 C20 K05 / K05@n1:2 K05@n1:7
KV_FORMAT_MISMATCH    C17 K04 / K04@n1:3 K03@n1:6
TOKENIZER_MISMATCH    K26 / K42@n1:2
TEMPLATE_MISMATCH     S02 C22 C45 / C45@n1:3 K26@n1:2 S03
TOOLS_MISMATCH        C23 / C42@n1:2 K26@n1:2
CORPUS_MISMATCH       C25 K29 / C25@n1:2 K42@n1:4
MM_MISMATCH           C03 C05 K03 / K03@n1:4 K03@n1:5 C42@n1:4
PARAMS_MISMATCH       K01 / K01@n1:5
GUARDRAIL_MISMATCH    K02 / K02@n1:2 K02@n1:6
AUTHZ_MISMATCH        K02 / K02@n1:2 K02@n1:6
KEY_COLLISION         C01 C02 C07 C13 K39 / K39@n1:3 K39@n1:5
KEY_UNDERSPECIFIED    K21 K34 / K21@n1:10 C47@n1:3
KEY_MISMATCH          K21 / K21@n1:1
KEY_CLIENT_CONTROLLED C05 / S01
KEY_DRIFT             C38 / K43
STALE_HANDLE          C33 K06 / K06@d1:2 C33@d1:3
PAYLOAD_MISMATCH      C12 C31 C32 K37 / K37@n1:3 K37@n1:8 K31@n1:3
COMPONENT_MISMATCH    C34 K22 / K22@n1:7
COMPONENT_MISSING     C34 / K22@n1:5
HIT_UNCOMMITTED       C29 K23 K24 / K23@n1:2 K23@n1:5 K38@n1:3
HIT_FAILED_ENTRY      C31 / C31@n1:7 K38@n1:5
HIT_AFTER_INVALIDATE  C15 K17 K18 / K17@n1:6 K17@n1:10
INVALIDATE_FAILED     C15 K17 K18 / K18@n1:3
STALE_EPOCH           K19 / K19@n1:2 K19@n1:6 C44@n1:2
HIT_AFTER_EXPIRE      C27 C33 K10 K11 K14 / K10@n1/i2:4 K20@n1:4 K27@n2:2 C48@n1:5
AGE_EXCEEDED          C27 K35 / K35@n2:1
INCOMPLETE_ENTRY      C28 K28 / K28@n1:2 K28@n1:6
UNREPORTED_REUSE      C13 K36 / K36@n1:2
PREFIX_PROBING        K07 / K08 K41
PLACE_CONFLICT        K06 / K06@p1:3
CACHING_FORBIDDEN     K09 / K09@n1:1 K09@n1:3
HIT_UNKNOWN_ENTRY     K12 K33 / K12@n1:3 K33@n1/i2:2
UNATTRIBUTED_HIT      C35 K12 K15 / K33@n1/i2:3 K16@n1:3
STREAM_GAP            C35 K15 C37 / C48 K11
SEQUENCE_RESET        tests/judging/test_rules.py::test_numbers_that_start_again_are_reported_once / C48 K11
LATE_FACT             K44 / K09
CANARY_MISMATCH       K45 / K45@n1:4
SPOT_CHECK_FAILED     K46 / K46@n1:3
BYPASS_DIFF_IMPLICATED K46 / K46@n1:5
ISOLATION_NOT_ENFORCED K47 / K47@n1:3
CHECK_INCONCLUSIVE    K48 / K46
RETENTION_TOO_SHORT   {sink}::test_what_retention_outlasts_is_silent_and_what_it_does_not_is_found_once / \
                      {sink}::test_a_longer_retention_retracts_what_it_answers
"""


def _parsed() -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    found: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for line in _TABLE.format(sink="tests/streams/test_retention.py").strip().splitlines():
        rule, *words = line.split()
        cut = words.index("/")
        found[rule] = tuple(words[:cut]), tuple(words[cut + 1 :])
    return found


CASES = _parsed()
"""Rule id -> its positive and its negative cases."""
