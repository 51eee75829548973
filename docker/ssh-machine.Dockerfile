# A container in place of a remote machine, to try the launcher; see ssh-cluster.yml. It has SSH,
# tmux, Python and a compiler (Horovod needs one), but nothing of this project.
ARG BASE_IMAGE=debian:bookworm-slim
FROM ${BASE_IMAGE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates cmake g++ iproute2 make openssh-server procps python3-dev python3-venv tini tmux \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
    # No password, but not locked either: sshd refuses every login to a locked account.
    && useradd --uid 1000 --create-home --shell /bin/bash --password '*' impala \
    && install -d /run/sshd
COPY docker/certificates /usr/local/share/ca-certificates
RUN update-ca-certificates
COPY docker/sshd_config /etc/ssh/sshd_config
EXPOSE 22
HEALTHCHECK --interval=5s --timeout=5s CMD ["ssh-keyscan", "-T", "3", "127.0.0.1"]
ENTRYPOINT ["tini", "--", "/usr/sbin/sshd", "-D", "-e"]
