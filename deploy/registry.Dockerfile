# The image of the registry: one static binary and nothing else. make image builds it
# and pulls nothing for that.
#
# Without a NATS cluster the registry keeps its state in /data, so /data has to be a
# volume. A new volume gets the owner that /data has in this image. A folder of the host
# keeps its own owner, which has to be the user below.
FROM scratch AS parts
WORKDIR /data
ARG BIN=bin
COPY ${BIN}/registry /registry

FROM scratch
COPY --from=parts /registry /registry
COPY --from=parts --chown=65532:65532 /data /data
ENV REGISTRY_DATA=/data
VOLUME /data
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/registry"]
CMD ["serve"]
# Asks the store, with the variables of the server. Name the process by REGISTRY_URL where several
# share a NATS cluster.
HEALTHCHECK --interval=30s --timeout=15s --start-period=10s CMD ["/registry", "status"]
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="execagent registry" \
      org.opencontainers.image.description="Registry and rendezvous of execagent's remote mode" \
      org.opencontainers.image.source="https://github.com/execagent/execagent" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
