# The image of the agent: one static binary, with trusted roots built in, and nothing
# else. To build it nothing is pulled:
#
#	make image
#
# To run commands in an image of your own, copy the binary into it instead
# (docs/containers.md), or have it copied when a container starts (deploy/README.md).
FROM scratch
# The folder that make has built the programs in, for the image's architecture.
ARG BIN=bin
COPY ${BIN}/agent /agent
# A user without a name and without rights. An image made from this one sets a user of its own.
USER 65532:65532
EXPOSE 7000
ENTRYPOINT ["/agent"]
CMD ["--listen", "ws://127.0.0.1:7000"]
# Needs no token. With --remote and --health-listen 127.0.0.1:7301 ask that address instead. A port
# with TLS has no probe without it: use --health-listen there, too.
HEALTHCHECK --interval=30s --timeout=15s --start-period=10s CMD ["/agent", "health", "--probe", "127.0.0.1:7000"]
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="execagent agent" \
      org.opencontainers.image.description="Runs commands, file operations and HTTP requests for clients of codex exec-server" \
      org.opencontainers.image.source="https://github.com/execagent/execagent" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
