"""A home folder whose key the machines of a network accept."""

import pytest


@pytest.fixture
def home(network, tmp_path, monkeypatch):
    """The .ssh folder of a home with the user's key and without known hosts."""
    _, user_key = network
    folder = tmp_path / "home" / ".ssh"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "id_ed25519").write_bytes(user_key.read_bytes())
    (folder / "id_ed25519").chmod(0o600)
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder
