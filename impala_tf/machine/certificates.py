"""A run's own certificate authority: only processes with its files can take part.

The authority signs a certificate for learners, valid only for servers, and certificates for actors,
valid only for clients. In a launched run, every machine with actors has its own certificate, which
can be revoked; the authority's key is kept only where the run is launched. In other runs, all
actors share one certificate, and the authority's key is not kept.

Certificates do not expire: they are worth no more than their run, and machines' clocks may be
wrong.
"""

from __future__ import annotations

import datetime
import os
import secrets
import shutil
import tempfile
import urllib.parse
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from impala_tf.config import ConfigError

ACTOR_FILES = ("ca.pem", "actor.pem", "actor.key")
"""The files that an actor needs; only these are copied to a remote actor."""
LEARNER_FILES = ("ca.pem", "learner.pem", "learner.key")
REVOKED = "revoked"
"""The file of revoked certificates' names, one per line, which learners read repeatedly."""

# Clients check this name instead of the host's, so a run's certificate works on any host.
LEARNER_NAME = "learner.impala"
ACTOR_NAME = "actor.impala"

_AUTHORITY_KEY = "authority.key"
_MACHINES = "machines"  # a folder for each machine's own certificate
_BEGIN = datetime.datetime(1970, 1, 1)
_AUTHORITY_NAME = "impala run authority"
_KEY_USAGES = (
    "digital_signature content_commitment key_encipherment data_encipherment key_agreement"
    " key_cert_sign crl_sign encipher_only decipher_only"
)
_CRITICAL = (x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage)
_NEVER = datetime.datetime(9999, 12, 31, 23, 59, 59)  # RFC 5280, section 4.1.2.5


def create(directory: Path, keep_authority: bool = False) -> None:
    """Creates the certificates of a new run in a new or empty folder, all of them or none.

    If `keep_authority`, `of_machine` may sign more later; if not, a stolen folder cannot be used to
    make more. Raises ConfigError: the folder is not empty or cannot be written.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))  # 0700
        try:
            for name, content in _new_files(keep_authority).items():
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


def ensure(directory: Path, keep_authority: bool = False) -> None:
    """Creates the certificates if there are none; safe for several processes at once."""
    if not exist(directory):
        try:
            create(directory, keep_authority)
        except ConfigError:
            if not exist(directory):  # else another process was faster
                raise


def exist(directory: Path) -> bool:
    """Returns whether there are certificates."""
    return any((directory / name).exists() for name in (*LEARNER_FILES, *ACTOR_FILES))


def of_machine(directory: Path, machine: str) -> dict[str, str]:
    """Returns the ACTOR_FILES of a machine, {name: text}, with a certificate of its own.

    The first call for a machine signs it. Without the authority's key, all machines share one.
    Raises ConfigError: a file cannot be read or written.
    """
    folder = _folder_of(directory, machine)
    try:
        if not (directory / _AUTHORITY_KEY).exists():
            folder = directory
        elif not (folder / "actor.key").exists():
            _sign_machine(directory, machine, folder)
        folders = {"ca.pem": directory}
        return {name: (folders.get(name, folder) / name).read_text() for name in ACTOR_FILES}
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; restart the run") from error


def revoke(directory: Path, machine: str) -> str:
    """Revokes a machine's certificate; returns the text of `REVOKED` for the learners' folders.

    Raises ConfigError: the machine has no certificate of its own, or the file cannot be written.
    """
    folder = _folder_of(directory, machine)
    try:
        certificate = x509.load_pem_x509_certificate((folder / "actor.pem").read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{machine}: has no certificate of its own that could be revoked; stop the run, delete "
            f"{directory} and start it again: then all machines get new certificates"
        ) from error
    path = directory / REVOKED
    try:
        names = set(path.read_text().splitlines()) if path.exists() else set()
        (attribute,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        text = "".join(f"{name}\n" for name in sorted({*names, str(attribute.value)}))
        aside = path.with_name(f".{REVOKED}")
        aside.write_text(text)
        aside.rename(path)
        (folder / REVOKED).touch()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}, so {machine} is not revoked") from error
    return text


def revoked_folder(directory: Path, machine: str) -> Path | None:
    """Returns the folder to delete to let a revoked machine in again; None if it is not revoked."""
    folder = _folder_of(directory, machine)
    return folder if (folder / REVOKED).exists() else None


def _write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _folder_of(directory: Path, machine: str) -> Path:
    return directory / _MACHINES / urllib.parse.quote(machine, safe="").replace(".", "%2E")


def _sign_machine(directory: Path, machine: str, folder: Path) -> None:
    key = serialization.load_pem_private_key((directory / _AUTHORITY_KEY).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    # Random, so that a machine that is let in again has another name than the revoked one.
    name = f"{machine[:40]} {secrets.token_hex(6)}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file, content in _signed("actor", name, key).items():
        aside = folder / f".{file}"
        aside.unlink(missing_ok=True)
        _write_private(aside, content)
        aside.rename(folder / file)  # the key last


def _new_files(keep_authority: bool) -> dict[str, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate(
        _AUTHORITY_NAME,
        key,
        key,
        x509.BasicConstraints(ca=True, path_length=0),
        x509.KeyUsage(**{usage: usage == "key_cert_sign" for usage in _KEY_USAGES.split()}),
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
    )
    return {
        "ca.pem": authority,
        **({_AUTHORITY_KEY: _key_bytes(key)} if keep_authority else {}),
        **_signed("learner", LEARNER_NAME, key),
        **_signed("actor", ACTOR_NAME, key),
    }


def _signed(role: str, name: str, authority_key: ec.EllipticCurvePrivateKey) -> dict[str, bytes]:
    """Returns a new certificate and its key, as {file name: content}."""
    key = ec.generate_private_key(ec.SECP256R1())
    usage, dns_name = {
        "learner": (ExtendedKeyUsageOID.SERVER_AUTH, LEARNER_NAME),
        "actor": (ExtendedKeyUsageOID.CLIENT_AUTH, ACTOR_NAME),
    }[role]
    certificate = _certificate(
        name,
        key,
        authority_key,
        x509.BasicConstraints(ca=False, path_length=None),
        x509.ExtendedKeyUsage([usage]),
        x509.SubjectAlternativeName([x509.DNSName(dns_name)]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
    )
    return {f"{role}.pem": certificate, f"{role}.key": _key_bytes(key)}


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    authority_key: ec.EllipticCurvePrivateKey,
    *extensions: x509.ExtensionType,
) -> bytes:
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _AUTHORITY_NAME)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_NEVER)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=isinstance(extension, _CRITICAL))
    return builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
