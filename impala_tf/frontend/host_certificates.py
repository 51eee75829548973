"""Checks host certificates, in which an authority vouches for machines' host keys."""

from __future__ import annotations

import base64
import re
import time

import paramiko
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    SSHCertificateType,
    load_ssh_public_identity,
)

_SUFFIX = "-cert-v01@openssh.com"
_RSA_SHA2 = (b"rsa-sha2-256", b"rsa-sha2-512")


class PrefersCertificates(paramiko.Transport):
    """A connection in which the machine shows its host certificate, if it has one."""

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """The algorithms of host keys, the best one first."""
        return tuple(sorted(super().preferred_keys, key=lambda name: not name.endswith(_SUFFIX)))


def authority(key: paramiko.PKey) -> str | None:
    """Returns the public key, in Base64, that signed a host key; None if none did.

    The key shows who claims to have signed; `problem` checks the signature.
    """
    certificate = _certificate(key)
    if not isinstance(certificate, SSHCertificate):
        return None
    signer = certificate.signature_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return signer.split()[1].decode()


def problem(key: paramiko.PKey, hostname: str) -> str:
    """Returns why the certificate of a host key is not valid for a machine; '' if it is.

    Checks what OpenSSH checks: signature, type, dates and names. There must be no critical options,
    as none is defined for hosts.

    Args:
      key: a host key whose `authority` is trusted.
      hostname: the machine's name, without a port.
    """
    certificate = _certificate(key)
    if not isinstance(certificate, SSHCertificate):
        return "it has no certificate that can be read"
    names = [name.decode(errors="replace") for name in certificate.valid_principals]
    if certificate.type != SSHCertificateType.HOST:
        return "its certificate is for users, not for hosts"
    if not certificate.valid_after <= time.time() < certificate.valid_before:
        return "its certificate has expired or is not valid yet"
    if names and not any(matches(name, hostname) for name in names):
        return f"its certificate is for {', '.join(names)}, not for {hostname}"
    if certificate.critical_options:
        return "its certificate has critical options, which are not supported"
    signer = certificate.signature_key()
    if isinstance(signer, RSAPublicKey):
        # The algorithm's name is right before the signature's length and the signature.
        body = base64.b64decode(certificate.public_bytes().split()[1])
        if not body[: -signer.key_size // 8 - 4].endswith(_RSA_SHA2):
            return "its certificate is signed with SHA-1"
    try:
        certificate.verify_cert_signature()
    except (InvalidSignature, UnsupportedAlgorithm):
        return "the signature of its certificate is wrong"
    return ""


def matches(patterns: str, *names: str) -> bool:
    """Tells whether a list of patterns, as in known_hosts, matches a machine with these names.

    Commas separate the patterns; * and ? are wildcards, and ! excludes machines.
    """
    is_named = False
    for pattern in patterns.split(","):
        text = pattern.removeprefix("!")
        if any(_is_like(text, name) for name in names):
            if text != pattern:
                return False
            is_named = True
    return is_named


def _is_like(pattern: str, name: str) -> bool:
    if pattern.startswith("|1|"):
        return paramiko.HostKeys.hash_host(name, pattern) == pattern
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, name, re.IGNORECASE) is not None


def _certificate(key: paramiko.PKey) -> object:
    blob = key.public_blob
    if blob is None:
        return None
    line = blob.key_type.encode() + b" " + base64.b64encode(blob.key_blob)
    try:
        return load_ssh_public_identity(line)
    except (ValueError, UnsupportedAlgorithm):
        return None
