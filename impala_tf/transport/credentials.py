"""A run's own certificate authority: only processes with its files can take part.

The authority signs two certificates, and its private key is never stored, so a stolen folder cannot
be used to make more. The learner's certificate is valid only for servers, the actors' only for
clients.
"""

from __future__ import annotations

import datetime
import math
import os
import shutil
import tempfile
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from impala_tf.config import ConfigError

ACTOR_FILES = ("ca.pem", "actor.pem", "actor.key")
"""All that an actor needs, and all that is copied to a remote actor."""
LEARNER_FILES = ("ca.pem", "learner.pem", "learner.key")

# Clients check this name instead of the host's, so a run's certificate works on any host.
LEARNER_NAME = "learner.impala"
ACTOR_NAME = "actor.impala"

_LIFETIME = datetime.timedelta(days=365)
_CLOCK_SKEW = datetime.timedelta(days=1)
# A run that starts with less than this left gets new certificates; one that is running says so.
RENEW_DAYS = 30.0


def create(directory: Path) -> None:
    """Creates the certificates of a new run in `directory`, all of them or none.

    Raises: ConfigError if `directory` is not empty or cannot be written.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))  # 0700
        try:
            for name, content in _new_files().items():
                _write_private(aside / name, content)
            aside.rename(directory)
        except BaseException:
            shutil.rmtree(aside)
            raise
    except OSError as error:
        raise ConfigError(
            f"{directory}: cannot hold a run's certificates ({error.strerror}); "
            "give a folder that is empty or does not exist yet, and that you may write to"
        ) from error


def ensure(directory: Path) -> None:
    """Creates the certificates unless there are some; safe for several processes at once."""
    if not _has_any(directory):
        try:
            create(directory)
        except ConfigError:
            if not _has_any(directory):  # otherwise another process created them first
                raise


def renew(directory: Path) -> bool:
    """Replaces certificates that expire soon, and creates missing ones; returns whether it did.

    For whoever starts a run and gives the certificates to all its processes: the old ones are of
    no use with the new ones.

    Raises: ConfigError if they cannot be written.
    """
    if not _has_any(directory):
        ensure(directory)
        return True
    if days_left(directory) > RENEW_DAYS:
        return False
    try:
        old = Path(tempfile.mkdtemp(prefix=f".{directory.name}-old-", dir=directory.parent))
        directory.rename(old / directory.name)
    except OSError as error:
        raise ConfigError(f"{directory}: cannot renew the certificates: {error}") from error
    create(directory)
    shutil.rmtree(old)
    return True


def days_left(directory: Path) -> float:
    """Returns in how many days the first of the certificates expires; infinite without any."""
    left = [math.inf]
    for path in directory.glob("*.pem"):
        try:
            until = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
        except (OSError, ValueError):
            continue  # named when it is used
        left.append((until - datetime.datetime.now(datetime.UTC)) / datetime.timedelta(days=1))
    return min(left)


def server_credentials(directory: Path) -> grpc.ServerCredentials:
    """Returns the learner's credentials, which refuse clients without a certificate of this run.

    Raises: ConfigError naming a file that is missing, unreadable, expired or readable by others.
    """
    ca, certificate, key = _read(directory, LEARNER_FILES)
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=ca, require_client_auth=True
    )


def channel_credentials(directory: Path) -> grpc.ChannelCredentials:
    """Returns an actor's credentials, from ACTOR_FILES alone. Raises: as `server_credentials`."""
    ca, certificate, key = _read(directory, ACTOR_FILES)
    return grpc.ssl_channel_credentials(ca, private_key=key, certificate_chain=certificate)


def _has_any(directory: Path) -> bool:
    return any((directory / name).exists() for name in (*LEARNER_FILES, *ACTOR_FILES))


def _write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _read(directory: Path, names: tuple[str, ...]) -> list[bytes]:
    found, problems = [], []
    for name in names:
        path = directory / name
        try:
            content = path.read_bytes()
            if name.endswith(".key") and path.stat().st_mode & 0o077:
                problems.append(
                    f"{path}: other users can read this private key; run chmod 600 {path}"
                )
            elif name.endswith(".pem"):
                problems += _certificate_problems(path, content)
            found.append(content)
        except OSError as error:
            problems.append(
                f"{path}: {error.strerror}; copy {', '.join(names)} of the run's credentials there "
                "or point --credentials at them"
            )
    if problems:
        raise ConfigError(problems)
    return found


def _certificate_problems(path: Path, content: bytes) -> list[str]:
    try:
        until = x509.load_pem_x509_certificate(content).not_valid_after_utc
    except ValueError:
        return [f"{path}: not a certificate; copy the run's credentials again"]
    if until < datetime.datetime.now(datetime.UTC):
        return [f"{path}: expired on {until:%Y-%m-%d}; delete {path.parent} and restart the run"]
    return []


def _new_files() -> dict[str, bytes]:
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _sign_authority(authority_key)
    files = {"ca.pem": _pem(authority)}
    for role, name, usage in (
        ("learner", LEARNER_NAME, ExtendedKeyUsageOID.SERVER_AUTH),
        ("actor", ACTOR_NAME, ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        files[f"{role}.key"] = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        files[f"{role}.pem"] = _pem(
            _builder(name, key, authority.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
                critical=False,
            )
            .sign(authority_key, hashes.SHA256())
        )
    return files


def _sign_authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    subject = _name("impala run authority")
    signs_only = {usage: usage == "key_cert_sign" for usage in _KEY_USAGES}
    return (
        _builder("impala run authority", key, subject)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**signs_only), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


_KEY_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
    "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def _builder(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Name
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
