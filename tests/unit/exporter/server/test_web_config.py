import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.errors import UsageError
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.files import Files
from gpu_profile_exporter.server.settings import Web
from gpu_profile_exporter.server.tls import Verify, context
from gpu_profile_exporter.server.web_config import WebConfig, read

# "secret", at cost 4 so that tests are quick.
ALICE = "$2b$04$hYSuf45icwxDc2Jg/62M2O6cL2mn6SHs3.8WmUC/0z5Zo0U9GDdv2"
AUTHORITY = trustme.CA()
SERVER = AUTHORITY.issue_cert("localhost", "127.0.0.1")
OTHER = AUTHORITY.issue_cert("other.example")
TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    SERVER.cert_chain_pems[0].write_to_path(tmp_path / "server.crt")
    SERVER.private_key_pem.write_to_path(tmp_path / "server.key")
    OTHER.private_key_pem.write_to_path(tmp_path / "other.key")
    AUTHORITY.cert_pem.write_to_path(tmp_path / "ca.crt")
    return tmp_path


def parse(folder: Path, text: str) -> WebConfig:
    (folder / "web.yml").write_text(text)
    return read(folder / "web.yml", Files())


def usable(folder: Path, text: str) -> None:
    config = parse(folder, text)
    if config.tls is not None:
        context(config.tls)


def refused(folder: Path, text: str) -> str:
    """The one line that says why, without the folder."""
    with pytest.raises(UsageError) as caught:
        usable(folder, text)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{folder}/web.yml")
    return message.replace(f"{folder}/", "")


def test_a_whole_file_is_understood(folder: Path) -> None:
    config = parse(
        folder,
        f"""
tls_server_config:
  cert_file: server.crt
  key_file: {folder}/server.key
  client_ca_file: ca.crt
  client_auth_type: RequireAndVerifyClientCert
  client_allowed_sans: [prometheus.example, 10.0.0.1]
  min_version: TLS12
  max_version: TLS13
  cipher_suites:
    - TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
    - TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384
  prefer_server_cipher_suites: false
  curve_preferences: [CurveP256]
http_server_config:
  http2: false
  headers:
    Strict-Transport-Security: max-age=31536000
    X-Frame-Options: deny
    X-XSS-Protection:
basic_auth_users:
  alice: {ALICE}
rate_limit:
  interval: 1m500ms
  burst: 20
""",
    )
    assert config.tls is not None
    assert config.tls.verify is Verify.REQUIRED
    assert config.tls.allowed_names == {"prometheus.example", "10.0.0.1"}
    assert config.headers == (("Strict-Transport-Security", "max-age=31536000"), ("X-Frame-Options", "deny"))
    assert config.users == {b"alice": ALICE.encode()}
    assert config.rate == (60.5, 20)
    assert config.warnings == ()
    made, ends_s = context(config.tls)
    assert made.verify_mode is ssl.CERT_REQUIRED
    assert not made.options & ssl.OP_CIPHER_SERVER_PREFERENCE
    names = {suite["name"] for suite in made.get_ciphers() if suite["protocol"] == "TLSv1.2"}
    assert names == {"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384"}
    assert ends_s is not None
    assert ends_s > datetime.now(tz=UTC).timestamp()


@pytest.mark.parametrize("text", ["", "# nothing\n", "tls_server_config:\n", "tls_server_config: {}"])
def test_a_file_that_asks_for_nothing_changes_nothing(folder: Path, text: str) -> None:
    assert parse(folder, text) == WebConfig()


def test_a_certificate_and_its_key_can_stand_in_the_file(folder: Path) -> None:
    def inline(key: str, file: str) -> str:
        return f"  {key}: |\n" + "".join(f"    {line}\n" for line in (folder / file).read_text().splitlines())

    config = parse(folder, "tls_server_config:\n" + inline("cert", "server.crt") + inline("key", "server.key"))
    assert config.tls is not None
    assert context(config.tls)[0].minimum_version is ssl.TLSVersion.TLSv1_2


def test_suites_of_tls_13_alone_leave_no_other_version(folder: Path) -> None:
    config = parse(folder, TLS + "  cipher_suites: [TLS_AES_128_GCM_SHA256]\n")
    assert config.tls is not None
    assert context(config.tls)[0].minimum_version is ssl.TLSVersion.TLSv1_3


def test_http2_is_taken_with_a_warning(folder: Path) -> None:
    (warning,) = parse(folder, "http_server_config:\n  http2: true\n").warnings
    assert warning.startswith(f"{folder}/web.yml:2: http2 is ignored")


@pytest.mark.parametrize("text", ["basic_auth_users:\n", "basic_auth_users: {}\n"])
def test_users_of_whom_none_is_named_are_told_as_an_open_door(folder: Path, text: str) -> None:
    config = parse(folder, text)
    assert not config.users
    (warning,) = config.warnings
    assert warning.startswith(f"{folder}/web.yml:1: basic_auth_users is empty: all clients get answers")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [", "web.yml:1: not YAML: "),
        ("\ttls_server_config:", "web.yml:1: not YAML: "),
        ("[" * 5000, "web.yml: not YAML: "),
        ("- a", "web.yml:1: the file must be a mapping of keys to values"),
        (
            "\ntls_server_confg: {}",
            "web.yml:2: unknown key 'tls_server_confg' in the file: did you mean tls_server_config?",
        ),
        ("xyz: 1", "web.yml:1: unknown key 'xyz' in the file: one of tls_server_config, http_server_config, "),
        (TLS + "  cert_fil: x", "web.yml:4: unknown key 'cert_fil' in tls_server_config: did you mean cert_file?"),
        ("rate_limit: {}\nrate_limit: {}", "web.yml:2: 'rate_limit' is given twice"),
        ("tls_server_config: {cert_file: server.crt}", "web.yml:1: tls_server_config has neither key_file nor key"),
        ("tls_server_config: {key_file: server.key}", "web.yml:1: tls_server_config has neither cert_file nor cert"),
        (TLS.replace("server.crt", "gone.crt"), "web.yml:2: cert_file: cannot read gone.crt: No such file"),
        (TLS.replace("server.key", "other.key"), "web.yml:3: the key in other.key does not belong to the certificate"),
        (TLS.replace("server.crt", "server.key"), "web.yml:2: no certificate in PEM form in server.key"),
        (TLS.replace("server.key", "server.crt"), "web.yml:3: no private key in PEM form in server.crt"),
        (TLS + "  cert: x", "web.yml:4: both cert and cert_file: give one of them"),
        (TLS + "  client_auth_type: RequireAnyClientCert", "web.yml:4: client_auth_type RequireAnyClientCert accepts "),
        (
            TLS + "  client_auth_type: RequestClientCert",
            "web.yml:4: client_auth_type RequestClientCert accepts unverified cert",
        ),
        (
            TLS + "  client_auth_type: RequireAndVerify",
            "web.yml:4: unknown client_auth_type 'RequireAndVerify': did you ",
        ),
        (TLS + "  client_auth_type: VerifyClientCertIfGiven", "web.yml:4: client_auth_type needs client_ca_file"),
        (TLS + "  client_ca_file: ca.crt", "web.yml:4: a client_ca without client_auth_type"),
        (TLS + "  client_allowed_sans: [a]", "web.yml:4: client_allowed_sans needs RequireAndVerifyClientCert"),
        (TLS + "  client_allowed_sans: a", "web.yml:4: client_allowed_sans must be a list"),
        (TLS + "  min_version: TLS10", "web.yml:4: min_version TLS10 is broken and switched off in OpenSSL"),
        (TLS + "  min_version: TLS14", "web.yml:4: unknown min_version 'TLS14': TLS12 or TLS13"),
        (
            TLS + "  min_version: TLS13\n  max_version: TLS12",
            "web.yml:4: min_version TLS13 lies above max_version TLS12",
        ),
        (TLS + "  cipher_suites: [TLS_RSA_X]", "web.yml:4: unknown name 'TLS_RSA_X' in cipher_suites"),
        (
            TLS + "  max_version: TLS12\n  cipher_suites: [TLS_AES_128_GCM_SHA256]",
            "web.yml:2: none of cipher_suites serves TLS 1.2, and max_version is TLS12",
        ),
        (
            TLS + "  max_version: TLS12\n  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]",
            "web.yml:2: no TLS connection is possible with these settings: no shared cipher",
        ),
        (TLS + "  curve_preferences: [X25519, CurveP256]", "web.yml:4: curve_preferences: Python's ssl supports one"),
        (
            TLS + "  curve_preferences: [P256]",
            "web.yml:4: unknown name 'P256' in curve_preferences: did you mean CurveP256?",
        ),
        (TLS + "  prefer_server_cipher_suites: maybe", "web.yml:4: prefer_server_cipher_suites must be true or false"),
        (
            "http_server_config: {headers: {X-Frame-Options: maybe}}",
            "web.yml:1: X-Frame-Options can be deny or sameorigin",
        ),
        ("http_server_config: {headers: {Server: x}}", "web.yml:1: unknown key 'Server' in headers: one of Strict-"),
        (
            'http_server_config: {headers: {Content-Security-Policy: "a\\r\\nSet-Cookie: b"}}',
            "web.yml:1: Content-Security-Policy: only printable ASCII is allowed in a header",
        ),
        ("basic_auth_users: {alice: secret}", "web.yml:1: user 'alice': no bcrypt hash of the form"),
        ("basic_auth_users: {alice: }", "web.yml:1: user 'alice': no bcrypt hash of the form"),
        (f"basic_auth_users: {{'a:b': {ALICE}}}", "web.yml:1: user 'a:b': a name with a colon cannot be sent"),
        (
            f"basic_auth_users: {{alice: {ALICE.replace('$04$', '$31$')}}}",
            "web.yml:1: user 'alice': bcrypt cost 31 lies outside 4 to 14; use 10",
        ),
        ("basic_auth_users: [alice]", "web.yml:1: basic_auth_users must be a mapping of keys to values"),
        ("rate_limit: {interval: 1x, burst: 1}", "web.yml:1: interval '1x' is no duration such as 1s or 250ms"),
        ("rate_limit: {interval: 1s}", "web.yml:1: burst 0 is not a number from 1 to 1000000"),
        ("rate_limit: {interval: 1s, burst: -1}", "web.yml:1: burst -1 is not a number from 1 to 1000000"),
    ],
)
def test_what_cannot_be_meant_is_one_line_with_its_place(folder: Path, text: str, line: str) -> None:
    assert refused(folder, text).startswith(line)


def test_a_certificate_that_has_expired_is_told_at_the_start(folder: Path) -> None:
    past = datetime.now(tz=UTC) - timedelta(days=1)
    old = AUTHORITY.issue_cert("localhost", not_after=past)
    old.cert_chain_pems[0].write_to_path(folder / "server.crt")
    old.private_key_pem.write_to_path(folder / "server.key")
    assert refused(folder, TLS) == "web.yml:2: the certificate in server.crt has expired"


def test_an_encrypted_key_is_refused_instead_of_asked_for(folder: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(SERVER.private_key_pem.bytes(), None)
    sealed = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    (folder / "server.key").write_bytes(sealed)
    assert refused(folder, TLS).startswith("web.yml:3: the private key in server.key is encrypted")


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^the web configuration: cannot read .*web\.yml: No such file or directory$"):
        read(tmp_path / "web.yml", Files())
    with pytest.raises(UsageError, match="Is a directory"):
        read(tmp_path, Files())


@given(
    st.binary(max_size=200)
    | st.text(max_size=100).map(str.encode)
    | st.lists(
        st.sampled_from(
            [
                "tls_server_config",
                "basic_auth_users",
                "rate_limit",
                "cert",
                ": ",
                "\n",
                "  ",
                "- ",
                "{",
                "}",
                "&a",
                "*a",
                "!!x",
            ]
        ),
        max_size=12,
    ).map(lambda parts: "".join(parts).encode())
)
def test_whatever_a_file_holds_is_taken_or_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "web.yml").write_bytes(data)
    message = ""
    try:
        read(tmp_path / "web.yml", Files())
    except UsageError as error:
        message = str(error)
    assert message.isprintable()


# ------------------------------------------------------------------ reading it again


def test_a_file_that_changed_is_read_again_and_a_bad_one_keeps_what_was(folder: Path) -> None:
    file = folder / "web.yml"
    file.write_text("http_server_config: {headers: {X-Frame-Options: deny}}")
    counts = Counts()
    web = Web(file, counts)
    assert web.current() is web.current()
    file.write_text("http_server_config: {headers: {X-Frame-Options: sameorigin}}")
    assert dict(web.current().headers) == {"X-Frame-Options": "sameorigin"}
    file.write_text("http_server_config: {headers: {X-Frame-Options: never}}")
    before = web.current()
    assert dict(before.headers) == {"X-Frame-Options": "sameorigin"}
    assert web.current() is before
    assert counts.reloads == {"ok": 1, "failed": 1}
    assert not web.reload()
    file.write_text("")
    assert web.current().headers == ()
    assert counts.reloads == {"ok": 2, "failed": 2}


def test_a_renewed_certificate_is_noticed_also_after_a_bad_one(folder: Path) -> None:
    (folder / "web.yml").write_text(TLS)
    counts = Counts()
    web = Web(folder / "web.yml", counts)
    first = web.current().tls
    renewed = AUTHORITY.issue_cert("localhost")
    renewed.cert_chain_pems[0].write_to_path(folder / "server.crt")
    assert web.current().tls is first, "the key does not fit yet"
    renewed.private_key_pem.write_to_path(folder / "server.key")
    assert web.current().tls is not first
    assert counts.reloads == {"ok": 1, "failed": 1}


def test_tls_is_switched_on_and_off_only_by_a_restart(folder: Path) -> None:
    (folder / "web.yml").write_text("")
    web = Web(folder / "web.yml", Counts())
    (folder / "web.yml").write_text(TLS)
    assert not web.reload()
    assert web.current().tls is None


def test_without_a_file_there_is_nothing_to_read_again() -> None:
    web = Web(None, Counts())
    assert web.reload()
    assert web.current().users is None
