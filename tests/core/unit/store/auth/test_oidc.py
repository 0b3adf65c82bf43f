"""Tokens of a real issuer should count as long as they are its, for us, and within their time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dfmeta.exceptions import AuthUnavailable, Forbidden, IssuerError, Unauthorized
from dfmeta.store.auth import keys as auth_keys
from dfmeta.store.auth.caller import INVALID, Authorizer
from dfmeta.store.auth.keys import AWAY_PAUSE, LIFESPAN, RETRY_PAUSE, SEARCH_PAUSE, KeyCache
from dfmeta.store.auth.oidc import (
    LEEWAY,
    SUBJECT_SHOWN,
    OidcSettings,
    OidcVerifier,
    discover,
    granted,
    issuer_keys,
    subject,
)
from tests.harness.issuer import (
    AUDIENCE,
    DISCOVERY,
    KEYS,
    Issuer,
    ec_key,
    ed_key,
    jwk,
    rsa_key,
    send,
    send_bytes,
)

KEY = rsa_key("first")
OTHER = rsa_key("second")


class Rig:
    """A verifier of an issuer's tokens, with a clock for its keys."""

    def __init__(self, issuer: Issuer, **changes: str) -> None:
        self.now = 1000.0
        self.settings = OidcSettings(**({"issuer": issuer.url, "audience": AUDIENCE} | changes))
        cache = KeyCache(lambda: issuer_keys(self.settings), clock=lambda: self.now)
        self.authorizer = Authorizer(OidcVerifier(self.settings, cache))

    def passes(self, token: str, scope: str = "read") -> bool:
        """Whether a request with *token* may go on; one that may not is told the right words."""
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


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"sub": "service-account-ci"}, "service-account-ci"),
        ({"sub": "a b\nAudit: c\u00e9"}, r"a\x20b\nAudit:\x20c\xe9"),
        ({"sub": "x" * 500}, "x" * SUBJECT_SHOWN),
        ({"sub": ""}, "-"),
        ({"sub": ["x"]}, "-"),
        ({}, "-"),
    ],
)
def test_the_subject_names_the_client(claims: dict[str, Any], name: str) -> None:
    assert subject(claims) == name


def test_a_client_is_named_by_its_verified_subject(issuer: Issuer, rig: Rig) -> None:
    token = issuer.token(KEY, scope="read", sub="ci")
    assert rig.authorizer.authorize(f"Bearer {token}", ("read",)).name == "subject ci"


@pytest.mark.parametrize(
    ("key", "kid", "algorithm"),
    [
        (KEY, "rsa", "RS256"),
        (ec_key("first"), "ec", "ES256"),
        (ed_key("first"), "ed", "EdDSA"),
        (OTHER, "any", "RS256"),
        (OTHER, "any", "RS512"),
        (OTHER, "any", "PS384"),
        (ec_key("first"), None, "ES256"),
    ],
    ids=lambda value: "" if hasattr(value, "public_key") else str(value),
)
def test_each_kind_of_key_verifies(
    issuer: Issuer, rig: Rig, key: Any, kid: str | None, algorithm: str
) -> None:
    assert rig.passes(issuer.token(key, kid, algorithm, scope="read"))


def test_a_key_verifies_no_other_algorithm_than_its_own(issuer: Issuer, rig: Rig) -> None:
    assert not rig.passes(issuer.token(KEY, "rsa", "RS512", scope="read"))
    assert not rig.passes(issuer.token(KEY, "rsa", "PS256", scope="read"))
    assert not rig.passes(issuer.token(KEY, "ec", "RS256", scope="read"))


def test_a_token_without_a_key_id_does_not_choose_among_keys(issuer: Issuer, rig: Rig) -> None:
    assert not rig.passes(issuer.token(KEY, None, scope="read"))


def test_a_signature_of_somebody_else_is_none(issuer: Issuer, rig: Rig) -> None:
    assert not rig.passes(issuer.token(OTHER, "rsa", scope="read"))
    assert not rig.passes(issuer.token(rsa_key("nobody's"), "any", scope="read"))
    head, claims, signature = issuer.token(KEY, scope="read").split(".")
    more = json.dumps(issuer.claims(scope="read write"))
    assert not rig.passes(f"{head}.{_base64url(more.encode())}.{signature}")
    assert not rig.passes(f"{head}.{claims}.")
    assert not rig.passes(f"{head}.{claims}.{signature[:-4]}AAAA")


PAST, TO_COME = int(time.time()) - 3600, int(time.time()) + 3600


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://login.example.org"},
        {"iss": None},
        {"iss": [None]},
        {"aud": "another service"},
        {"aud": ["another", "and another"]},
        {"aud": []},
        {"aud": {AUDIENCE: 1}},
        {"aud": None},
        {"exp": PAST},
        {"exp": int(time.time() - LEEWAY - 1)},
        {"exp": None},
        {"exp": "soon"},
        {"exp": [TO_COME]},
        {"exp": float("nan")},
        {"exp": float("inf")},
        {"nbf": TO_COME},
        {"nbf": {}},
        {"iat": TO_COME},
    ],
)
def test_a_claim_that_is_wrong_is_refused(issuer: Issuer, rig: Rig, claims: dict[str, Any]) -> None:
    body = issuer.claims() | {"scope": "read"} | claims
    signed = jwt.PyJWS().encode(
        json.dumps({name: value for name, value in body.items() if value is not None}).encode(),
        KEY,
        algorithm="RS256",
        headers={"kid": "rsa"},
    )
    assert not rig.passes(signed)
    assert rig.passes(issuer.token(KEY, scope="read"))


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": ["another", AUDIENCE]},
        {"nbf": PAST},
        {"nbf": int(time.time()) + 2},
        {"exp": TO_COME + 0.5},
    ],
)
def test_a_claim_that_is_right_in_another_way_passes(
    issuer: Issuer, rig: Rig, claims: dict[str, Any]
) -> None:
    assert rig.passes(issuer.token(KEY, **(claims | {"scope": "read"})))


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def forged(head: dict[str, Any], claims: dict[str, Any], secret: bytes | None) -> str:
    """A token with any head, signed with an HMAC, or not at all."""
    text = f"{_base64url(json.dumps(head).encode())}.{_base64url(json.dumps(claims).encode())}"
    if secret is None:
        return f"{text}."
    return f"{text}.{_base64url(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "", "HS256", "HS512", "RS256", None, ["RS256"]]
)
@pytest.mark.parametrize("kid", ["rsa", "any", None])
def test_neither_no_signature_nor_one_with_the_public_key_counts(
    issuer: Issuer, rig: Rig, algorithm: object, kid: str | None
) -> None:
    pem, numbers = (
        KEY.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
        for encoding in (serialization.Encoding.PEM, serialization.Encoding.DER)
    )
    published = json.dumps(issuer.keys[0]).encode()
    for secret in (None, b"", pem, numbers, published):
        head = {"alg": algorithm, "typ": "JWT"} | ({"kid": kid} if kid else {})
        assert not rig.passes(forged(head, issuer.claims(scope="read"), secret))


def test_what_no_key_could_verify_asks_nobody_for_keys(issuer: Issuer, rig: Rig) -> None:
    for head in (
        {"alg": "none"},
        {"alg": "HS256", "kid": "rsa"},
        {"alg": "ES256K", "kid": "rsa"},
        {"alg": "RS256", "kid": "rsa", "crit": ["b64"], "b64": False},
        {"alg": "RS256", "kid": 5},
        {"alg": "RS256", "kid": ["rsa"]},
        {},
    ):
        assert not rig.passes(forged(head, issuer.claims(scope="read"), b"secret"))
    for token in ("a.b.c", "..", "dfm_static", "a.b", "a.b.c.d", "e30.e30.e30"):
        assert not rig.passes(token)
    assert not issuer.fetches


def test_a_symmetric_key_that_the_issuer_publishes_verifies_nothing(issuer: Issuer) -> None:
    secret = os.urandom(32)
    issuer.keys.append({"kty": "oct", "kid": "oct", "k": _base64url(secret), "alg": "HS256"})
    rig = Rig(issuer)
    token = forged({"alg": "HS256", "kid": "oct"}, issuer.claims(scope="read"), secret)
    assert not rig.passes(token)
    assert rig.passes(issuer.token(KEY, scope="read"))


@pytest.mark.parametrize(
    "members",
    [
        {"use": "enc"},
        {"key_ops": ["encrypt"]},
        {"key_ops": "verify"},
        {"alg": "RSA-OAEP"},
        {"alg": 5},
        {"kid": 5},
        {"n": "!"},
        {"n": None},
        {"n": "AQAB"},
        {"kty": "EC", "crv": "secp256k1"},
        {"kty": ["RSA"]},
        pytest.param(jwk(rsa_key("short", 1024)), id="a short key"),
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
    ],
)
def test_a_key_that_is_not_for_signatures_or_not_sound_is_passed_over(
    issuer: Issuer, members: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    issuer.keys = [jwk(KEY, kid="odd") | members, 5, jwk(OTHER, kid="good")]  # type: ignore[list-item]  # 5 is no key
    rig = Rig(issuer)
    assert not rig.passes(issuer.token(KEY, "odd", scope="read"))
    assert [key.kid for key in issuer_keys(rig.settings)] == ["good"]
    assert rig.passes(issuer.token(OTHER, "good", scope="read"))
    assert str(issuer.keys[0].get("n")) not in caplog.text


def test_of_a_private_key_that_is_published_only_the_public_half_is_read(issuer: Issuer) -> None:
    private = jwt.algorithms.RSAAlgorithm.to_jwk(KEY, as_dict=True)
    issuer.keys = [{**private, "kid": "rsa", "key_ops": ["sign", "verify"]}]
    assert Rig(issuer).passes(issuer.token(KEY, scope="read"))


@pytest.mark.parametrize(
    ("claims", "path", "scopes"),
    [
        ({"scope": "read write"}, "", {"read", "write"}),
        ({"scope": ["read", 5, None]}, "", {"read"}),
        ({"scp": ["read", "write"]}, "", {"read", "write"}),
        ({"scp": "read", "scope": "write"}, "", {"read", "write"}),
        ({"roles": ["read"]}, "", set()),
        ({"roles": ["read"]}, "roles", {"read"}),
        ({"roles": "read write", "scope": "delete"}, "roles", {"read", "write", "delete"}),
        ({"realm_access": {"roles": ["read"]}}, "realm_access.roles", {"read"}),
        ({"https://example.org/roles": ["read"]}, "https://example.org/roles", {"read"}),
        ({"realm_access": ["read"]}, "realm_access.roles", set()),
        ({"realm_access": {"roles": {"read": 1}}}, "realm_access.roles", set()),
        ({"roles": [["read"], {"read": "write"}]}, "roles", set()),
        ({"scope": {"read": 1}, "scp": 5}, "nothing.there", set()),
    ],
)
def test_scopes_come_from_scope_scp_and_the_roles_claim(
    claims: dict[str, Any], path: str, scopes: set[str]
) -> None:
    assert granted(claims, path) == scopes


def test_the_roles_claim_is_read_from_a_token(issuer: Issuer) -> None:
    rig = Rig(issuer, roles_claim="realm_access.roles")
    assert rig.passes(issuer.token(KEY, realm_access={"roles": ["read", "x"]}))


def test_keys_are_fetched_when_they_are_needed_and_kept(issuer: Issuer, rig: Rig) -> None:
    assert not issuer.fetches
    for _ in range(20):
        assert rig.passes(issuer.token(KEY, scope="read"))
    assert issuer.fetches == {DISCOVERY: 1, KEYS: 1}


def test_with_the_keys_address_given_nothing_is_discovered(issuer: Issuer) -> None:
    rig = Rig(issuer, jwks_url=issuer.url + KEYS)
    assert rig.passes(issuer.token(KEY, scope="read"))
    assert issuer.fetches == {KEYS: 1}


def test_a_key_that_is_new_is_found_at_once(issuer: Issuer, rig: Rig) -> None:
    assert rig.passes(issuer.token(KEY, scope="read"))
    new = rsa_key("third")
    issuer.keys = [jwk(new, kid="new")]
    assert rig.passes(issuer.token(new, "new", scope="read"))
    assert issuer.fetches[KEYS] == 2
    assert not rig.passes(issuer.token(KEY, scope="read")), "its key was withdrawn"


def test_a_key_that_is_withdrawn_is_forgotten_in_time(issuer: Issuer, rig: Rig) -> None:
    token = issuer.token(KEY, scope="read")
    assert rig.passes(token)
    issuer.keys = issuer.keys[1:]
    rig.now += LIFESPAN - 1
    assert rig.passes(token)
    rig.now += 1
    assert not rig.passes(token)


def test_forged_key_ids_do_not_hammer_the_issuer(issuer: Issuer, rig: Rig) -> None:
    assert rig.passes(issuer.token(KEY, scope="read"))
    for number in range(200):
        assert not rig.passes(issuer.token(OTHER, f"forged-{number}", scope="read"))
    assert issuer.fetches[KEYS] == 2
    for step in range(1, 4):
        rig.now += SEARCH_PAUSE
        for number in range(50):
            assert not rig.passes(issuer.token(OTHER, f"forged-{step}-{number}", scope="read"))
        assert issuer.fetches[KEYS] == 2 + step
    assert rig.passes(issuer.token(KEY, scope="read"))


def at_once(count: int, act: Callable[[int], object]) -> list[object]:
    """What *act* gives to so many threads that begin together."""
    results: list[object] = [None] * count
    gate = threading.Barrier(count)

    def run(number: int) -> None:
        gate.wait()
        try:
            results[number] = act(number)
        except AuthUnavailable as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_many_at_once_ask_the_issuer_once(issuer: Issuer, rig: Rig) -> None:
    token = issuer.token(KEY, scope="read")
    assert at_once(16, lambda _: rig.passes(token)) == [True] * 16
    assert issuer.fetches[KEYS] == 1
    new = rsa_key("third")
    issuer.keys.append(jwk(new, kid="new"))
    tokens = [issuer.token(new, "new", scope="read"), issuer.token(OTHER, "forged", scope="read")]
    assert at_once(16, lambda number: rig.passes(tokens[number % 2])) == [True, False] * 8
    assert issuer.fetches[KEYS] == 2


def test_keys_that_are_known_go_on_working_while_the_issuer_is_away(
    issuer: Issuer, rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    token, new = issuer.token(KEY, scope="read"), rsa_key("third")
    assert rig.passes(token)
    issuer.stop()
    for _ in range(5):
        rig.now += LIFESPAN
        assert rig.passes(token)
    with pytest.raises(AuthUnavailable):
        rig.passes(issuer.token(new, "new", scope="read"))
    assert rig.passes(token)
    assert [one.levelname for one in caplog.records] == ["INFO", "WARNING"]
    issuer.keys.append(jwk(new, kid="new"))
    issuer.start()
    rig.now += AWAY_PAUSE
    assert rig.passes(issuer.token(new, "new", scope="read"))


def test_an_issuer_that_was_never_there_is_said_to_be_away(
    issuer: Issuer, rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
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
    rig.now += RETRY_PAUSE
    assert rig.passes(token)


def test_an_issuer_that_is_away_is_not_asked_for_each_request(issuer: Issuer, rig: Rig) -> None:
    issuer.answers[DISCOVERY] = lambda handler: send(handler, {}, status=503)
    token = issuer.token(KEY, scope="read")
    assert all(isinstance(one, AuthUnavailable) for one in at_once(8, lambda _: rig.passes(token)))
    assert issuer.fetches == {DISCOVERY: 1}
    issuer.answers.clear()
    rig.now += RETRY_PAUSE
    assert rig.passes(token)


Answers = Callable[[BaseHTTPRequestHandler], None]


@pytest.mark.parametrize(
    ("path", "answer", "cause"),
    [
        (DISCOVERY, lambda one: send(one, {}, status=404), "it answers 404"),
        (DISCOVERY, lambda one: send_bytes(one, b"", status=302, Location="/x"), "answers 302"),
        (DISCOVERY, lambda one: send_bytes(one, b"<html>"), "does not answer with JSON"),
        (DISCOVERY, lambda one: send_bytes(one, b"[]"), "not a JSON object"),
        (DISCOVERY, lambda one: send(one, {"issuer": "http://other"}), "names another issuer"),
        (KEYS, lambda one: send_bytes(one, b"[]"), "no list of keys"),
        (KEYS, lambda one: send(one, {"keys": {}}), "no list of keys"),
        (KEYS, lambda one: send(one, {"keys": []}), "no key in it"),
        (KEYS, lambda one: send_bytes(one, b"[" * 100_000), "does not answer with JSON"),
    ],
)
def test_nonsense_leaves_the_keys_as_they_were(
    issuer: Issuer, rig: Rig, *, path: str, answer: Answers, cause: str
) -> None:
    token = issuer.token(KEY, scope="read")
    assert rig.passes(token)
    issuer.answers[path] = answer
    with pytest.raises(IssuerError, match=cause):
        issuer_keys(rig.settings)
    rig.now += LIFESPAN
    assert rig.passes(token)


@pytest.mark.parametrize("found", [None, 5, "", "file:///etc/passwd", "ftp://host/keys"])
def test_keys_are_fetched_from_the_web_alone(issuer: Issuer, found: object) -> None:
    document = {"issuer": issuer.url, "jwks_uri": found}
    issuer.answers[DISCOVERY] = lambda handler: send(handler, document)
    with pytest.raises(IssuerError, match="jwks_uri does not begin with"):
        discover(issuer.url)


def test_an_issuer_with_a_path_is_discovered_under_it(issuer: Issuer) -> None:
    document = {"issuer": f"{issuer.url}/realm/", "jwks_uri": f"{issuer.url}/k"}
    issuer.answers[f"/realm{DISCOVERY}"] = lambda handler: send(handler, document)
    assert discover(f"{issuer.url}/realm/") == f"{issuer.url}/k"


def test_of_very_many_keys_only_some_are_read(issuer: Issuer) -> None:
    known = jwk(KEY)
    issuer.keys = [{**known, "kid": f"{number}"} for number in range(300)]
    assert len(issuer_keys(OidcSettings(issuer.url, AUDIENCE))) == auth_keys.KEYS_MAX


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
HEADS = st.dictionaries(
    st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jku", "jwk", "x5u"]),
    JSON | st.sampled_from(["RS256", "ES256", "none", "HS256", "rsa", "ec"]),
)
CLAIMS = st.dictionaries(
    st.sampled_from(["iss", "aud", "exp", "nbf", "iat", "sub", "jti", "scope", "scp", "roles"]),
    JSON,
)
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@RELAXED
@given(head=HEADS, claims=CLAIMS, signature=st.binary(max_size=64))
def test_no_token_that_is_made_up_does_anything_but_be_refused(
    rig: Rig, head: dict[str, Any], claims: dict[str, Any], signature: bytes
) -> None:
    parts = (json.dumps(head).encode(), json.dumps(claims).encode(), signature)
    assert not rig.passes(".".join(_base64url(part) for part in parts))


@RELAXED
@given(claims=CLAIMS)
def test_no_claims_that_the_issuer_signs_break_anything(
    issuer: Issuer, rig: Rig, claims: dict[str, Any]
) -> None:
    body = json.dumps(issuer.claims() | claims).encode()
    token = jwt.PyJWS().encode(body, KEY, algorithm="RS256", headers={"kid": "rsa"})
    with pytest.raises((Unauthorized, Forbidden)):
        rig.authorizer.authorize(f"Bearer {token}", ("a scope that nobody has",))


@RELAXED
@given(document=JSON | st.fixed_dictionaries({"keys": st.lists(HEADS | JSON)}))
def test_no_document_in_the_place_of_keys_breaks_anything(document: object) -> None:
    try:
        keys = list(auth_keys.read_keys(document))
    except IssuerError:
        return
    assert keys == []
