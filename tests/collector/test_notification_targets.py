"""Targets of notifications: their file, hostile texts in every form, and e-mail over SMTP."""

from __future__ import annotations

import json
import ssl
import time
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default as default_policy
from pathlib import Path
from typing import Any

import pytest
import trustme
from typer.testing import CliRunner

from collector.receivers import HTTPReceiver, SMTPReceiver, notification
from looped_cases import loop_over
from spanwise.cli.app import app
from spanwise.collector.errors import Refused
from spanwise.collector.notifications import EmailTarget, HTTPTarget, load_targets, parse_allowed
from spanwise.collector.notifications.email_target import make_email
from spanwise.collector.notifications.message_rendering import render_html, render_slack, render_text, render_title
from spanwise.collector.records import Notification

BASE = "https://spanwise.example.com/"
LOOPBACK = parse_allowed(["127.0.0.0/8"])
HOSTILE = '<!channel> <script>alert(1)</script> @here [x](http://evil) <http://e|x> `id` &amp;\r\nBcc: all@x.test\x1b[2J\u202e"'
FORGED = notification(
    project=HOSTILE,
    alert=HOSTILE,
    group=HOSTILE,
    status=HOSTILE,
    headline=HOSTILE,
    facts={HOSTILE: HOSTILE},
    links={HOSTILE: "/x?a=<b>|c\"'"},
)


def slack(sent: Notification) -> str:
    return str(json.loads(render_slack(sent, BASE))["text"])


def test_slack_shows_names_as_text_without_mentions_links_and_code() -> None:
    text = slack(FORGED)
    assert "&lt;!channel&gt;" in text
    own_link = text.rsplit("\n", 1)[1]
    assert own_link.startswith("<https://spanwise.example.com/x?a=%3Cb%3E%7Cc%22%27|&lt;")
    assert text.replace(own_link, "").count("<") == 0
    assert own_link.count("<") == own_link.count(">") == 1
    assert not any(mark in text for mark in ("@here", "](", "`"))
    assert text.count("\n") == 3  # title, headline, one fact, one link


def test_slack_leaves_ordinary_names_unchanged() -> None:
    sent = notification(alert="no_pii-v2.1 (beta)", links={"Trace 1": "/traces/ab?a=1&b=2"})
    lines = slack(sent).split("\n")
    assert lines[0] == "*[FIRING] no_pii-v2.1 (beta) (project default)*"
    assert lines[-1] == "<https://spanwise.example.com/traces/ab?a=1&amp;b=2|Trace 1>"


def test_html_holds_no_element_of_a_name() -> None:
    html = render_html(FORGED, BASE)
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert 'href="https://spanwise.example.com/x?a=%3Cb%3E%7Cc%22%27"' in html


def test_plain_text_and_title_have_no_control_characters() -> None:
    assert render_title(FORGED).isprintable()
    assert render_text(FORGED, BASE).replace("\n", "").isprintable()
    assert len(render_text(FORGED, BASE).splitlines()) == 7


@loop_over(
    "name", ["a\r\nBcc: all@x.test", "=?utf-8?q?a=0d=0aBcc:_all=40x.test?=", "\ud800 é " + "x" * 5_000, "a\n\nbody", ""]
)
def test_a_name_adds_no_mail_header_and_no_body(name: str) -> None:
    sent = notification(alert=name, group=name, project=name)
    raw = make_email(sent, BASE, "Spanwise <spanwise@example.com>", ("ops@example.com",)).as_bytes()
    parsed = message_from_bytes(raw, policy=default_policy)
    assert isinstance(parsed, EmailMessage)
    assert sorted(parsed.keys()) == sorted(
        "Subject From To Date Message-ID Auto-Submitted Idempotency-Key MIME-Version Content-Type".split()
    )
    assert parsed["To"] == "ops@example.com"
    assert "\n" not in parsed["Subject"]


def test_values_are_formatted_bounded_and_in_order() -> None:
    facts = {"estimate": 0.7812345678, "n": 1200, "since": None, "sure": True, "long": "x" * 10_000, "list": [1, "a"]}
    text = render_text(notification(facts={**facts, **{f"f{n}": n for n in range(100)}}), BASE)
    rows = [line.split(maxsplit=1) for line in text.splitlines()[4:9]]
    assert [row[0] for row in rows] == list(facts)[:5]
    assert [row[1] for row in rows[:4]] == ["0.781235", "1200", "–", "yes"]
    assert len(text) < 10_000
    assert "56 more" in text


# E-mail


def mail(port: int, **fields: Any) -> EmailTarget:
    given = {"host": "localhost", "security": "none", "timeout_s": 30.0, "allowed": parse_allowed(["localhost"])}
    return EmailTarget(
        name="mail",
        port=port,
        sender="spanwise@example.com",
        recipients=("a@x.test", "b@x.test"),
        **{**given, **fields},
    )


def test_a_mail_has_text_and_html_and_the_id_of_the_notification() -> None:
    with SMTPReceiver() as receiver:
        sent = notification(facts={"größe": "<b>"}, links={"Chart": "/rules/polite"})
        assert mail(receiver.port).send(sent, BASE).is_delivered
        [raw] = receiver.messages
    message = message_from_bytes(raw, policy=default_policy)
    assert isinstance(message, EmailMessage)
    text, html = (message.get_body((kind,)) for kind in ("plain", "html"))
    assert text is not None
    assert html is not None
    assert "größe  <b>" in text.get_content()
    assert "Chart: https://spanwise.example.com/rules/polite" in text.get_content()
    assert "<td>&lt;b&gt;</td>" in html.get_content()
    assert (message["Idempotency-Key"], message["Subject"]) == ("n1", "[FIRING] grounded (project default)")
    assert [command for command in receiver.commands if command.startswith("rcpt")] == [
        "rcpt TO:<a@x.test>",
        "rcpt TO:<b@x.test>",
    ]


def test_the_message_id_is_the_same_in_every_attempt() -> None:
    with SMTPReceiver() as receiver:
        for id in ("n1", "n1", "n2"):
            mail(receiver.port).send(notification(id), BASE)
        first, again, other = (message_from_bytes(raw)["Message-ID"] for raw in receiver.messages)
    assert first == again != other


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name in ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


def test_the_password_is_sent_only_after_starttls(tls: ssl.SSLContext) -> None:
    with SMTPReceiver(tls) as receiver:
        target = mail(receiver.port, security="starttls", username="u", password="p")
        assert target.send(notification(), BASE).is_delivered
        commands = [command.split()[0] for command in receiver.commands]
    assert commands.index("STARTTLS") < commands.index("AUTH")
    assert len(receiver.messages) == 1


def test_a_server_without_starttls_gets_nothing(tls: ssl.SSLContext) -> None:
    with SMTPReceiver() as receiver:
        result = mail(receiver.port, security="starttls", username="u", password="p").send(notification(), BASE)
        assert result.error == "STARTTLS extension not supported by server."
        assert not any(command.startswith(("AUTH", "mail")) for command in receiver.commands)


def test_a_certificate_of_another_host_is_refused(tls: ssl.SSLContext) -> None:
    with SMTPReceiver(tls) as receiver:
        target = mail(receiver.port, host="127.0.0.1", allowed=LOOPBACK, security="starttls")
        result = target.send(notification(), BASE)
        assert (result.error or "").startswith("the certificate is not trusted")
        assert receiver.messages == []


def test_a_private_mail_server_is_refused() -> None:
    with SMTPReceiver() as receiver:
        result = mail(receiver.port, allowed=parse_allowed([])).send(notification(), BASE)
        assert "to allow it, add 'localhost' to `allow`" in (result.error or "")
        assert receiver.commands == []


def test_refused_recipients_are_named_and_do_not_repeat_the_mail_to_the_others() -> None:
    with SMTPReceiver(replies={"RCPT TO:<B@": b"550 no such user\r\n"}) as receiver:
        result = mail(receiver.port).send(notification(), BASE)
        assert result.is_delivered
        assert result.error == "1 of 2 recipients were refused: b@x.test: 550 b'no such user'"
        receiver.replies = {"RCPT": b"550 no\r\n"}
        result = mail(receiver.port).send(notification(), BASE)
        assert (result.is_delivered, result.error) == (False, "smtp 550: a@x.test: no")


@loop_over("command", ["connect", "EHLO", "MAIL", "DATA"])
def test_a_refusing_or_endless_mail_server_is_a_failure(command: str) -> None:
    endless = b"".join(b"250-%d" % n + b"x" * 500 + b"\r\n" for n in range(1000))
    for text, error in ((b"554 go away\r\n", "smtp 554: "), (endless, "the reply is longer than 64 KB")):
        with SMTPReceiver(replies={command: text, "HELO": text}) as receiver:
            result = mail(receiver.port).send(notification(), BASE)
            assert not result.is_delivered
            assert error in (result.error or "")


@loop_over("command", ["connect", "EHLO", "DATA"])
def test_a_mail_server_that_hangs_is_left_after_the_time_limit(command: str) -> None:
    with SMTPReceiver(replies={command: b""}) as receiver:
        begun = time.monotonic()
        result = mail(receiver.port, timeout_s=0.3).send(notification(), BASE)
        assert result.error is not None
        assert "no complete reply within 0.3 s" in result.error or "timed out" in result.error
        assert time.monotonic() - begun < 10


# The file


def load(tmp_path: Path, text: str, **environment: str) -> Any:
    (tmp_path / "targets.toml").write_text(text)
    return load_targets(tmp_path / "targets.toml", environment)


def test_a_file_has_targets_of_each_kind_with_secrets_from_variables(tmp_path: Path) -> None:
    text = """
        public_url = "https://spanwise.example.com"
        [targets.ops]
        kind = "webhook"
        url = "https://hooks.example.com/a?b=1"
        secret_env = "HOOK_SECRET"
        headers = { X-Team = "search" }
        headers_env = { Authorization = "HOOK_TOKEN" }
        [targets."chat room"]
        kind = "slack"
        url_env = "SLACK_URL"
        allow = ["hooks.internal", "10.0.0.0/8"]
        timeout_s = 5
        [targets.mail]
        kind = "email"
        host = "smtp.example.com"
        username = "spanwise"
        password_env = "SMTP_PASSWORD"
        from = "Spanwise <spanwise@example.com>"
        to = ["ops@example.com"]
    """
    secrets = {
        "HOOK_SECRET": "s",
        "HOOK_TOKEN": "Bearer t",
        "SLACK_URL": "https://hooks.internal/x",
        "SMTP_PASSWORD": "p",
    }
    config = load(tmp_path, text, **secrets)
    assert config.public_url == "https://spanwise.example.com"
    ops, chat, post = config.targets.values()
    assert ops == HTTPTarget(
        "ops", "webhook", "https://hooks.example.com/a?b=1", "s", {"X-Team": "search", "Authorization": "Bearer t"}
    )
    assert (chat.url, chat.timeout_s, chat.allowed.hosts) == ("https://hooks.internal/x", 5.0, {"hooks.internal"})
    assert (post.port, post.security, post.username, post.password) == (587, "starttls", "spanwise", "p")
    assert not any(secret in repr(config) for secret in ("'s'", "Bearer t", "hooks.internal/x", "'p'"))


HOOK = '[targets.ops]\nkind = "webhook"\n'
MAIL = '[targets.m]\nkind = "email"\nhost = "smtp.x.test"\nfrom = "a@x.test"\nto = ["b@x.test"]\n'
WRONG = {
    "[targets": "not valid TOML",
    "[target.ops]": "unknown key 'target'; did you mean 'targets'",
    "targets = 1": "targets must be tables",
    "[targets]\nops = 1": "expected a table, got 1",
    '[targets.log]\nkind = "webhook"': "and not 'log'",
    '[targets.ops]\nkind = "pager"': "kind: expected one of: webhook, slack, email, got 'pager'",
    'public_url = "spanwise"': "public_url must be a URL",
    HOOK: "give either url, or url_env",
    HOOK + 'url = "https://a"\nurl_env = "B"': "give either url, or url_env",
    HOOK + 'ulr = "https://a"': "unknown key 'ulr'; did you mean 'url'",
    HOOK + 'url = "ftp://a"': "it must begin with http:// or https://",
    HOOK + 'url = "http://hooks.example.com"': "http:// is accepted only for a host or address",
    HOOK + 'url = "http://hooks.example.com"\nallow = ["10.0.0.0/8"]': "http:// is accepted only for a host or address",
    HOOK + 'url = "https://u:p@a"': "without credentials",
    HOOK + 'url = "https://a/hidden path"': "it must consist of visible ASCII characters",
    HOOK + 'url = "https://é.test/hidden"': "it must consist of visible ASCII characters",
    HOOK + 'url_env = "NONE"': "the environment variable 'NONE' is not set",
    HOOK + 'url = "https://a"\nsecret_env = "NONE"': "secret_env: the environment variable 'NONE' is not set",
    HOOK + 'url = "https://a"\nallow = ["10.0.0.0/99"]': "allow must list host names",
    HOOK + 'url = "https://a"\ntimeout_s = 0': "timeout_s: the value is missing or invalid, got 0",
    HOOK + 'url = "https://a"\nheaders = { Host = "b" }': "header 'Host' cannot be set",
    HOOK + 'url = "https://a"\nheaders = { X = "a\\nb" }': "the value of header 'X' must be printable ASCII",
    MAIL + 'security = "ssl"': "security: the value is missing or invalid, got 'ssl'",
    MAIL + 'security = "none"\nusername = "u"\npassword_env = "SET"': "a password is never sent without encryption",
    MAIL + 'username = "u"': "username and password_env belong together",
    MAIL + "port = 70000": "port: the value is missing or invalid, got 70000",
    MAIL.replace("b@x.test", "b@x.test\\nBcc: c@x.test"): "is not an e-mail address",
    MAIL.replace("b@x.test", "b"): "'b' is not an e-mail address",
    MAIL.replace('to = ["b@x.test"]', "to = []"): "to: expected a list of texts",
    MAIL.replace("smtp.x.test", ""): "host: the value is missing or invalid",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, text: str) -> None:
    with pytest.raises(Refused) as refused:
        load(tmp_path, text, SET="hidden")
    assert WRONG[text] in str(refused.value)
    assert "targets.toml" in str(refused.value)
    assert "hidden" not in str(refused.value)
    assert "u:p" not in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"cannot read the targets file .*: No such file"):
        load_targets(tmp_path / "none.toml", {})


@pytest.mark.parametrize("options", [["--targets", "none.toml"], []])
def test_a_server_with_a_wrong_file_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if not options:
        monkeypatch.setenv("SPANWISE_TARGETS", "none.toml")
    done = CliRunner().invoke(app, ["serve", "--port", "0", "--no-grpc", *options])
    assert done.exit_code != 0
    assert "cannot read the targets file 'none.toml'" in f"{done.output}{done.exception}"
    assert list(tmp_path.iterdir()) == []


def test_http_is_accepted_for_hosts_that_are_allowed(tmp_path: Path) -> None:
    with HTTPReceiver() as receiver:
        config = load(tmp_path, HOOK + f'url = "{receiver.url}"\nallow = ["127.0.0.1"]')
        assert config.targets["ops"].send(notification(), BASE).is_delivered
