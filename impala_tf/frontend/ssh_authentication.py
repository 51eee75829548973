"""Logs the user in to a machine: with keys, passwords, and answers to its questions."""

from __future__ import annotations

import re
from collections.abc import Sequence

import paramiko

from impala_tf.frontend.host_keys import HostKeys
from impala_tf.frontend.inventory import Secret
from impala_tf.frontend.questions import Ask
from impala_tf.frontend.ssh_keys import UserKeys
from impala_tf.frontend.ssh_settings import SshSettings

_ANSWER_S = 120.0
"""How long a person may take to answer a machine's question: sshd's own limit."""
_MAX_FACTORS = 8
_QUESTION_CHARS = 500
_ONE_TIME = re.compile(r"code|token|one.?time|\botp\b|factor|\bpin\b", re.IGNORECASE)
"""Questions that a password does not answer."""


class TooManyKeysError(paramiko.SSHException):
    """The machine hung up after some keys, before the password could be tried."""


class MoreIsWantedError(paramiko.AuthenticationException):
    """The machine accepted one factor, and wants another one that nobody can give."""


class Login:
    """Tries the ways to log in, one after another; paramiko calls `authenticate`."""

    def __init__(
        self,
        name: str,
        settings: SshSettings,
        password: Secret | None,
        ask_once: Ask,
        ask: Ask,
        host_keys: HostKeys,
    ) -> None:
        """Does nothing yet.

        Args:
          name: the machine's name, for questions to the user.
          settings: how to log in.
          password: the CSV's password.
          ask_once: asks the user for a secret that more than one machine accepts, or returns None.
          ask: asks the user a question of this login only, or returns None.
          host_keys: the host keys that the machine may have.
        """
        self._name = name
        self._settings = settings
        self._password = password
        self._ask_once = ask_once
        self._ask = ask
        self._host_keys = host_keys
        self._keys = UserKeys(
            settings.key_filenames,
            settings.certificates,
            settings.agent,
            settings.identities_only,
            ask_once,
        )
        self._asked_password = False
        self._unsent: Secret | None = None
        self.keys_are_refused = False

    def tried(self) -> str:
        """Returns what was tried, in words."""
        keys = "your keys"
        if self._keys.agent_problem:
            keys += f" without the agent's: {self._keys.agent_problem},"
        if self._password is not None:
            return f"{keys} and the CSV's password"
        return f"{keys} and the password that you gave" if self._asked_password else keys

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Logs in.

        Raises:
          MoreIsWantedError: the machine wants a second factor that nobody can give.
          paramiko.AuthenticationException: the machine refuses every way.
        """
        self._host_keys.check_revoked(transport.get_remote_server_key())
        wanted = None if self.keys_are_refused else self._with_keys(transport)
        if wanted is None:
            wanted = self._with_password(transport)
        for _ in range(_MAX_FACTORS):
            if not wanted:
                break
            wanted = self._with_another_factor(transport, wanted)
        if not transport.is_authenticated():
            reason = f"after {_MAX_FACTORS} answers the machine still wants more"
            raise paramiko.AuthenticationException(reason)

    def _with_keys(self, transport: paramiko.Transport) -> Sequence[str] | None:
        """Returns what the machine wants besides a key, or None if it accepts none."""
        wanted: Sequence[str] | None = None
        try:
            for key in self._keys:
                try:
                    wanted = transport.auth_publickey(self._settings.username, key)
                except paramiko.BadAuthenticationType:
                    break  # the machine accepts no keys
                except (paramiko.SSHException, OSError):  # refused, or the agent does not sign
                    if not transport.is_active():
                        raise
                if wanted is not None and "publickey" not in wanted:
                    break
        except (paramiko.SSHException, EOFError) as error:
            if not transport.is_active() and wanted is None and self._has_password():
                raise TooManyKeysError(str(error)) from error
            raise
        return wanted

    def _with_password(self, transport: paramiko.Transport) -> Sequence[str]:
        if not self._has_password():
            raise paramiko.AuthenticationException("no key was accepted")
        password = self._password or self._ask_once(self._prompt()) or Secret("")
        try:
            return transport.auth_password(
                self._settings.username, password.reveal(), fallback=False
            )
        except paramiko.BadAuthenticationType as error:
            if "keyboard-interactive" not in error.allowed_types:
                raise
            return self._with_answers(transport, password)

    def _with_another_factor(
        self, transport: paramiko.Transport, wanted: Sequence[str]
    ) -> Sequence[str]:
        """Uses one of the methods that the machine wants; returns those that it wants next."""
        user = self._settings.username
        by_questions = "keyboard-interactive" in wanted
        if "password" in wanted and (self._password is not None or not by_questions):
            password = self._password or self._ask_once(f"password of {user}, besides a key")
            if password is None:
                raise self._unanswered("a password (method password)")
            return transport.auth_password(user, password.reveal(), fallback=False)
        if by_questions:
            return self._with_answers(transport, self._password)
        more = f"{', '.join(wanted)}, which is not supported here"
        if "publickey" in wanted:
            more = "another key, and it takes none of your others"
        raise MoreIsWantedError(
            f"the login of {user} is only half done: the machine also wants {more}"
        )

    def _with_answers(
        self, transport: paramiko.Transport, password: Secret | None
    ) -> Sequence[str]:
        self._unsent = password
        transport.auth_timeout = _ANSWER_S
        return transport.auth_interactive(self._settings.username, self._answers)

    def _answers(
        self, title: str, instructions: str, questions: Sequence[tuple[str, bool]]
    ) -> list[str]:
        """Answers the machine's questions (text, whether to show the answer); paramiko calls it."""
        answers = []
        for question, _ in questions:
            answer = None if _ONE_TIME.search(question) else self._unsent
            if answer is not None:
                self._unsent = None
            else:
                text = _printable(f"{instructions}\n{question}").rstrip(": ")
                answer = self._ask(f"{self._name}: {text}")
            if answer is None:
                text = " ".join(_printable(question).split())
                raise self._unanswered(f"an answer to '{text}' (method keyboard-interactive)")
            answers.append(answer.reveal())
        return answers

    def _unanswered(self, what: str) -> MoreIsWantedError:
        return MoreIsWantedError(
            f"the login of {self._settings.username} is only half done: the machine also wants "
            f"{what}, and nobody can be asked here. Run this on a terminal, or let its sshd_config "
            "take a key alone (AuthenticationMethods)"
        )

    def _has_password(self) -> bool:
        if self._password is not None:
            return True
        self._asked_password = self._ask_once(self._prompt()) is not None
        return self._asked_password

    def _prompt(self) -> str:
        return f"password of {self._settings.username} on the machines that take no key"


def _printable(text: str) -> str:
    """Returns a machine's text without characters that control the terminal."""
    printable = "".join(
        character for character in text if character.isprintable() or character == "\n"
    )
    return printable.strip()[:_QUESTION_CHARS]
