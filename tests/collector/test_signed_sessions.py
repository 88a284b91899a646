"""Browser sessions that several collectors share: begin on one, go on at another; forgery, theft, end."""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.collector.security import (
    SESSION_HEAD,
    SESSION_LIFETIME_S,
    SignedSessions,
    is_form_token,
    make_form_token,
)

SECRET = b"s" * 32
KEY = sha256(b"key").digest()


def test_a_session_of_one_collector_is_one_of_another() -> None:
    id = SignedSessions(SECRET).begin(KEY)
    assert SignedSessions(SECRET).key_of(id) == KEY


def test_collectors_of_another_store_do_not_know_it() -> None:
    id = SignedSessions(SECRET).begin(KEY)
    assert SignedSessions(b"t" * 32).key_of(id) is None


def test_the_browser_does_not_get_the_hash_of_the_key() -> None:
    content = urlsafe_b64decode(SignedSessions(SECRET).begin(KEY))
    assert KEY not in content
    assert urlsafe_b64decode(SignedSessions(SECRET).begin(KEY)) != content


def test_a_session_begun_over_tls_is_for_the_secure_cookie_alone() -> None:
    sessions = SignedSessions(SECRET)
    secure, plain = sessions.begin(KEY, secure=True), sessions.begin(KEY)
    assert (sessions.key_of(secure), sessions.key_of(secure, secure=True)) == (None, KEY)
    assert (sessions.key_of(plain), sessions.key_of(plain, secure=True)) == (KEY, KEY)


def test_a_session_ends_after_its_lifetime_on_every_collector() -> None:
    now = 1_800_000_000.0
    one, other = SignedSessions(SECRET, lambda: now), SignedSessions(SECRET, lambda: now)
    id = one.begin(KEY)
    now += SESSION_LIFETIME_S - 1
    assert other.key_of(id) == KEY
    now += 1
    assert (one.key_of(id), other.key_of(id)) == (None, None)


def test_signing_out_ends_the_session_on_this_collector() -> None:
    sessions = SignedSessions(SECRET)
    id, other = sessions.begin(KEY), sessions.begin(KEY)
    sessions.end(id)
    assert (sessions.key_of(id), sessions.key_of(other)) == (None, KEY)


@given(st.text())
def test_text_that_is_no_session_is_none(text: str) -> None:
    sessions = SignedSessions(SECRET)
    assert sessions.key_of(text) is None
    sessions.end(text)


@pytest.mark.parametrize("place", [0, 16, 23, 24, SESSION_HEAD.size, SESSION_HEAD.size + 31, -1])
def test_a_changed_byte_makes_it_invalid(place: int) -> None:
    sessions = SignedSessions(SECRET)
    content = bytearray(urlsafe_b64decode(sessions.begin(KEY)))
    content[place] ^= 1
    assert sessions.key_of(urlsafe_b64encode(content).decode(), secure=True) is None


def test_an_id_without_a_signature_is_none() -> None:
    assert SignedSessions(SECRET).key_of(urlsafe_b64encode(secrets.token_bytes(57)).decode()) is None


def test_a_form_of_one_collector_is_one_of_another() -> None:
    one, other, stranger = SignedSessions(SECRET), SignedSessions(SECRET), SignedSessions(b"t" * 32)
    token = make_form_token(b"bond", secret=one.form_secret)
    assert is_form_token(token, b"bond", other.form_secret)
    assert not is_form_token(token, b"other", other.form_secret)
    assert not is_form_token(token, b"bond", stranger.form_secret)
    assert not is_form_token(token, b"bond")
