"""Tokens of a real issuer should count as long as they are its, for us, and within their time."""

import base64
import hashlib
import hmac
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dfmeta.errors import AuthUnavailable, Forbidden, IssuerError, Unauthorized
from dfmeta.runtime import clock
from dfmeta.runtime.throttle import LONGEST_PAUSE
from dfmeta.store.auth import oidc as auth_keys
from dfmeta.store.auth.caller import INVALID, Authorizer
from dfmeta.store.auth.oidc import (
    ANSWER_MAX,
    LEEWAY,
    LIFESPAN,
    SUBJECT_SHOWN,
    KeyCache,
    OidcSettings,
    OidcVerifier,
    discover,
    fetch_json,
    granted,
    issuer_keys,
    subject,
)
from tests.core.unit.store.support import named
from tests.harness.issuer import AUDIENCE, DISCOVERY, KEYS, Issuer, ec_key, ed_key, jwk, rsa_key
from tests.harness.other_store import NOT_FOUND, Last, reply
from tests.harness.tier import CLOCK

KEY = rsa_key("first")
OTHER = rsa_key("second")


class Rig:
    """A verifier of an issuer's tokens."""

    def __init__(self, issuer: Issuer, **changes: str) -> None:
        self.settings = OidcSettings(**({"issuer": issuer.url, "audience": AUDIENCE} | changes))
        cache = KeyCache(lambda: issuer_keys(self.settings))
        self.authorizer = Authorizer(OidcVerifier(self.settings, cache))

    def passes(self, token: str, scope: str = "read") -> bool:
        """Return whether a request with *token* may go on; the words of a refusal are checked."""
        refused = ""
        try:
            self.authorizer.authorize(f"Bearer {token}", (scope,))
        except Unauthorized as error:
            refused = error.message
        assert refused in ("", INVALID)
        return not refused


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        issuer.keys = [
            jwk(KEY, kid="rsa", use="sig", alg="RS256"),
            jwk(ec_key("first"), kid="ec", use="sig"),
            jwk(ed_key("first"), kid="ed"),
            jwk(OTHER, kid="any"),
        ]
        yield issuer


@pytest.fixture
def rig(issuer: Issuer) -> Rig:
    return Rig(issuer)


def test_a_token_of_the_issuer_passes_with_its_scopes(issuer: Issuer, rig: Rig) -> None:
    token = issuer.token(KEY, scope="openid metadata:read:metadata")
    rig.authorizer.authorize(f"Bearer {token}", ("read", "metadata:read:metadata"))
    with pytest.raises(Forbidden, match="Have: metadata:read:metadata,openid; Need: write"):
        rig.authorizer.authorize(f"Bearer {token}", ("write",))
    roles = Rig(issuer, roles_claim="realm_access.roles")
    assert roles.passes(issuer.token(KEY, realm_access={"roles": ["read", "x"]}))


def test_the_subject_of_a_token_names_the_client(issuer: Issuer, rig: Rig) -> None:
    for claims, name in (
        ({"sub": "a b\nAudit: c\u00e9"}, r"a\x20b\nAudit:\x20c\xe9"),
        ({"sub": "x" * 500}, "x" * SUBJECT_SHOWN),
        ({"sub": ["x"]}, "-"),
        ({}, "-"),
    ):
        assert subject(claims) == name, claims
    token = issuer.token(KEY, scope="read", sub="ci")
    assert rig.authorizer.authorize(f"Bearer {token}", ("read",)).name == "subject ci"


def test_each_kind_of_key_verifies(issuer: Issuer, rig: Rig) -> None:
    for key, kid, algorithm in [
        (KEY, "rsa", "RS256"),
        (ec_key("first"), "ec", "ES256"),
        (ed_key("first"), "ed", "EdDSA"),
        (OTHER, "any", "RS512"),
        (OTHER, "any", "PS384"),
        (ec_key("first"), None, "ES256"),
    ]:
        assert rig.passes(issuer.token(key, kid, algorithm, scope="read")), key


def test_a_key_verifies_no_other_algorithm_than_its_own(issuer: Issuer, rig: Rig) -> None:
    assert not rig.passes(issuer.token(KEY, "rsa", "RS512", scope="read"))
    assert not rig.passes(issuer.token(KEY, "rsa", "PS256", scope="read"))
    assert not rig.passes(issuer.token(KEY, "ec", "RS256", scope="read"))
    assert not rig.passes(issuer.token(KEY, None, scope="read")), "two RSA keys are published"
    secret = os.urandom(32)
    issuer.keys.append({"kty": "oct", "kid": "oct", "k": _base64url(secret), "alg": "HS256"})
    rig = Rig(issuer)
    assert not rig.passes(
        forged({"alg": "HS256", "kid": "oct"}, issuer.claims(scope="read"), secret)
    )
    private = jwt.algorithms.RSAAlgorithm.to_jwk(KEY, as_dict=True)
    issuer.keys = [{**private, "kid": "rsa", "key_ops": ["sign", "verify"]}]
    assert Rig(issuer).passes(issuer.token(KEY, scope="read")), "its public half is read"


def test_a_signature_of_another_key_is_refused(issuer: Issuer, rig: Rig) -> None:
    assert not rig.passes(issuer.token(OTHER, "rsa", scope="read"))
    assert not rig.passes(issuer.token(rsa_key("nobody's"), "any", scope="read"))
    head, claims, signature = issuer.token(KEY, scope="read").split(".")
    more = json.dumps(issuer.claims(scope="read write"))
    assert not rig.passes(f"{head}.{_base64url(more.encode())}.{signature}")
    assert not rig.passes(f"{head}.{claims}.")
    assert not rig.passes(f"{head}.{claims}.{signature[:-4]}AAAA")


PAST, TO_COME = int(time.time()) - 3600, int(time.time()) + 3600
CLAIMS = st.dictionaries(
    st.sampled_from(["iss", "aud", "exp", "nbf", "iat", "sub", "jti", "scope", "scp", "roles"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    ),
)


def signed(body: dict[str, Any]) -> str:
    text = json.dumps({name: value for name, value in body.items() if value is not None})
    return jwt.PyJWS().encode(text.encode(), KEY, algorithm="RS256", headers={"kid": "rsa"})


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(claims=CLAIMS)
def test_any_claims_are_read_or_refused(issuer: Issuer, rig: Rig, claims: dict[str, Any]) -> None:
    token = signed(issuer.claims() | claims)
    with pytest.raises((Unauthorized, Forbidden)):
        rig.authorizer.authorize(f"Bearer {token}", ("a scope of no token",))


def test_a_claim_that_is_wrong_is_refused(issuer: Issuer, rig: Rig) -> None:
    for claims in [
        {"iss": "https://login.example.org"},
        {"iss": None},
        {"aud": ["another", "and another"]},
        {"aud": {AUDIENCE: 1}},
        {"aud": None},
        {"exp": int(time.time() - LEEWAY - 1)},
        {"exp": None},
        {"exp": "soon"},
        {"exp": float("inf")},
        {"nbf": TO_COME},
        {"nbf": {}},
        {"iat": TO_COME},
    ]:
        assert not rig.passes(signed(issuer.claims() | {"scope": "read"} | claims)), claims
    for claims in (
        {"aud": ["another", AUDIENCE]},
        {"nbf": PAST},
        {"nbf": int(time.time()) + 2},
        {"exp": TO_COME + 0.5},
    ):
        assert rig.passes(issuer.token(KEY, **(claims | {"scope": "read"}))), claims


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def forged(head: dict[str, Any], claims: dict[str, Any], secret: bytes | None) -> str:
    """A token with any head, signed with an HMAC, or not at all."""
    text = f"{_base64url(json.dumps(head).encode())}.{_base64url(json.dumps(claims).encode())}"
    if secret is None:
        return f"{text}."
    return f"{text}.{_base64url(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"


def test_neither_no_signature_nor_one_with_the_public_key_counts(issuer: Issuer, rig: Rig) -> None:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    encodings = (serialization.Encoding.PEM, serialization.Encoding.DER)
    public = [KEY.public_key().public_bytes(encoding, form) for encoding in encodings]
    for algorithm in ("none", "", "HS256", "RS256", None, ["RS256"]):
        for kid in ({"kid": "rsa"}, {}):
            head = {"alg": algorithm, "typ": "JWT", **kid}
            for secret in (None, b"", *public):
                assert not rig.passes(forged(head, issuer.claims(scope="read"), secret)), head


def test_an_unverifiable_token_causes_no_fetch(issuer: Issuer, rig: Rig) -> None:
    for head in (
        {"alg": "HS256", "kid": "rsa"},
        {"alg": "RS256", "kid": "rsa", "crit": ["b64"], "b64": False},
        {"alg": "RS256", "kid": ["rsa"]},
        {},
    ):
        assert not rig.passes(forged(head, issuer.claims(scope="read"), b"secret"))
    for token in ("a.b.c", "..", "dfm_static", "e30.e30.e30"):
        assert not rig.passes(token)
    assert not issuer.fetches


def test_an_unsound_key_is_passed_over(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    for members in [
        {"use": "enc"},
        {"key_ops": ["encrypt"]},
        {"key_ops": "verify"},
        {"alg": "RSA-OAEP"},
        {"kid": 5},
        {"n": "!"},
        {"n": "AQAB"},
        {"kty": "EC", "crv": "secp256k1"},
        {"kty": ["RSA"]},
        jwk(rsa_key("short", 1024)),
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
    ]:
        issuer.keys = [jwk(KEY, kid="odd") | members, 5, jwk(OTHER, kid="good")]  # type: ignore[list-item]  # 5 is no key
        rig = Rig(issuer)
        assert not rig.passes(issuer.token(KEY, "odd", scope="read")), members
        assert [key.kid for key in issuer_keys(rig.settings)] == ["good"], members
        assert rig.passes(issuer.token(OTHER, "good", scope="read")), members
        assert str(issuer.keys[0].get("n")) not in caplog.text, members
    issuer.keys = [{**jwk(KEY), "kid": f"{number}"} for number in range(300)]
    assert len(issuer_keys(rig.settings)) == auth_keys.KEYS_MAX


def test_scopes_come_from_scope_scp_and_the_roles_claim() -> None:
    for claims, path, scopes in [
        ({"scope": ["read", 5, None]}, "", {"read"}),
        ({"scp": ["read", "write"]}, "", {"read", "write"}),
        ({"scp": "read", "scope": "write"}, "", {"read", "write"}),
        ({"roles": ["read"]}, "", set()),
        ({"roles": "read write", "scope": "delete"}, "roles", {"read", "write", "delete"}),
        ({"realm_access": {"roles": ["read"]}}, "realm_access.roles", {"read"}),
        ({"https://example.org/roles": ["read"]}, "https://example.org/roles", {"read"}),
        ({"realm_access": ["read"]}, "realm_access.roles", set()),
        ({"realm_access": {"roles": {"read": 1}}}, "realm_access.roles", set()),
        ({"scope": {"read": 1}, "scp": 5}, "nothing.there", set()),
    ]:
        assert granted(claims, path) == scopes, claims


def test_keys_are_fetched_when_they_are_needed_and_kept(issuer: Issuer, rig: Rig) -> None:
    token = issuer.token(KEY, scope="read")
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(rig.passes, [token] * 20))
    assert issuer.fetches == {DISCOVERY: 1, KEYS: 1}
    known = Rig(issuer, jwks_url=issuer.url + KEYS)
    assert known.passes(issuer.token(KEY, scope="read"))
    assert issuer.fetches == {DISCOVERY: 1, KEYS: 2}, "a given address is not discovered"


def test_a_new_key_is_fetched_at_once(issuer: Issuer, rig: Rig) -> None:
    assert rig.passes(issuer.token(KEY, scope="read"))
    new = rsa_key("third")
    issuer.keys = [jwk(new, kid="new")]
    assert rig.passes(issuer.token(new, "new", scope="read"))
    assert issuer.fetches[KEYS] == 2
    assert not rig.passes(issuer.token(KEY, scope="read")), "its key was withdrawn"
    issuer.keys = [jwk(KEY, kid="rsa")]
    token = issuer.token(new, "new", scope="read")
    CLOCK.advance(LIFESPAN - 1)
    assert rig.passes(token)
    CLOCK.advance(1)
    assert not rig.passes(token), "it is forgotten in time"


def test_forged_key_ids_do_not_hammer_the_issuer(issuer: Issuer, rig: Rig) -> None:
    assert rig.passes(issuer.token(KEY, scope="read"))
    for step in range(3):
        for number in range(20):
            assert not rig.passes(issuer.token(OTHER, f"forged-{step}-{number}", scope="read"))
        assert issuer.fetches[KEYS] == 2 + step
        CLOCK.advance(LONGEST_PAUSE)
    assert rig.passes(issuer.token(KEY, scope="read"))


def test_known_keys_stay_valid_while_the_issuer_is_away(
    issuer: Issuer, rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    token, new = issuer.token(KEY, scope="read"), rsa_key("third")
    assert rig.passes(token)
    issuer.stop()
    for _ in range(5):
        CLOCK.advance(LIFESPAN)
        assert rig.passes(token)
    with pytest.raises(AuthUnavailable):
        rig.passes(issuer.token(new, "new", scope="read"))
    assert rig.passes(token)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    issuer.keys.append(jwk(new, kid="new"))
    issuer.start()
    CLOCK.advance(clock.FULL_CHECK_INTERVAL)
    assert rig.passes(issuer.token(new, "new", scope="read"))


def test_away_issuer_is_retried(issuer: Issuer, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    token = issuer.token(KEY, scope="read")
    issuer.stop()
    for _ in range(3):
        with pytest.raises(AuthUnavailable) as caught:
            rig.passes(token)
        assert "refused" in caught.value.cause
        assert issuer.url not in caught.value.message
    assert len(caplog.records) == 1
    assert token not in caplog.text
    issuer.start()
    CLOCK.advance(clock.CHECK_INTERVAL)
    assert rig.passes(token)


def test_an_unusable_answer_leaves_the_keys_as_they_were(issuer: Issuer, rig: Rig) -> None:
    token = issuer.token(KEY, scope="read")
    assert rig.passes(token)
    for path, answer, cause in [
        (DISCOVERY, NOT_FOUND, "it answers 404"),
        (DISCOVERY, reply(b"", status=302, headers=("Location: /x",)), "answers 302"),
        (DISCOVERY, reply(b"<html>"), "does not answer with JSON"),
        (DISCOVERY, reply([]), "not a JSON object"),
        (DISCOVERY, reply({"issuer": "http://other"}), "names another issuer"),
        (KEYS, reply([]), "no list of keys"),
        (KEYS, reply({"keys": {}}), "no list of keys"),
        (KEYS, reply({"keys": []}), "no key in it"),
        (KEYS, reply(b"[" * 100_000), "does not answer with JSON"),
    ]:
        issuer.answers = {path: answer}
        with named(cause), pytest.raises(IssuerError, match=cause):
            issuer_keys(rig.settings)
        CLOCK.advance(LIFESPAN)
        assert rig.passes(token), cause


def test_discovery_leads_to_the_web_alone(issuer: Issuer) -> None:
    for address in (None, 5, "", "file:///etc/passwd", "ftp://host/keys"):
        issuer.answers[DISCOVERY] = reply({"issuer": issuer.url, "jwks_uri": address})
        with named(address), pytest.raises(IssuerError, match="jwks_uri does not begin with"):
            discover(issuer.url)
    document = {"issuer": f"{issuer.url}/realm/", "jwks_uri": f"{issuer.url}/k"}
    issuer.answers[f"/realm{DISCOVERY}"] = reply(document)
    assert discover(f"{issuer.url}/realm/") == f"{issuer.url}/k"


def test_an_unusable_answer_is_an_error(issuer: Issuer) -> None:
    issuer.answers["/long"] = reply({"a": "a" * ANSWER_MAX})
    issuer.answers["/other"] = Last(b"220 mail.example.org ESMTP\r\n")
    with pytest.raises(IssuerError, match="larger than 262144 bytes"):
        fetch_json(f"{issuer.url}/long")
    with pytest.raises(IssuerError, match="is not valid HTTP"):
        fetch_json(f"{issuer.url}/other")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(IssuerError, match="no answer in time"):
            fetch_json(f"http://127.0.0.1:{port}", timeout=0.05)


def test_an_unusable_address_is_named() -> None:
    for url in ("http://127.0.0.1:1/", "http://127.0.0.1:x/", "http://" + "a" * 300 + "/"):
        with named(url), pytest.raises(IssuerError) as caught:
            fetch_json(url)
        assert str(caught.value).startswith(f"{url}: ")
        assert caught.value.cause
